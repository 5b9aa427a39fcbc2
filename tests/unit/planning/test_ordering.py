"""Send orders, lanes and what their caches do, against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ais_bench_prefix_cache.foundation.random_streams import RandomStream
from ais_bench_prefix_cache.planning.ordering import assigned_groups, send_order

GROUP = np.array([0, 0, 0, 1, 1, 2], dtype=np.int32)
LENGTH = np.array([30, 10, 20, 5, 5, 9], dtype=np.int64)


def order_of(strategy: Any) -> Any:
    return send_order(strategy, GROUP, LENGTH, RandomStream(42, "order")).tolist()


def test_sequential_keeps_the_generation_order() -> None:
    assert order_of("sequential") == [0, 1, 2, 3, 4, 5]


def test_interleave_takes_the_first_of_each_group_then_the_second() -> None:
    assert order_of("interleave") == [0, 3, 5, 1, 4, 2]


def test_input_len_asc_sorts_each_group_stably_and_rotates() -> None:
    assert order_of("input_len_asc") == [1, 3, 5, 2, 4, 0]


def test_interleave_is_numeric_for_more_than_ten_groups() -> None:
    group = np.repeat(np.arange(12, dtype=np.int32), 2)
    order = send_order("interleave", group, np.ones(24, dtype=np.int64), RandomStream(1, "order"))
    assert group[order].tolist() == [*range(12), *range(12)]


def test_shuffles_are_permutations_that_depend_on_the_stream_only() -> None:
    group, length = np.repeat(np.arange(3, dtype=np.int32), 50), np.ones(150, dtype=np.int64)
    for strategy in ("within_group_shuffle", "global_shuffle"):
        first, again, other = (
            send_order(strategy, group, length, RandomStream(seed, "order")).tolist() for seed in (1, 1, 2)
        )
        assert first == again != other
        assert sorted(first) == list(range(150)) != first
        is_group_after_group = group[first].tolist() == group.tolist()
        assert is_group_after_group == (strategy == "within_group_shuffle")
        assert first[:50] != sorted(first[:50])


@pytest.mark.parametrize(
    "strategy", ["sequential", "within_group_shuffle", "interleave", "global_shuffle", "input_len_asc"]
)
def test_one_request(strategy: str) -> None:
    order = send_order(
        strategy,  # type: ignore[arg-type]
        np.zeros(1, dtype=np.int32),
        np.ones(1, dtype=np.int64),
        RandomStream(1, "order"),
    )
    assert order.tolist() == [0]


def test_which_request_belongs_to_which_group_depends_on_the_seed() -> None:
    first, again, other = (assigned_groups((5, 0, 3), seed).tolist() for seed in (1, 1, 2))
    assert first == again != other
    assert sorted(first) == sorted(other) == [0] * 5 + [2] * 3
    assert assigned_groups((4,), 7).tolist() == [0] * 4
