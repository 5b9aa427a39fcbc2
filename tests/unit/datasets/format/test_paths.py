"""Time-stamped directories: claimed once, named as documented, found again by what shapes the data set."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ais_bench_prefix_cache import __version__
from ais_bench_prefix_cache.datasets.format.documents import sealed
from ais_bench_prefix_cache.datasets.format.manifest_search import data_sets_beside, find_manifest
from ais_bench_prefix_cache.datasets.format.paths import RunDirectory, RunPaths, split_timestamp
from ais_bench_prefix_cache.datasets.format.writing import write_document
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.scenario.loading import load_scenario
from ais_bench_prefix_cache.scenario.model import Scenario

NOW = datetime(2026, 8, 25, 12, 34, 56)
DIGEST = "0" * 64


def asked_for(output_dir: Path, **sections: Any) -> Scenario:
    """The Scenario ``s.json`` beside the output directory, whose run is called ``job``."""
    path = output_dir.parent / "s.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"run": {"run_id": "job", "output_dir": str(output_dir)}, **sections}))
    return load_scenario(path, environment={})


def inspected(output_dir: Path, now: datetime = NOW, scenario: Scenario | None = None, **changes: object) -> RunPaths:
    paths = RunPaths.create(output_dir, "job", now)
    scenario = scenario or asked_for(output_dir)
    run = {**scenario.effective["run"], "run_id": paths.run_id, "output_dir": str(paths.directory)}
    document = {
        "schema_version": "1.0",
        "plugin_version": __version__,
        "status": "inspected",
        "run_id": paths.run_id,
        "scenario_path": str(scenario.path),
        "scenario_sha256": DIGEST,
        "effective_config": {**scenario.effective, "run": run},
        "effective_config_sha256": DIGEST,
        "inspect": {},
    }
    write_document(paths.manifest, sealed({**document, **changes}))
    return paths


def test_names_are_the_documented_ones(tmp_path: Path) -> None:
    paths = RunPaths.create(tmp_path / "outputs" / "gsm8k", "gsm8k-60", NOW)
    assert paths.directory == tmp_path / "outputs" / "gsm8k_20260825_123456"
    names = [str(path.relative_to(paths.directory)) for path in (paths.full, paths.requests, paths.manifest)]
    assert names == [
        "result/gsm8k-60_20260825_123456.full.jsonl",
        "result/gsm8k-60_20260825_123456.requests.jsonl",
        "result/gsm8k-60_20260825_123456.manifest.json",
    ]
    assert paths.analysis.name == "gsm8k-60_20260825_123456.analysis.json"
    assert paths.log("run") == paths.directory / "log" / "gsm8k-60_20260825_123456.run.log"
    assert (paths.base_run_id, paths.timestamp) == ("gsm8k-60", "20260825_123456")


def test_commands_of_one_second_get_different_directories(tmp_path: Path) -> None:
    made = [RunPaths.create(tmp_path / "out", "job", datetime(2026, 12, 31, 23, 59, 58)) for _ in range(4)]
    assert [paths.directory.name for paths in made] == [
        "out_20261231_235958",
        "out_20261231_235959",
        "out_20270101_000000",
        "out_20270101_000001",
    ]


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("job_20260825_123456", "job"),
        ("a_b_20260825_123456", "a_b"),
        ("job_20261325_123456", ""),
        ("job_20260230_123456", ""),
        ("job_20260825_246060", ""),
        ("job-20260825_123456", ""),
        ("_20260825_123456", ""),
        ("job_2026082５_123456", ""),
        ("job", ""),
    ],
)
def test_only_real_time_stamps_count(name: str, stem: str) -> None:
    assert split_timestamp(name)[0] == stem


@pytest.mark.parametrize("name", ["result/job.manifest.json", "result/job_20260825_123456.json", "job_20260825_123456"])
def test_a_path_that_cannot_be_a_manifest_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        RunPaths.of_manifest(tmp_path / name)
    assert str(caught.value) == (
        f"{tmp_path / name}: this is not where a manifest lies (allowed: "
        "…/result/<run_id>_<YYYYMMDD_HHMMSS>.manifest.json, with its data files beside it)"
    )


def test_the_newest_fitting_manifest_is_found(tmp_path: Path) -> None:
    output_dir = tmp_path / "out"
    inspected(output_dir, datetime(2026, 1, 1))
    newest = inspected(output_dir, datetime(2026, 1, 3))
    inspected(output_dir, datetime(2026, 1, 4), scenario=asked_for(output_dir, requests={"count": 7}))
    inspected(tmp_path / "out_other", datetime(2026, 1, 5))
    search = find_manifest(asked_for(output_dir), ("inspected",), benchmark_modes=("text",))
    assert search.found is not None
    assert search.found.paths == newest
    assert search.notes == ()


@pytest.mark.parametrize(
    ("sections", "differing"),
    [
        ({"requests": {"count": 7}}, ("requests",)),
        (
            {"tokenizer": {"block_size": 32}, "service": {"dp_size": 1}},
            ("tokenizer", "prefix_cache", "service.dp_size"),
        ),
    ],
)
def test_a_scenario_of_another_data_set_matches_no_older_manifest(
    tmp_path: Path, sections: dict[str, Any], differing: tuple[str, ...]
) -> None:
    inspected(tmp_path / "out")
    asked = asked_for(tmp_path / "out", **sections)
    search = find_manifest(asked, ("inspected",), benchmark_modes=("text",))
    assert (search.found, search.differing) == (None, differing)


@pytest.mark.parametrize(
    "sections",
    [
        {"service": {"inference_url": "http://other:1/v1/completions", "api_key": "sk-1", "timeout_seconds": 3}},
        {"aisbench": {"model": {"batch_size": 64, "request_rate": 2.5}}, "validation": {"slo": {"ttft_ms": 100}}},
    ],
)
def test_what_belongs_to_a_run_matches_whatever_it_says(tmp_path: Path, sections: dict[str, Any]) -> None:
    paths = inspected(tmp_path / "out")
    search = find_manifest(asked_for(tmp_path / "out", **sections), ("inspected",), benchmark_modes=("text",))
    assert search.found is not None
    assert search.found.paths == paths


def test_data_sets_of_another_kind_are_passed_over(tmp_path: Path) -> None:
    inspected(tmp_path / "out", status="prepared", benchmark_mode="trace")
    asked = asked_for(tmp_path / "out")
    assert find_manifest(asked, ("prepared",), benchmark_modes=("text", "mm")).found is None
    assert find_manifest(asked, ("prepared",), benchmark_modes=("trace",)).found is not None


def test_damaged_and_foreign_manifests_are_passed_over_with_a_note(tmp_path: Path) -> None:
    output_dir = tmp_path / "out"
    good = inspected(output_dir, datetime(2026, 1, 1))
    cut = inspected(output_dir, datetime(2026, 1, 2))
    cut.manifest.write_bytes(cut.manifest.read_bytes()[:100])
    edited = inspected(output_dir, datetime(2026, 1, 3))
    edited.manifest.write_text(edited.manifest.read_text().replace("/s.json", "/t.json"))
    foreign = inspected(output_dir, datetime(2026, 1, 4), run_id="other_20260104_000000")
    newer = inspected(output_dir, datetime(2026, 1, 5), schema_version="2.0")
    elsewhere = inspected(output_dir, datetime(2026, 1, 6), effective_config={"run": {"output_dir": "/x"}})
    search = find_manifest(asked_for(output_dir), ("inspected",), benchmark_modes=("text",))
    assert search.found is not None
    assert search.found.paths == good
    assert search.notes == (
        f"passed over {elsewhere.manifest}: it was made for another run or output directory",
        f"passed over {newer.manifest}: the manifest has schema version '2.0'",
        f"passed over {foreign.manifest}: it was made for another run or output directory",
        f"passed over {edited.manifest}: the manifest's content is not what was written: its digest does not match",
        f"passed over {cut.manifest}: the manifest is not JSON: Unterminated string starting at (line 5, column 13)",
    )


def test_a_manifest_is_found_after_the_whole_tree_has_moved(tmp_path: Path) -> None:
    sections = {"corpus": {"path": "./c.jsonl"}, "tokenizer": {"path": "./t"}}
    inspected(tmp_path / "a" / "out", scenario=asked_for(tmp_path / "a" / "out", **sections))
    (tmp_path / "a").rename(tmp_path / "b")
    moved = asked_for(tmp_path / "b" / "out", **sections)
    search = find_manifest(moved, ("inspected",), benchmark_modes=("text",))
    assert search.found is not None
    assert json.loads(search.found.paths.manifest.read_text())["run_id"] == search.found.paths.run_id


def test_no_output_directory_means_no_manifest(tmp_path: Path) -> None:
    asked = asked_for(tmp_path / "never" / "out")
    assert find_manifest(asked, ("inspected",), benchmark_modes=("text",)).found is None
    assert data_sets_beside(asked) == []


def test_runs_have_directories_of_their_own(tmp_path: Path) -> None:
    paths = RunPaths.create(tmp_path / "out", "job", NOW)
    assert paths.runs() == []
    first, second = (RunDirectory.create(paths, NOW) for _ in range(2))
    assert [run.name for run in paths.runs()] == ["20260825_123456", "20260825_123457"]
    assert (first.path, second.data_set_directory) == (paths.directory / "runs" / "20260825_123456", paths.directory)
    assert RunDirectory.containing(first.analysis) == RunDirectory.containing(first.path) == first
    assert RunDirectory.containing(paths.manifest) is None
    (paths.runs_dir / "notes").mkdir()
    assert paths.runs() == [first, second]


def test_no_time_stamp_that_is_free_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ais_bench_prefix_cache.datasets.format.paths.LATEST_ADVANCE_SECONDS", 2)
    paths = RunPaths.create(tmp_path / "out", "job", NOW)
    for _ in range(2):
        RunDirectory.create(paths, NOW)
    with pytest.raises(ArtifactError, match="every time stamp of the next 2 seconds is taken") as caught:
        RunDirectory.create(paths, NOW)
    assert caught.value.problems[0].code == "NO_FREE_DIRECTORY"
