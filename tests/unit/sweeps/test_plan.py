from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ais_bench_prefix_cache.foundation.errors import ScenarioError
from ais_bench_prefix_cache.sweeps.plan import SweepFile, SweepPlan, planned_points, read_sweep_file


def test_a_plan_comes_back_from_its_document() -> None:
    plan = SweepPlan.of(Path("/s.json"), "abc", [{"a": 1, "b": 5}, {"a": 2, "b": 5}], 3, 7)
    assert (plan.points, plan.constant, plan.runs) == (({"a": 1}, {"a": 2}), {"b": 5}, 6)
    assert plan.fields(1) == {"a": 2, "b": 5}
    assert SweepPlan.of_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_a_sweep_file(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    path.write_text('{"set": {"a": "0:1:0.5", "b": [1]}, "points": [{"c": 1}], "repeat": 2, "shuffle": 0}')
    file = read_sweep_file(path)
    assert file == SweepFile({"a": [0, 0.5, 1], "b": [1]}, [{"c": 1}], 2, 0)
    assert planned_points(["a=9"], file) == ({"a": 9, "b": 1, "c": 1},)
    path.write_text("{}")
    assert planned_points([], read_sweep_file(path)) == ({},)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "the sweep file is not a JSON object"),
        ({"sets": {}}, "sets: no such key"),
        ({"set": {"a": 1}}, "an object of lists or ranges"),
        ({"points": []}, "a list of objects"),
        ({"repeat": 0}, "a whole number from 1 on"),
        ({"repeat": True}, "a whole number from 1 on"),
        ({"shuffle": -1}, "a whole number from 0 on"),
    ],
)
def test_what_is_wrong_is_said(document: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ScenarioError, match=said):
        read_sweep_file(path)


def test_no_json_is_said(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(ScenarioError, match="the sweep file"):
        read_sweep_file(tmp_path / "sweep.json")
