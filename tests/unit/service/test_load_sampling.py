"""Sampling the load: a series, never an error, nothing before the first request or after the last answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import pytest

from ais_bench_prefix_cache.counters.reader import EngineLoad
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ServiceError
from ais_bench_prefix_cache.service.load_sampling import LoadSample, LoadSampler


def sampled(sample: Callable[[], Mapping[int, EngineLoad]], until: Callable[[LoadSampler], bool]) -> LoadSampler:
    sampler = LoadSampler(sample, 0.005)
    with sampler:
        deadline = time.monotonic() + 10
        while not until(sampler) and time.monotonic() < deadline:
            time.sleep(0.002)
    return sampler


def test_average_and_peak_per_rank_and_globally() -> None:
    values = iter(
        [
            {0: EngineLoad(0.1), 1: EngineLoad(0.3)},
            {0: EngineLoad(0.5), 1: EngineLoad(0.3)},
            {0: EngineLoad(0.3)},
        ]
    )
    finished = threading.Event()

    def sample() -> Mapping[int, EngineLoad]:
        try:
            return next(values)
        except StopIteration:
            finished.wait()
            return {}

    sampler = LoadSampler(sample, 0.001)
    with sampler:
        deadline = time.monotonic() + 10
        while sampler.as_json()["samples"] < 3 and time.monotonic() < deadline:
            time.sleep(0.002)
        document = sampler.as_json()
        finished.set()
    assert document == {
        "enabled": True,
        "interval_seconds": 0.001,
        "samples": 3,
        "errors": 0,
        "average": pytest.approx((0.2 + 0.4 + 0.3) / 3),
        "peak": pytest.approx(0.4),
        "by_dp": {
            "0": {"average": pytest.approx(0.3), "peak": 0.5},
            "1": {"average": pytest.approx(0.3), "peak": 0.3},
        },
    }


def test_errors_are_counted_and_never_fatal() -> None:
    def sample() -> Mapping[int, EngineLoad]:
        raise ServiceError.of(Code.TIMEOUT, "url", "silent")

    document = sampled(sample, lambda sampler: sampler.as_json()["errors"] >= 3).as_json()
    assert document["errors"] >= 3
    assert (document["samples"], document["average"], document["peak"], document["by_dp"]) == (0, None, None, {})


def test_nothing_is_sampled_after_the_end() -> None:
    calls: list[float] = []

    def sample() -> Mapping[int, EngineLoad]:
        calls.append(time.monotonic())
        return {0: EngineLoad(0.5)}

    sampled(sample, lambda sampler: sampler.as_json()["samples"] >= 2)
    time.sleep(0.05)
    count = len(calls)
    time.sleep(0.05)
    assert len(calls) == count


def test_an_interval_of_zero_switches_sampling_off() -> None:
    def sample() -> Mapping[int, EngineLoad]:
        raise AssertionError("sampled")

    with LoadSampler(sample, 0) as sampler:
        time.sleep(0.02)
    assert sampler.as_json() == {
        "enabled": False,
        "interval_seconds": 0,
        "samples": 0,
        "errors": 0,
        "average": None,
        "peak": None,
        "by_dp": {},
    }


def test_only_what_was_sampled_between_two_moments_counts_and_becomes_the_series() -> None:
    sampler = LoadSampler(dict, 0)
    for second in range(5):
        sampler._samples.append(LoadSample(100.0 + second, {0: EngineLoad(second / 10, second, None)}))
    assert sampler.as_json(101.0, 103.0)["peak"] == 0.3
    assert sampler.as_json(101.0, 103.0)["average"] == pytest.approx(0.2)
    assert [sample.as_json(101.0) for sample in sampler.samples(101.0, 102.0)] == [
        {"time_s": 0.0, "kv_cache_usage": {"0": 0.1}, "running": {"0": 1}, "waiting": {"0": None}},
        {"time_s": 1.0, "kv_cache_usage": {"0": 0.2}, "running": {"0": 2}, "waiting": {"0": None}},
    ]
