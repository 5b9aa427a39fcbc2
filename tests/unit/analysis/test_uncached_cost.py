from __future__ import annotations

import numpy as np
import pytest

from ais_bench_prefix_cache.analysis.uncached_cost import uncached_cost


def test_a_line_is_found() -> None:
    tokens = [100.0, 100.0, 300.0, 500.0, 500.0]
    cost = uncached_cost(tokens, [20 + 0.25 * each for each in tokens])
    assert cost is not None
    assert (cost.us_per_token, cost.ms_at_zero, cost.r_squared, cost.runs) == pytest.approx((250.0, 20.0, 1.0, 5))


def test_slope_and_interval_are_those_of_the_textbook() -> None:
    """The slope by numpy, its error by the formula; 3.182446 is t of three degrees at 95 %."""
    tokens, times = [0.0, 100.0, 200.0, 300.0, 400.0], [12.0, 33.0, 64.0, 80.0, 111.0]
    cost = uncached_cost(tokens, times)
    assert cost is not None
    slope, start = np.polyfit(tokens, times, 1)
    residuals = np.asarray(times) - start - slope * np.asarray(tokens)
    error = np.sqrt((residuals**2).sum() / 3 / ((np.asarray(tokens) - 200) ** 2).sum())
    assert cost.us_per_token == pytest.approx(1000 * slope)
    assert cost.high - cost.us_per_token == pytest.approx(1000 * 3.182446 * error, rel=1e-4)


@pytest.mark.parametrize(
    ("tokens", "times"),
    [
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]),  # three runs
        ([1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 2.0, 2.0]),  # two numbers of tokens
        ([1.0, 2.0, 3.0, 4.0], [5.0, 5.0, 5.0, 5.0]),  # no slope
        ([1.0, 2.0, 3.0, 4.0], [9.0, 6.0, 5.0, 1.0]),  # it falls
        ([1.0, 2.0, 3.0, 4.0, 5.0], [5.0, 1.0, 7.0, 2.0, 6.0]),  # noise
    ],
)
def test_where_the_data_show_none_there_is_none(tokens: list[float], times: list[float]) -> None:
    assert uncached_cost(tokens, times) is None
