"""The list of runs: also of those that failed, and of those that left little."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.cli import main
from ais_bench_prefix_cache.datasets.format.paths import RunDirectory, RunPaths
from ais_bench_prefix_cache.datasets.format.writing import write_document

NOW = datetime(2026, 8, 25, 12, 34, 56)


def test_finished_failed_and_empty_runs(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"run": {"run_id": "job", "output_dir": "./out"}}), encoding="utf-8")
    paths = RunPaths.create(tmp_path / "out", "job", NOW)
    write_document(paths.manifest, {"benchmark_mode": "text"})
    done, failed, empty = (RunDirectory.create(paths, NOW) for _ in range(3))
    write_document(done.record, {"status": "complete", "phase": None, "labels": {"gpu": "A"}})
    write_document(done.config, {"aisbench": {"model": {"batch_size": 8, "request_rate": 2.5}}})
    write_document(done.analysis, {"theoretical_hit_rate": 0.6, "actual": {"global_hit_rate": 0.59}})
    write_document(failed.record, {"status": "failed", "phase": "precheck", "labels": {}})

    assert main(["runs", "--scenario", str(path), "--json"]) == 0
    first, second, third = json.loads(capsys.readouterr().out)["runs"]
    assert first | {"data_sha256": ""} == {
        "run": "20260825_123456",
        "directory": str(done.path),
        "data_set": paths.run_id,
        "data_sha256": "",
        "status": "complete",
        "phase": None,
        "labels": {"gpu": "A"},
        "batch_size": 8,
        "request_rate": 2.5,
        "theoretical_hit_rate": 0.6,
        "actual_hit_rate": 0.59,
    }
    assert (second["status"], second["phase"], second["actual_hit_rate"]) == ("failed", "precheck", None)
    assert (third["directory"], third["status"]) == (str(empty.path), None)

    assert main(["runs", "--scenario", str(path)]) == 0
    table = capsys.readouterr().out
    assert "60.00 %" in table and "59.00 %" in table and "failed: precheck" in table and "gpu=A" in table
    assert max(len(line) for line in table.splitlines() if line[:1] in "│╒") <= 80


def test_no_run(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "s.json"
    path.write_text("{}", encoding="utf-8")
    assert main(["runs", "--scenario", str(path)]) == 0
    assert "no run lies beside" in capsys.readouterr().err
