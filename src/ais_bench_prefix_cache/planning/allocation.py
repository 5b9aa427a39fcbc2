"""Handing out hit blocks to requests so that the cumulative hits follow the cumulative input.

A *curve* is a cumulative count of blocks per request. All curves are integers, and every total is exact.
"""

from __future__ import annotations

import numpy as np

from ais_bench_prefix_cache.planning.lanes import Lanes
from ais_bench_prefix_cache.planning.plan import Int64Column

_INT64_SAFE = 1 << 62
_CHUNK = 1 << 16
"""Requests whose numbers are Python objects at one time."""


def proportional_curve(total: int, cumulative: Int64Column) -> Int64Column:
    """``total * cumulative / cumulative[-1]``, each rounded to the nearest integer (one half up)."""
    whole = int(cumulative[-1])
    if total * whole < _INT64_SAFE // 4:
        return (2 * total * cumulative + whole) // (2 * whole)
    return np.array([(2 * total * part + whole) // (2 * whole) for part in cumulative.tolist()], dtype=np.int64)


def allocate_warm(input_tokens: Int64Column, capacity: Int64Column, hit_blocks: int) -> Int64Column:
    """Hit blocks per request of a warm cache; they add up to ``hit_blocks`` (at most the sum of the capacities).

    After every request the cumulative hits are the nearest integer to their share of the cumulative input. Where a
    capacity does not allow that, later requests catch up as soon as they can; only where they could not, earlier
    requests take more, as late as possible.

    With the wanted curve ``T`` (never falling) and the cumulative capacities ``M``, the recursion
    ``C[k] = min(T[k], C[k-1] + cap[k])`` has the closed form ``C[k] = M[k] + min(0, min(T[j] - M[j] for j <= k))``.
    """
    ceiling = np.cumsum(capacity)
    needed = hit_blocks - (int(ceiling[-1]) - ceiling)
    wanted = np.maximum(proportional_curve(hit_blocks, np.cumsum(input_tokens)), needed)
    curve = ceiling + np.minimum(np.minimum.accumulate(wanted - ceiling), 0)
    return np.diff(curve, prepend=0)


def share_among_lanes(input_tokens: Int64Column, low: Int64Column, high: Int64Column, hit_blocks: int) -> Int64Column:
    """Hit blocks per lane: in proportion to its input tokens, within ``low`` … ``high``; the total is exact.

    Lanes that cannot take their part take what they can, and the others share the rest in proportion (water
    filling): lane ``l`` gets ``clip(rate * input[l], low[l], high[l])`` with one rate for all, and the rounding is
    settled cumulatively over the lanes.
    """
    tokens = input_tokens.astype(np.float64)
    lower_rate, upper_rate = 0.0, 1.0
    for _ in range(60):
        rate = (lower_rate + upper_rate) / 2
        if int(np.clip((rate * tokens).astype(np.int64) + 1, low, high).sum()) < hit_blocks:
            lower_rate = rate
        else:
            upper_rate = rate
    at_least = np.clip((lower_rate * tokens).astype(np.int64), low, high)
    at_most = np.clip((upper_rate * tokens).astype(np.int64) + 1, low, high)
    missing = hit_blocks - int(at_least.sum())
    return at_least + allocate_warm(np.ones_like(at_least), at_most - at_least, missing)


def follow_lane_goals(
    lanes: Lanes,
    goals: Int64Column,
    low: Int64Column,
    high: Int64Column,
    hit_blocks: int,
    floor: Int64Column,
    ceiling: Int64Column,
) -> Int64Column:
    """Hit blocks per request within ``low`` … ``high``; the total is exactly ``hit_blocks``.

    ``goals``: what the request's lane should have hit after it; each lane keeps as close to its goals as its limits
    allow. All lanes together stay between the global curves ``floor`` and ``ceiling`` as far as the limits allow, also
    where that leads a lane away from its goals; what the curves ask for later is collected in time. Neither outweighs
    the exact total. Needs ``sum(low) <= hit_blocks <= sum(high)``.
    """
    high_sum, low_sum = np.cumsum(high), np.cumsum(low)
    floor = high_sum + np.maximum.accumulate((floor - high_sum)[::-1])[::-1]
    ceiling = low_sum + np.minimum.accumulate((ceiling - low_sum)[::-1])[::-1]
    # Outside of these the later requests could not end at the total; between them one step always leads on.
    least = hit_blocks - (int(high_sum[-1]) - high_sum)
    most = hit_blocks - (int(low_sum[-1]) - low_sum)
    del high_sum, low_sum
    floor = np.minimum(np.maximum(floor, least), most)
    ceiling = np.maximum(np.minimum(ceiling, most), least)
    del least, most
    return _follow(lanes.lane, lanes.count, goals, low, high, floor, ceiling)


def lane_goals(
    lanes: Lanes, input_tokens: Int64Column, low: Int64Column, high: Int64Column, hit_blocks: int
) -> Int64Column:
    """For each request: the blocks that its lane should have hit after it, in proportion to the lane's input.

    A lane never falls so far behind, or gets so far ahead, that its later requests could not end at its total.
    """
    lane_totals = share_among_lanes(lanes.sums(input_tokens), lanes.sums(low), lanes.sums(high), hit_blocks)
    lane_of = lanes.lane
    lane_input = lanes.running_sum(input_tokens)
    goals = _lane_proportions(lane_totals, lanes.sums(input_tokens), lane_of, lane_input)
    # What a lane must have, or may have at most, for the rest of its requests to end at its total.
    goals = np.maximum(goals, lane_totals[lane_of] - (lanes.sums(high)[lane_of] - lanes.running_sum(high)))
    return np.minimum(goals, lane_totals[lane_of] - (lanes.sums(low)[lane_of] - lanes.running_sum(low)))


def _follow(
    lane: Int64Column,
    lanes: int,
    goals: Int64Column,
    low: Int64Column,
    high: Int64Column,
    floor: Int64Column,
    ceiling: Int64Column,
) -> Int64Column:
    """One pass in send order. A plain loop: each step depends on the one before through two clippings."""
    reached = [0] * lanes
    total = 0
    hits = np.empty(goals.size, dtype=np.int64)
    for start in range(0, goals.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        columns = [column[part].tolist() for column in (lane, goals, low, high, floor, ceiling)]
        handed_out = []
        for number, goal, least, most, lowest, highest in zip(*columns, strict=True):
            wanted = goal - reached[number]
            hit = least if wanted < least else most if wanted > most else wanted
            if total + hit < lowest:
                hit = min(lowest - total, most)
            elif total + hit > highest:
                hit = max(highest - total, least)
            total += hit
            reached[number] += hit
            handed_out.append(hit)
        hits[part] = handed_out
    return hits


def _lane_proportions(
    lane_totals: Int64Column, lane_inputs: Int64Column, lane: Int64Column, running_input: Int64Column
) -> Int64Column:
    """Each request's share of its lane's total, rounded to the nearest integer (one half up)."""
    if int(lane_totals.max()) * int(lane_inputs.max()) < _INT64_SAFE // 4:
        total, whole = lane_totals[lane], lane_inputs[lane]
        return np.asarray((2 * total * running_input + whole) // (2 * whole), dtype=np.int64)
    totals, wholes = lane_totals.tolist(), lane_inputs.tolist()
    shares = [
        (2 * totals[number] * part + wholes[number]) // (2 * wholes[number])
        for number, part in zip(lane.tolist(), running_input.tolist(), strict=True)
    ]
    return np.array(shares, dtype=np.int64)
