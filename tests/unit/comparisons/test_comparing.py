from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.doubles.measured_runs import config, write_run

from ais_bench_prefix_cache.comparisons.comparing import METRICS, compare
from ais_bench_prefix_cache.foundation.errors import ArtifactError, CalculationError
from ais_bench_prefix_cache.sweeps.plan import SweepPlan
from ais_bench_prefix_cache.sweeps.sweep_directory import SweepDirectory

STEADY = list(100 + 10 * np.sin(np.arange(120)))


def slower(factor: float) -> list[float]:
    return [factor * value for value in STEADY]


def sweep(directory: Path, points: dict[int, list[list[float]]]) -> Path:
    """A sweep over field ``a``: its value → the times of each run."""
    directory.mkdir()
    files = SweepDirectory(directory)
    files.write_plan(SweepPlan(Path("/s.json"), "abc", tuple({"a": value} for value in points), 3))
    rows: list[dict[str, Any]] = []
    for point, runs in enumerate(points.values()):
        for repeat, times in enumerate(runs):
            write_run(files.run(point, repeat).path, times)
            rows.append({"point": point, "repeat": repeat, "status": "complete"})
    files.write_table(rows)
    return directory


def test_a_slower_run_is_worse_and_the_same_one_shows_nothing(tmp_path: Path) -> None:
    one, other = write_run(tmp_path / "1", STEADY), write_run(tmp_path / "2", slower(2.0))
    found = compare(one, other)
    assert [each.metric for each in found.differences] == list(METRICS)
    assert (found.verdict, found.same_data_sets, dict(found.differing)) == ("worse", True, {})
    by_name = {each.metric: each for each in found.differences}
    assert by_name["ttft_p50"].change == pytest.approx(1.0)
    assert by_name["ttft_p50"].verdict == "worse"
    assert by_name["tpot_p50"].verdict == "no difference shown"
    assert by_name["requests_per_s"].verdict == "worse"
    assert compare(other, one).verdict == "better"
    assert compare(one, one).verdict == "no difference shown"
    assert found == compare(one, other), "seeded"


def test_what_differs_is_named(tmp_path: Path) -> None:
    one = write_run(tmp_path / "1", STEADY)
    other = write_run(
        tmp_path / "2", STEADY, rows={"full": "def"}, configuration=config(batch_size=8, request_rate=2.0)
    )
    found = compare(one, other)
    assert not found.same_data_sets
    assert dict(found.differing) == {
        "aisbench.model.batch_size": (2, 8),
        "aisbench.model.request_rate": (None, 2.0),
    }


def test_runs_of_older_versions_are_told_by_what_shapes_their_data(tmp_path: Path) -> None:
    one = write_run(tmp_path / "1", STEADY)
    old = write_run(tmp_path / "2", STEADY, rows=None)
    seeded = {**config(), "run": {"run_id": "a", "random_seed": 2, "output_dir": "/x"}}
    other = write_run(tmp_path / "3", STEADY, rows=None, configuration=seeded)
    assert compare(one, old).same_data_sets and not compare(one, other).same_data_sets


def test_conditions_decide(tmp_path: Path) -> None:
    one, other = write_run(tmp_path / "1", STEADY), write_run(tmp_path / "2", slower(2.0))
    found = compare(one, other, fail_if=["ttft_p99 > +5%", "tpot_p95 > 5%", "ttft_p99.9 > 5%"])
    assert [state for _, state in found.conditions] == ["met", "not met", "not judged"]
    assert found.state() == "met"
    assert {"tpot_p95", "ttft_p99.9"} <= {each.metric for each in found.differences}
    assert compare(one, other, fail_if=["ttft_p99.9 > 5%"]).state() == "not judged"
    assert compare(one, one, fail_if=["ttft_p99 > 5%"]).state() == "not met"
    with pytest.raises(CalculationError):
        compare(one, other, fail_if=["ttft_p99"])


def test_too_few_requests_have_no_verdict(tmp_path: Path) -> None:
    one, other = write_run(tmp_path / "1", STEADY[:10]), write_run(tmp_path / "2", slower(2.0)[:10])
    assert compare(one, other).verdict == "too few data"


def test_sweeps_are_compared_point_by_point_over_their_runs(tmp_path: Path) -> None:
    steady = [slower(factor) for factor in (0.99, 1.0, 1.01)]
    one = sweep(tmp_path / "1", {1: steady, 2: steady, 3: steady})
    other = sweep(tmp_path / "2", {2: steady, 1: [slower(factor) for factor in (1.3, 1.31, 1.32)], 4: steady})
    found = compare(one, other)
    assert [(point.name, point.baseline_runs) for point in found.points] == [("a=1", 3), ("a=2", 3)]
    verdicts = {(point.name, each.metric): each.verdict for point in found.points for each in point.differences}
    assert verdicts["a=1", "ttft_p50"] == "worse" and verdicts["a=2", "ttft_p50"] == "no difference shown"
    assert {each.source for each in found.differences} == {"repeats"}
    assert found.unmatched == ("a=3: only in 1", "a=4: only in 2")
    assert found.points[0].baseline_counted == (3 * 40 * 120, 3 * 100 * 120)


def test_some_better_some_worse_is_mixed(tmp_path: Path) -> None:
    steady = [slower(factor) for factor in (0.99, 1.0, 1.01)]
    fast, slow = ([slower(part * factor) for part in (0.99, 1.0, 1.01)] for factor in (0.5, 2.0))
    one, other = sweep(tmp_path / "1", {1: steady, 2: steady}), sweep(tmp_path / "2", {1: fast, 2: slow})
    assert compare(one, other).verdict == "mixed"


def test_sweeps_without_a_point_in_common_are_refused(tmp_path: Path) -> None:
    one, other = sweep(tmp_path / "1", {1: [STEADY], 2: [STEADY]}), sweep(tmp_path / "2", {3: [STEADY]})
    with pytest.raises(ArtifactError, match="no point in common"):
        compare(one, other)
