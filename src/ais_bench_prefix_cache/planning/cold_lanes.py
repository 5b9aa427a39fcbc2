"""The cold planners for any number of requests: fix when each lane's watermark rises, then hand out the hits.

In cold mode ``hit = min(shared, watermark)``, so a request that raises the watermark hits exactly the old watermark.
That couples the requests of a lane. Two passes take the coupling away:

1. Hand out hits as if every request could hit up to ``min(cap, largest earlier cap)`` and raised the watermark anyway.
2. From the hits so wanted choose the requests that raise the watermark: for each lane the chain of rises that costs
   least, and where all lanes together are then far from the bound, better places by a local search. Then every limit is
   known: raising requests hit exactly the watermark, the others up to ``min(cap, watermark)``; and the hits are handed
   out again within those limits.

Words, all in blocks: ``wanted`` is what a request hits after the first pass; ``raised_to`` the level to which it raises
its lane's watermark (0: it does not); its ``surplus`` how much more a raising request hits than is wanted; ``leads``
how far a lane's hits are ahead of its own rate; ``play`` how far all lanes together may leave the band of the bound.

What this costs is measured in ``docs/planning.md``.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from ais_bench_prefix_cache.planning.allocation import follow_lane_goals, lane_goals
from ais_bench_prefix_cache.planning.lanes import Lanes
from ais_bench_prefix_cache.planning.plan import Int64Column
from ais_bench_prefix_cache.planning.quality import (
    ROUNDING,
    settled,
    smallest_curve_distance,
    smallest_possible_distance,
)
from ais_bench_prefix_cache.planning.rise_search import improve_rises

CANDIDATES = 64
"""How many requests are compared for each level of a watermark; bounds the time of a lane."""
PLAY = 0.7
"""Blocks, times the square root of the number of lanes, by which all lanes together may leave the band of the bound.

Each lane rounds to whole blocks by itself; the sum of such errors has a standard deviation of ``sqrt(lanes / 12)``
blocks. With less play lanes would be pushed away from their own rates to correct them."""


@dataclass(frozen=True, eq=False)
class Watermarks:
    """Per request in send order, in blocks: the lane's watermark before and after it, and whether it rises there."""

    before: Int64Column
    after: Int64Column
    rises: npt.NDArray[np.bool_]


def plan_lanes(
    input_tokens: Int64Column,
    capacity: Int64Column,
    limits: Int64Column,
    lanes: Lanes,
    hit_blocks: int,
    block_size: int,
    play: float = PLAY,
) -> tuple[Int64Column, bool]:
    """Shared blocks per request whose hits add up to exactly ``hit_blocks``, and whether both passes succeeded.

    ``limits`` are those of :func:`~ais_bench_prefix_cache.planning.reachability.cold_hit_limits`, and ``hit_blocks``
    must be reachable. Where the second pass finds no room for its watermarks, the watermarks of a
    first-come plan are used instead, which always have room.
    """
    distance = smallest_possible_distance(input_tokens, limits, hit_blocks, block_size)
    wanted = _wanted(input_tokens, limits, lanes, hit_blocks, block_size, distance, play)
    watermarks = _needed_watermarks(input_tokens, wanted, capacity, lanes)
    raised_to = np.where(watermarks.rises, watermarks.after, 0)
    del watermarks  # of ten million requests every column takes 80 MB
    raised_to = improve_rises(input_tokens, capacity, lanes, hit_blocks, block_size, raised_to, wanted, distance)
    watermarks = _watermarks(raised_to, lanes)
    succeeded = int(watermarks.before[watermarks.rises].sum()) <= hit_blocks
    if not succeeded:
        watermarks = _first_come_watermarks(capacity, lanes, hit_blocks)
    high = np.minimum(capacity, watermarks.before)
    low = np.where(watermarks.rises, watermarks.before, 0)
    goals = _goals_around_rises(lanes, wanted, low)
    rises, risen_to = watermarks.rises, watermarks.after
    del watermarks, wanted, raised_to
    distance = max(distance, smallest_curve_distance(input_tokens, low, high, hit_blocks, block_size).distance)
    floor, ceiling = _tolerance(input_tokens, hit_blocks, block_size, distance, lanes.count, play)
    hits = follow_lane_goals(lanes, goals, low, high, hit_blocks, floor, ceiling)
    return np.where(rises, risen_to, hits), succeeded


