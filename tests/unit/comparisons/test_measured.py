from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.doubles.measured_runs import write_run

from ais_bench_prefix_cache.comparisons.measured import read_measured
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.sweeps.plan import SweepPlan
from ais_bench_prefix_cache.sweeps.sweep_directory import SweepDirectory


def test_a_run_by_its_directory_or_a_file_in_it(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "runs" / "20260101_000000", [10.0, 20.0], server="0.1 (embedded server)")
    measured = read_measured(directory)
    assert measured == read_measured(directory / "analysis.json")
    ((settings, (run,)),) = measured.points
    assert (settings, run.requests, run.counted_hits, run.batch_size) == ({}, 2, 80, 2)
    assert [record.ttft_ms for record in run.done] == [10.0, 20.0]


def test_a_sweep_has_the_complete_runs_of_each_point(tmp_path: Path) -> None:
    files = SweepDirectory(tmp_path)
    files.write_plan(SweepPlan(Path("/s.json"), "abc", ({"a": 1}, {"a": 2}), 2))
    rows = []
    for point, repeat, status in ((0, 0, "complete"), (0, 1, "failed"), (1, 0, "failed"), (1, 1, "failed")):
        rows.append({"point": point, "repeat": repeat, "status": status})
        if status == "complete":
            write_run(files.run(point, repeat).path, [10.0])
    files.write_table(rows)
    ((settings, runs),) = read_measured(tmp_path).points
    assert (settings, [run.name for run in runs]) == ({"a": 1}, ["point-000.repeat-1"])


@pytest.mark.parametrize("what", ["nothing", "unfinished", "no records", "empty sweep"])
def test_what_cannot_be_compared_is_refused(what: str, tmp_path: Path) -> None:
    messages = {
        "nothing": "no directory of a run or a sweep",
        "unfinished": "this run is not complete",
        "no records": "left no records of its requests to compare",
        "empty sweep": "no run of this sweep is complete",
    }
    place = tmp_path / "run"
    if what == "empty sweep":
        place.mkdir()
        SweepDirectory(place).write_plan(SweepPlan(Path("/s.json"), "abc", ({},), 1))
    elif what != "nothing":
        write_run(place, [])
    if what == "unfinished":
        (place / "analysis.json").unlink()
        (place / "run.json").write_text(json.dumps({"status": "failed"}))
    with pytest.raises(ArtifactError, match=messages[what]):
        read_measured(place)
