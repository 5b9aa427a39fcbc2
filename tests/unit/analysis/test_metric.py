from __future__ import annotations

import numpy as np
import pytest
from tests.doubles.measured_runs import record, records

from ais_bench_prefix_cache.analysis.metric import Metric, metric_named
from ais_bench_prefix_cache.foundation.errors import CalculationError


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("ttft_p50", Metric("ttft_p50", "ttft_ms", 50.0)),
        ("tpot_p99.9", Metric("tpot_p99.9", "tpot_ms", 99.9)),
        ("e2el_mean", Metric("e2el_mean", "e2el_ms", None)),
        ("requests_per_s", Metric("requests_per_s", None)),
        ("ttft_p05", Metric("ttft_p5", "ttft_ms", 5.0)),
    ],
)
def test_figures_have_names(name: str, metric: Metric) -> None:
    assert metric_named(name) == metric


@pytest.mark.parametrize("name", ["ttft", "ttft_p0", "ttft_p100", "ttft_P99", "latency_p50", ""])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(CalculationError) as refused:
        metric_named(name)
    assert "this is no figure of a run (allowed: ttft_p50, tpot_p99" in str(refused.value)


def test_a_mistyped_name_is_guessed() -> None:
    with pytest.raises(CalculationError, match=r"did you mean ttft_p99\?"):
        metric_named("tfft_p99")


def test_figures_are_numpys_over_requests_in_their_order() -> None:
    times = [30.0, 10.0, 50.0, 20.0]
    done = records(times)
    assert list(metric_named("ttft_p50").values(done[::-1])) == times
    assert metric_named("ttft_p50").of(np.asarray(times)) == np.percentile(times, 50) == 25.0
    assert metric_named("ttft_mean").of(np.asarray([times, times]))[1] == 27.5


def test_a_rate_is_requests_over_the_time_from_the_first_sending_to_the_last_end() -> None:
    done = [record(0, 100, sent_s=1.0), record(1, 480, sent_s=3.0), record(2, 80, sent_s=2.5)]
    metric = metric_named("requests_per_s")
    gaps = metric.values(done)
    assert gaps == pytest.approx([1.5, 0.5, 0.5])  # the last answer ends at 3.5
    assert metric.of(gaps) == pytest.approx(3 / 2.5)
    assert metric.higher_is_better and not metric_named("ttft_p50").higher_is_better


@pytest.mark.parametrize(
    ("name", "least"),
    [("ttft_p50", 2), ("ttft_p90", 10), ("ttft_p99", 100), ("ttft_p99.9", 1000), ("ttft_mean", 1)],
)
def test_a_percentile_needs_requests_beyond_it(name: str, least: int) -> None:
    assert metric_named(name).least_requests == least