def _wanted(
    input_tokens: Int64Column,
    limits: Int64Column,
    lanes: Lanes,
    hit_blocks: int,
    block_size: int,
    distance: float,
    play: float,
) -> Int64Column:
    """The hits of the first pass."""
    floor, ceiling = _tolerance(input_tokens, hit_blocks, block_size, distance, lanes.count, play)
    nothing = np.broadcast_to(np.int64(0), limits.shape)
    goals = lane_goals(lanes, input_tokens, nothing, limits, hit_blocks)
    return follow_lane_goals(lanes, goals, nothing, limits, hit_blocks, floor, ceiling)


def _tolerance(
    input_tokens: Int64Column, hit_blocks: int, block_size: int, distance: float, lanes: int, play: float
) -> tuple[Int64Column, Int64Column]:
    """The global curves between which the cumulative hit blocks should stay.

    They lie the smallest distance from the target that is possible at all, and at most half a block for each lane;
    nothing is asked of the first tenth of the input, nor anything where the play is infinite.
    """
    if play == math.inf:
        return np.zeros_like(input_tokens), np.full_like(input_tokens, hit_blocks)
    inputs = np.cumsum(input_tokens).astype(np.float64)
    target = hit_blocks * block_size / float(inputs[-1])
    slack = np.maximum(inputs * (lanes / 2) / inputs[-1], min(lanes / 2, play * math.sqrt(lanes))) + ROUNDING
    floor = np.ceil((target - distance) * inputs / block_size - slack).astype(np.int64)
    ceiling = np.floor((target + distance) * inputs / block_size + slack).astype(np.int64)
    start = settled(input_tokens)
    floor[:start] = 0
    ceiling[:start] = hit_blocks
    return floor, ceiling


def _goals_around_rises(lanes: Lanes, wanted: Int64Column, low: Int64Column) -> Int64Column:
    """For each request: the blocks that its lane should have hit after it, where some must hit more than is wanted.

    A third of such a surplus puts the lane ahead of what it wants, the rest is saved before: a lane that is up to two
    blocks behind does not fall noticeably, but more than one ahead overshoots.
    """
    goals, forced = lanes.running_sum(wanted), lanes.running_sum(low)
    most = goals + np.maximum(low - wanted, 0) // 3
    return np.minimum(goals, forced + lanes.least_from_here(most - forced))


def _needed_watermarks(
    input_tokens: Int64Column, wanted: Int64Column, capacity: Int64Column, lanes: Lanes
) -> Watermarks:
    """The watermarks that let every request hit what it wants, raised where that costs least.

    ``wanted`` must be possible request by request: at most ``min(cap, largest earlier cap)``.
    """
    inputs = lanes.running_sum(input_tokens)
    rate = lanes.sums(wanted) / lanes.sums(input_tokens)
    lead = lanes.running_sum(wanted) - rate[lanes.lane] * inputs
    # Arrays, because lists of ten million numbers take four times the memory.
    wants, caps = (array("q", column[lanes.by_lane].tobytes()) for column in (wanted, capacity))
    leads, weights = (array("d", column[lanes.by_lane].tobytes()) for column in (lead, 1.0 / inputs))
    del inputs, lead
    level_after = np.zeros(wanted.size, dtype=np.int64)
    for start, end in zip(lanes.starts[:-1].tolist(), lanes.starts[1:].tolist(), strict=True):
        part = slice(start, end)
        for position, level in _cheapest_rises(wants[part], caps[part], leads[part], weights[part]):
            level_after[start + position] = level
    after = np.empty_like(level_after)
    after[lanes.by_lane] = level_after
    return _watermarks(after, lanes)


