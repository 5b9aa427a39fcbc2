"""Which request belongs to which group, and the order in which requests are sent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ais_bench_prefix_cache.foundation.random_streams import RandomStream
from ais_bench_prefix_cache.planning.plan import Int32Column, Int64Column
from ais_bench_prefix_cache.scenario.model import OrderStrategy


def assigned_groups(counts: Sequence[int], random_seed: int) -> Int32Column:
    """The group of each request in generation order: ``counts`` of each, shuffled by a stream of the seed."""
    groups = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    return groups[RandomStream(random_seed, "groups").permutation(groups.size)]


def send_order(
    strategy: OrderStrategy, group: Int32Column, input_tokens: Int64Column, stream: RandomStream
) -> Int64Column:
    """The generation indices of the requests in send order.

    ``group`` and ``input_tokens`` are in generation order. ``sequential`` keeps that order. ``within_group_shuffle``
    shuffles each group and emits group after group. ``interleave`` rotates over the groups in numeric order: the
    first request of each, the second of each, … ``global_shuffle`` shuffles everything. ``input_len_asc`` sorts each
    group by input length (stable) and rotates like ``interleave``.
    """
    count = group.size
    if strategy == "sequential":
        return np.arange(count, dtype=np.int64)
    if strategy == "global_shuffle":
        return stream.permutation(count)
    if strategy == "within_group_shuffle":
        return np.asarray(np.lexsort((stream.words(count), group)), dtype=np.int64)
    by_group = np.argsort(group, kind="stable") if strategy == "interleave" else np.lexsort((input_tokens, group))
    occurrence = occurrence_in_group(group[by_group])
    return np.asarray(by_group[np.lexsort((group[by_group], occurrence))], dtype=np.int64)


def occurrence_in_group(group: Int32Column) -> Int64Column:
    """For each request in the given order: how many of its group come before it."""
    count = group.size
    by_group = np.argsort(group, kind="stable")
    ordered = group[by_group]
    is_start = np.ones(count, dtype=bool)
    is_start[1:] = ordered[1:] != ordered[:-1]
    places = np.arange(count, dtype=np.int64)
    position = np.empty(count, dtype=np.int64)
    position[by_group] = places - np.maximum.accumulate(np.where(is_start, places, 0))
    return position
