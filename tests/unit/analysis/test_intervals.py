"""Student's quantiles are those of the printed tables, the bootstrap agrees with the formula where there is one."""

from __future__ import annotations

import numpy as np
import pytest

from ais_bench_prefix_cache.analysis.intervals import block_length, blocks, estimate, resampled, student_t
from ais_bench_prefix_cache.analysis.metric import metric_named
from ais_bench_prefix_cache.foundation.random_streams import RandomStream


@pytest.mark.parametrize(
    ("confidence", "degrees", "t"),
    [(0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 4, 2.776), (0.99, 9, 3.250), (0.999, 4, 8.610), (0.95, 120, 1.980)],
)
def test_student(confidence: float, degrees: int, t: float) -> None:
    assert student_t(confidence, degrees) == pytest.approx(t, abs=6e-4)


def test_resampling_shows_the_error_of_a_mean() -> None:
    values = np.random.default_rng(5).normal(100, 20, 400)
    drawn = resampled(400, 5, lambda rows: values[rows].mean(axis=-1), RandomStream(1, "t"))
    assert drawn.shape == (1000,)
    assert drawn.std() == pytest.approx(values.std() / np.sqrt(400), rel=0.25)
    again = resampled(400, 5, lambda rows: values[rows].mean(axis=-1), RandomStream(1, "t"))
    assert np.array_equal(drawn, again)


def test_blocks_keep_neighbours_together() -> None:
    """Values that come in runs of ten: drawn one by one they would look ten times as many."""
    values = np.repeat(np.random.default_rng(5).normal(100, 20, 40), 10)
    one_by_one, in_blocks = (
        resampled(400, length, lambda rows: values[rows].mean(axis=-1), RandomStream(1, "t")).std()
        for length in (1, 40)
    )
    assert in_blocks > 2 * one_by_one


def test_blocks_cover_all_requests_once() -> None:
    assert [(part.start, part.stop) for part in blocks(23, 5)] == [(0, 5), (5, 11), (11, 17), (17, 23)]


@pytest.mark.parametrize(("count", "in_flight", "length"), [(40, 1, 5), (400, 1, 25), (40, 32, 32), (8, 32, 8)])
def test_a_block_is_as_long_as_what_is_in_flight(count: int, in_flight: int, length: int) -> None:
    assert block_length(count, in_flight) == length


def test_three_runs_are_what_varies() -> None:
    runs = [np.full(50, value) for value in (10.0, 12.0, 14.0)]
    found = estimate(metric_named("ttft_p50"), runs, in_flight=1, random_seed=0)
    assert found is not None
    half = 4.303 * 2.0 / np.sqrt(3)  # t of two degrees, standard deviation 2
    assert (found.value, found.source, found.count) == (12.0, "repeats", 3)
    assert [found.low, found.high] == pytest.approx([12 - half, 12 + half], abs=0.01)


def test_of_one_run_requests_are() -> None:
    values = np.random.default_rng(5).normal(100, 20, 400)
    found = estimate(metric_named("ttft_mean"), [values], in_flight=1, random_seed=0)
    assert found is not None and found.low is not None and found.high is not None
    assert (found.source, found.count) == ("requests", 400)
    assert found.value == pytest.approx(values.mean())
    assert found.high - found.low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.25)


def test_too_few_requests_have_no_interval_and_none_no_estimate() -> None:
    found = estimate(metric_named("ttft_p99"), [np.arange(99.0)], in_flight=1, random_seed=0)
    assert found is not None and found.low is None and found.high is None
    assert estimate(metric_named("ttft_p99"), [np.empty(0)], in_flight=1, random_seed=0) is None
