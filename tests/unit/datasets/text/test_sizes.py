"""What this machine cannot hold is refused before it is planned or made, with what it would take."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.scenarios import scenario_file

from ais_bench_prefix_cache.cli import main


@pytest.fixture
def command(tmp_path: Path, qwen3_tokenizer_dir: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(name: str, count: int, length: int, mode: str, *options: str) -> tuple[int, str]:
        (tmp_path / "corpus.jsonl").write_text('{"question": "Why?"}\n')
        scenario = {
            "run": {"run_id": "big", "output_dir": str(tmp_path / "out")},
            "tokenizer": {"path": str(qwen3_tokenizer_dir), "block_size": 16},
            "corpus": {"path": str(tmp_path / "corpus.jsonl")},
            "requests": {"count": count, "input_length": {"mode": "fixed", "value": length}},
            "prefix_cache": {"mode": mode, "target_hit_rate": 0.5, "groups": {"count": 1}},
        }
        (tmp_path / "big.json").write_text(json.dumps(scenario))
        code = main([name, "--scenario", str(tmp_path / "big.json"), *options])
        assert not list(tmp_path.glob("out*")), "nothing is written"
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize("mode", ["warmup", "cold"])
@pytest.mark.parametrize(("name", "options"), [("inspect", ()), ("prepare", ("--mode", "text"))])
def test_more_requests_than_memory(command: Any, mode: str, name: str, options: tuple[str, ...]) -> None:
    code, errors = command(name, 2**31 - 1, 64, mode, *options)
    assert code == 2
    assert errors.startswith(
        "error [NOT_ENOUGH_MEMORY] big.json: requests.count: a plan of 2,147,483,647 requests takes about "
    )


def test_longer_prompts_than_memory(command: Any) -> None:
    code, errors = command("prepare", 3, 2**31 - 1, "warmup", "--mode", "text")
    assert code == 2
    assert errors.startswith(
        "error [NOT_ENOUGH_MEMORY] big.json: requests.input_length: a prompt of 2,147,483,647 tokens takes about "
    )


def test_more_text_than_disk(command: Any) -> None:
    code, errors = command("prepare", 1_000_000, 2**20, "warmup", "--mode", "text")
    assert code == 2
    assert "error [DISK_FULL] big.json: requests.input_length: a data set of 1,048,576,000,000 tokens" in errors


@pytest.mark.parametrize(("most", "shown"), [(100, ["1/4", "2/4", "3/4", "4/4"]), (101, [])])
def test_a_long_plan_shows_its_steps(
    most: int,
    shown: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    qwen3_tokenizer_dir: Path,
    gsm8k_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ais_bench_prefix_cache.datasets.text.sizes._REQUESTS_OF_A_LONG_PLAN", most)
    scenario = scenario_file(
        tmp_path,
        tokenizer=qwen3_tokenizer_dir,
        url="http://127.0.0.1:1",
        corpus={"path": str(gsm8k_path)},
        requests={"count": 100, "input_length": {"mode": "fixed", "value": 160}},
    )
    assert main(["inspect", "--scenario", str(scenario)]) == 0
    assert re.findall(r"Plan, steps \[[#-]*\] (./4)", capsys.readouterr().err) == shown
