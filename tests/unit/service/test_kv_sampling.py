"""Sampling the KV-cache usage: sums and peaks only, never an error, never after the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import pytest

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ServiceError
from ais_bench_prefix_cache.service.kv_sampling import KvSampler


def sampled(sample: Callable[[], Mapping[int, float]], until: Callable[[KvSampler], bool]) -> KvSampler:
    sampler = KvSampler(sample, 0.005)
    with sampler:
        deadline = time.monotonic() + 10
        while not until(sampler) and time.monotonic() < deadline:
            time.sleep(0.002)
    return sampler


def test_average_and_peak_per_rank_and_globally() -> None:
    values = iter([{0: 0.1, 1: 0.3}, {0: 0.5, 1: 0.3}, {0: 0.3}])
    finished = threading.Event()

    def sample() -> Mapping[int, float]:
        try:
            return next(values)
        except StopIteration:
            finished.wait()
            return {}

    sampler = KvSampler(sample, 0.001)
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
    def sample() -> Mapping[int, float]:
        raise ServiceError.of(Code.TIMEOUT, "url", "silent")

    document = sampled(sample, lambda sampler: sampler.as_json()["errors"] >= 3).as_json()
    assert document["errors"] >= 3
    assert (document["samples"], document["average"], document["peak"], document["by_dp"]) == (0, None, None, {})


def test_nothing_is_sampled_after_the_end() -> None:
    calls: list[float] = []

    def sample() -> Mapping[int, float]:
        calls.append(time.monotonic())
        return {0: 0.5}

    sampled(sample, lambda sampler: sampler.as_json()["samples"] >= 2)
    time.sleep(0.05)
    count = len(calls)
    time.sleep(0.05)
    assert len(calls) == count


def test_an_interval_of_zero_switches_sampling_off() -> None:
    def sample() -> Mapping[int, float]:
        raise AssertionError("sampled")

    with KvSampler(sample, 0) as sampler:
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
