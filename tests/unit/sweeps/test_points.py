from __future__ import annotations

from typing import Any

import pytest

from ais_bench_prefix_cache.foundation.errors import ScenarioError
from ais_bench_prefix_cache.sweeps.points import point_name, points_of, run_order, settings_of, swept_fields


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0:0.9:0.1", [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]),
        ("1:10:4", [1, 5, 9]),
        ("-1:1:0.5", [-1, -0.5, 0, 0.5, 1]),
        ("1,8,32", [1, 8, 32]),
        ("1,4:8:2", [1, 4, 6, 8]),
        ("warmup,cold", ["warmup", "cold"]),
        ("0.6", [0.6]),
        ("null", [None]),
        ("http://a:8000/v1/completions", ["http://a:8000/v1/completions"]),
        ('["http://a","http://b"]', [["http://a", "http://b"]]),
        (
            '{"mode":"fixed","value":1},{"mode":"fixed","value":2}',
            [{"mode": "fixed", "value": 1}, {"mode": "fixed", "value": 2}],
        ),
        ('"1,2"', ["1,2"]),
    ],
)
def test_values(text: str, values: list[Any]) -> None:
    assert swept_fields([f"a.b={text}"]) == {"a.b": values}


def test_everything_that_cannot_be_read_is_said_at_once() -> None:
    with pytest.raises(ScenarioError) as refused:
        swept_fields(["nothing", "a=1:0:1", "b=0:1:0", "c=0:1000000:0.1", "d=1", "d=2", ".=1"])
    said = [problem.message for problem in refused.value.problems]
    assert said == [
        '"nothing" is no field and values',
        '"1:0:1" is no range',
        '"0:1:0" is no range',
        '"0:1000000:0.1" is no range',
        "d is given twice",
        '".=1" is no field and values',
    ]


def test_points_are_every_combination_the_last_field_fastest() -> None:
    assert points_of({"a": [1, 2], "b": ["x", "y"]}) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]
    assert points_of({}) == [{}]
    assert points_of({"a": [1, 2]}, [{"b": 1, "c": 2}, {"b": 3}]) == [
        {"a": 1, "b": 1, "c": 2},
        {"a": 1, "b": 3},
        {"a": 2, "b": 1, "c": 2},
        {"a": 2, "b": 3},
    ]


@pytest.mark.parametrize(
    ("fields", "listed", "message"),
    [
        ({"a": []}, [{}], "a has no value"),
        ({"a": [1]}, [{"a": 2}], "a is set, and in the listed points, too"),
        ({"a": [1, 1]}, [{}], "the point a=1 is there twice"),
        ({"a": list(range(200)), "b": list(range(51))}, [{}], "10,200 points"),
    ],
)
def test_points_that_make_no_sense_are_refused(fields: Any, listed: Any, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        points_of(fields, listed)


def test_a_drift_falls_on_all_points_alike() -> None:
    assert run_order(3, 2, None) == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]
    shuffled = run_order(3, 2, 7)
    assert sorted(shuffled) == sorted(run_order(3, 2, None)) and shuffled != run_order(3, 2, None)
    assert run_order(3, 2, 7) == shuffled != run_order(3, 2, 8)


def test_a_point_as_settings_and_as_a_name() -> None:
    point = {"prefix_cache.target_hit_rate": 0.3, "service.model": "qwen", "x.y": None}
    assert settings_of(point) == ["prefix_cache.target_hit_rate=0.3", 'service.model="qwen"', "x.y=null"]
    assert point_name(point) == "target_hit_rate=0.3 model=qwen y=None"
    assert point_name({}) == "as it stands"
