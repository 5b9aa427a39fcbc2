from __future__ import annotations

import pytest

from ais_bench_prefix_cache.comparisons.conditions import ConditionState, parse_conditions
from ais_bench_prefix_cache.comparisons.difference import Difference
from ais_bench_prefix_cache.foundation.errors import CalculationError


def changed(low: float | None, high: float | None, metric: str = "ttft_p99") -> Difference:
    return Difference(metric, "ms", 1.0, 1.0, 0.0, low, high, "repeats", "no difference shown")


@pytest.mark.parametrize(
    ("text", "low", "high", "state"),
    [
        ("ttft_p99 > +5%", 0.06, 0.2, "met"),
        ("ttft_p99>5%", 0.04, 0.2, "not met"),
        ("ttft_p99 > -5 %", -0.04, 0.2, "met"),
        ("ttft_p99 < -5%", -0.2, -0.06, "met"),
        ("ttft_p99 < -5%", -0.2, -0.04, "not met"),
        ("ttft_p99 > 2.5%", None, None, "not judged"),
    ],
)
def test_the_whole_interval_must_lie_beyond(
    text: str, low: float | None, high: float | None, state: ConditionState
) -> None:
    (condition,) = parse_conditions([text])
    assert condition.state([changed(low, high), changed(0.9, 1.0, "ttft_p50")]) == state


def test_one_point_of_many_is_enough_and_one_without_data_is_not_overlooked() -> None:
    (condition,) = parse_conditions(["ttft_p99 > 5%"])
    assert condition.state([changed(0.0, 0.1), changed(0.1, 0.2)]) == "met"
    assert condition.state([changed(None, None), changed(0.1, 0.2)]) == "met"
    assert condition.state([changed(None, None), changed(0.0, 0.2)]) == "not judged"
    assert condition.state([]) == "not judged"


def test_what_is_no_condition_is_said_at_once() -> None:
    with pytest.raises(CalculationError) as refused:
        parse_conditions(["ttft_p99 > 5", "ttft_p99 = 5%", "ttft > 5%", "ttft_p50 > 1%"])
    assert [problem.where for problem in refused.value.problems] == ["--fail-if", "--fail-if", '"ttft"']