def _cheapest_rises(
    wants: array[int], caps: array[int], leads: array[float], weights: array[float]
) -> list[tuple[int, int]]:
    """Positions in one lane at which the watermark rises, and the levels to which it does.

    A level is a record of ``wants``: a hit larger than all before it. A request before the record can raise the
    watermark to it if its own capacity is that large. It then hits all that is cached, and that is the largest hit
    wanted so far: an earlier level, for which the same holds. So the rises form a chain of levels, and the cheapest
    chain is found level by level. A rise costs the ``surplus`` of its hit over what the request wants, and once more
    what puts the lane more than a block ahead of its rate (beside the ``leads`` that it has anyway), times the
    request's weight. Compared are the latest requests that could make the rise, and those that raise the watermark to
    an earlier level and could raise it further.
    """
    largest = array("q", accumulate(wants, max))
    if not largest[-1]:
        return []
    earlier_larger = _earlier_larger(caps)
    cost_of_level, rise_to = {0: 0.0}, {}
    chosen_so_far: list[tuple[float, int]] = []
    for record in _records(largest):
        level, position = largest[record], record - 1
        cheapest, chosen, compared = 0.0, -1, 0
        while position >= 0 and compared < CANDIDATES:
            if caps[position] < level:
                position = earlier_larger[position]
                continue
            cost = cost_of_level[largest[position]]
            surplus = largest[position] - wants[position]
            if surplus:
                cost += (surplus + max(0.0, leads[position] + surplus - 1)) * weights[position]
            if chosen < 0 or cost <= cheapest:  # of equals the earliest: fewer rises
                cheapest, chosen = cost, position
            compared += 1
            if not cost:
                break
            position -= 1
        while chosen_so_far and caps[chosen_so_far[0][1]] < level:
            heappop(chosen_so_far)
        if chosen_so_far and chosen_so_far[0][0] <= cheapest:
            cheapest, chosen = chosen_so_far[0]
        else:
            heappush(chosen_so_far, (cheapest, chosen))
        cost_of_level[level], rise_to[level] = cheapest, chosen

    rises, level = [], largest[-1]
    while level:
        rises.append((rise_to[level], level))
        level = largest[rise_to[level]]
    return rises


def _records(largest: Sequence[int]) -> list[int]:
    """Where a running maximum that begins at 0 grows."""
    return [place for place in range(1, len(largest)) if largest[place] > largest[place - 1]]


def _earlier_larger(caps: Sequence[int]) -> array[int]:
    """For each position the nearest earlier one with a larger capacity, or -1: those between are no candidates."""
    found, stack = array("q"), [-1]
    for position, cap in enumerate(caps):
        while len(stack) > 1 and caps[stack[-1]] <= cap:
            stack.pop()
        found.append(stack[-1])
        stack.append(position)
    return found


def _first_come_watermarks(capacity: Int64Column, lanes: Lanes, hit_blocks: int) -> Watermarks:
    """The first requests in send order raise their lane's watermark to all they can, the later ones never.

    As few as possible do: with one less, the later requests could not hit enough. So the raising ones, which hit all
    that is cached before them, never hit too much.
    """

    def first_come(raising: int) -> Watermarks:
        after = capacity.copy()
        after[raising:] = 0
        return _watermarks(after, lanes)

    fewest, enough = 0, int(capacity.size)
    while fewest < enough:
        middle = (fewest + enough) // 2
        if int(np.minimum(capacity, first_come(middle).before).sum()) >= hit_blocks:
            enough = middle
        else:
            fewest = middle + 1
    return first_come(enough)


def _watermarks(raised_to: Int64Column, lanes: Lanes) -> Watermarks:
    after = lanes.running_max(raised_to)
    before = lanes.previous(after)
    return Watermarks(before, after, after > before)
