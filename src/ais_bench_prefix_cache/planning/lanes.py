"""Lanes: the (group, data-parallel rank) pairs that build up a cache of their own in cold mode."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ais_bench_prefix_cache.planning.plan import Int32Column, Int64Column


@dataclass(frozen=True, eq=False)
class Lanes:
    """The lanes that hold at least one request, numbered in the order (group, rank).

    ``lane``: each request's lane number, in send order. ``by_lane``: the requests' positions in send order, lane
    after lane and in send order within a lane. ``starts``: where each lane begins in ``by_lane``, with N at the end.
    ``group`` and ``dp_rank``: per lane.
    """

    lane: Int64Column
    by_lane: Int64Column
    starts: Int64Column
    group: Int64Column
    dp_rank: Int64Column

    @property
    def count(self) -> int:
        return int(self.group.size)

    @property
    def sizes(self) -> Int64Column:
        """Requests per lane."""
        return np.diff(self.starts)

    def sums(self, column: Int64Column) -> Int64Column:
        """The sum of ``column`` (in send order) over each lane."""
        return np.add.reduceat(column[self.by_lane], self.starts[:-1])

    def running_sum(self, column: Int64Column) -> Int64Column:
        """For each request in send order: the sum of ``column`` over its lane up to and including it."""
        ordered = np.cumsum(column[self.by_lane])
        before = np.concatenate(([0], ordered[self.starts[1:-1] - 1]))
        return self._to_send_order(ordered - np.repeat(before, self.sizes))

    def running_max(self, column: Int64Column) -> Int64Column:
        """For each request in send order: the maximum of ``column`` over its lane up to and including it.

        ``column`` must not be negative. Lanes are kept apart by raising each above everything in the one before.
        """
        step = int(column.max(initial=0)) + 1
        floor = np.repeat(np.arange(self.count, dtype=np.int64) * step, self.sizes)
        return self._to_send_order(np.maximum.accumulate(column[self.by_lane] + floor) - floor)

    def least_from_here(self, column: Int64Column) -> Int64Column:
        """For each request in send order: the minimum of ``column`` over its lane from it to the end."""
        step = int(column.max(initial=0)) - int(column.min(initial=0)) + 1
        floor = np.repeat(np.arange(self.count, dtype=np.int64) * step, self.sizes)
        return self._to_send_order(np.minimum.accumulate((column[self.by_lane] + floor)[::-1])[::-1] - floor)

    def previous(self, column: Int64Column) -> Int64Column:
        """For each request in send order: ``column`` of the request before it in its lane, 0 for the first."""
        ordered = column[self.by_lane]
        shifted = np.empty_like(ordered)
        shifted[1:] = ordered[:-1]
        shifted[self.starts[:-1]] = 0
        return self._to_send_order(shifted)

    def _to_send_order(self, ordered: Int64Column) -> Int64Column:
        column = np.empty_like(ordered)
        column[self.by_lane] = ordered
        return column


def cold_ranks(occurrence_in_group: Int64Column, dp_size: int) -> Int32Column:
    """Round robin within each group: its n-th request in send order goes to rank ``n mod dp_size``."""
    return (occurrence_in_group % dp_size).astype(np.int32)


def build_lanes(group: Int32Column, dp_rank: Int32Column, dp_size: int) -> Lanes:
    """The lanes of requests that are given in send order (at least one request)."""
    key = group.astype(np.int64) * dp_size + dp_rank
    by_lane = np.argsort(key, kind="stable").astype(np.int64)
    ordered = key[by_lane]
    first = np.concatenate(([0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1)).astype(np.int64)
    starts = np.append(first, ordered.size)
    lane = np.empty_like(by_lane)
    lane[by_lane] = np.repeat(np.arange(first.size, dtype=np.int64), np.diff(starts))
    return Lanes(lane, by_lane, starts, ordered[first] // dp_size, ordered[first] % dp_size)
