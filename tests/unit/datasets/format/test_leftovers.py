"""What a killed command left goes, what is in use or anybody's own stays; a stamp ahead of the clock is said."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from ais_bench_prefix_cache.datasets.format.leftovers import clear_leftovers
from ais_bench_prefix_cache.datasets.format.manifest_search import find_manifest
from ais_bench_prefix_cache.datasets.format.writing import claimed
from ais_bench_prefix_cache.scenario.loading import load_scenario
from ais_bench_prefix_cache.scenario.model import Scenario


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    (tmp_path / "s.json").write_text(json.dumps({"run": {"run_id": "a", "output_dir": "./out"}}))
    return load_scenario(tmp_path / "s.json", environment={})


def left(base: Path, stamp: str, *names: str) -> Path:
    directory = base / f"out_{stamp}"
    (directory / "log").mkdir(parents=True)
    (directory / "log" / f"a_{stamp}.prepare.log").write_text("prepare\n")
    (directory / "result").mkdir()
    for name in names:
        (directory / "result" / name.replace("RUN", f"a_{stamp}")).write_text("x")
    return directory


def test_files_without_a_manifest_go(scenario: Scenario, tmp_path: Path) -> None:
    gone = [
        left(tmp_path, "20260101_000001", ".RUN.full.jsonl.partial"),
        left(tmp_path, "20260101_000002", "RUN.full.jsonl", ".RUN.requests.jsonl.partial"),
    ]
    gone.append(left(tmp_path, "20260101_000000"))
    os.utime(gone[-1] / "result", (1, 1))
    kept = [
        left(tmp_path, "20260101_000003", "RUN.full.jsonl", "RUN.manifest.json"),
        left(tmp_path, "20260101_000004", "RUN.full.jsonl", "notes.txt"),
        left(tmp_path, "20260101_000005"),
        left(tmp_path, "20260101_000006", ".b_20260101_000006.full.jsonl.partial"),
    ]
    at_work = left(tmp_path, "20260101_000007", ".RUN.full.jsonl.partial")
    busy = left(tmp_path, "20260101_000008", "RUN.full.jsonl")
    (busy / "mine").mkdir()
    with claimed(at_work / "result"):
        (at_work / "result" / ".a_20260101_000007.full.jsonl.partial").write_text("at work")
        notes = clear_leftovers(scenario)
    assert sorted(notes) == [f"removed {path}, which a killed command left without a manifest" for path in sorted(gone)]
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in (*kept, at_work, busy))


def test_a_stamp_ahead_of_the_clock_is_said(scenario: Scenario, tmp_path: Path) -> None:
    now = datetime.now()
    left(tmp_path, f"{now:%Y%m%d_%H%M%S}")
    assert find_manifest(scenario, ("prepared",), benchmark_modes=("text",)).notes == ()
    ahead = left(tmp_path, f"{now + timedelta(hours=1):%Y%m%d_%H%M%S}")
    (note,) = find_manifest(scenario, ("prepared",), benchmark_modes=("text",)).notes
    assert note.startswith(f"{ahead.name} has a later time stamp than this computer's clock")
