"""Preparing as a function: it says nothing by itself, raises every problem at once, and leaves nothing behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.doubles.scenarios import scenario_file

from ais_bench_prefix_cache.datasets.kinds import verify
from ais_bench_prefix_cache.datasets.preparing import prepare_data_set
from ais_bench_prefix_cache.foundation.errors import ScenarioError

CORPUS = {"path": "./rows.jsonl"}


@pytest.fixture
def scenario(tmp_path: Path, qwen3_tokenizer_dir: Path, gsm8k_path: Path) -> Path:
    (tmp_path / "rows.jsonl").write_bytes(gsm8k_path.read_bytes())
    return scenario_file(tmp_path, tokenizer=qwen3_tokenizer_dir, corpus=CORPUS)


def test_it_is_silent_unless_it_is_listened_to(scenario: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = prepare_data_set(scenario)
    assert capfd.readouterr() == ("", "")
    assert made.warnings == []
    assert list(made.report) == ["full", "requests", "manifest", "analysis", "log"]
    assert all(Path(path).is_file() for path in made.report.values())
    assert verify(made.paths.manifest).manifest == made.manifest == json.loads(made.paths.manifest.read_bytes())


def test_who_listens_hears_how_far_it_is_and_what_to_know(scenario: Path) -> None:
    told: list[str | int] = []

    @contextmanager
    def bar(label: str, total: int) -> Iterator[object]:
        told.append(f"{label} {total}")
        yield told.append

    unreachable = ["prefix_cache.target_hit_rate=0.99"]
    made = prepare_data_set(scenario, settings=unreachable, note=told.append, bar=bar)  # type: ignore[arg-type]
    assert told[0] == "Generate prompts 24"
    assert told[-3] == 24
    assert [warning["code"] for warning in made.warnings] == ["TARGET_UNREACHABLE", "TARGET_DEVIATION"]
    assert told[-2:] == [f"warning [{warning['code']}] {warning['message']}" for warning in made.warnings]


def test_special_tokens_that_are_asked_for_and_not_added_are_warned_of(scenario: Path, tmp_path: Path) -> None:
    document = json.loads(scenario.read_text())
    copy = shutil.copytree(document["tokenizer"]["path"], tmp_path / "tokenizer")
    settings = copy / "tokenizer_config.json"
    settings.write_text(
        json.dumps(json.loads(settings.read_text()) | {"bos_token": "<|endoftext|>", "add_bos_token": True})
    )
    (warning,) = prepare_data_set(scenario, settings=[f"tokenizer.path={copy}"]).warnings
    assert warning["code"] == "SPECIAL_TOKENS_IGNORED"
    assert warning["message"].startswith("tokenizer_config.json sets add_bos_token, which the installed transformers")


def test_everything_that_is_missing_is_said_at_once_and_nothing_is_left(tmp_path: Path) -> None:
    path = scenario_file(tmp_path, tokenizer=tmp_path / "no_tokenizer", corpus={"path": "./no_rows.jsonl"})
    with pytest.raises(ScenarioError) as caught:
        prepare_data_set(path)
    assert [problem.where for problem in caught.value.problems] == [
        "scenario: corpus.path",
        "scenario: tokenizer.path",
    ]
    assert [entry.name for entry in tmp_path.iterdir()] == ["scenario.json"]


def test_overwriting_remakes_the_newest_in_place(scenario: Path) -> None:
    first = prepare_data_set(scenario)
    bytes_before = first.paths.full.read_bytes()
    second = prepare_data_set(scenario)
    assert second.paths.directory != first.paths.directory
    third = prepare_data_set(scenario, overwrite=True)
    assert third.paths == second.paths
    assert third.paths.full.read_bytes() == bytes_before
