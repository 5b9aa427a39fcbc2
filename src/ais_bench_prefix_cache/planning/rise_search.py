"""A local search for better places at which lanes raise their watermarks, for plans that are far from the bound.

The cheapest chain of each lane knows nothing of the other lanes, nor that a wanted hit may as well be made by another
request. Here a change of one lane is judged by what it does to the whole: by the smallest distance of the cumulative
hit rate from the target that the new limits of all requests allow.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ais_bench_prefix_cache.planning.lanes import Lanes
from ais_bench_prefix_cache.planning.plan import Int64Column
from ais_bench_prefix_cache.planning.quality import CurveDistance, smallest_curve_distance

SEARCH_WORK = 400_000
"""The most requests that are looked at, over all plans that are compared."""
NEIGHBOURS = 3
"""How many requests of its lane, to either side, a rise may move by at a time."""
LOOK_BACK = 16
"""How many requests of each lane before those that decide the distance may raise the watermark for them."""


def improve_rises(
    input_tokens: Int64Column,
    capacity: Int64Column,
    lanes: Lanes,
    hit_blocks: int,
    block_size: int,
    raised_to: Int64Column,
    wanted: Int64Column,
    smallest: float,
) -> Int64Column:
    """``raised_to`` (blocks; 0 for no rise) with changes that bring the distance down towards ``smallest``.

    The best change of those around the place that decides the distance is made, again and again, until none helps,
    :data:`SEARCH_WORK` is used up, or no more than half a block for each lane is left to be gained at that place.
    ``wanted``: the blocks that each request would hit if the watermark allowed it.
    """
    cumulative, margin = np.cumsum(input_tokens), max(lanes.count, 2) / 2 * block_size

    def reachable(levels: Int64Column) -> CurveDistance:
        before = lanes.previous(lanes.running_max(levels))
        low, high = np.where(levels > before, before, 0), np.minimum(capacity, before)
        if int(low.sum()) > hit_blocks or int(high.sum()) < hit_blocks:
            return CurveDistance(1.0, -1, capacity.size - 1, capacity.size - 1)
        return smallest_curve_distance(input_tokens, low, high, hit_blocks, block_size)

    best = reachable(raised_to)
    work = SEARCH_WORK // capacity.size
    while (best.distance - smallest) * int(cumulative[best.place]) > margin:
        found = None
        for places, levels in _changes(capacity, lanes, raised_to, wanted, best):
            work -= 1
            if work < 0:
                break
            changed = raised_to.copy()
            changed[places] = levels
            result = reachable(changed)
            if result.distance < best.distance:
                best, found = result, changed
        if found is None:
            break
        raised_to = found
    return raised_to


def _changes(
    capacity: Int64Column, lanes: Lanes, raised_to: Int64Column, wanted: Int64Column, binding: CurveDistance
) -> Iterator[tuple[list[int], list[int]]]:
    """Changes of one rise near the requests that decide the distance.

    Leave it out, raise by all that fits or only so far that the next rise hits no more than is wanted, move it, or a
    new one. Each is a list of requests and one of the levels to which they raise their lane's watermark.
    """
    for start, end in zip(lanes.starts[:-1].tolist(), lanes.starts[1:].tolist(), strict=True):
        members = lanes.by_lane[start:end]
        first = max(0, int(np.searchsorted(members, binding.first, side="right")) - LOOK_BACK)
        last = int(np.searchsorted(members, binding.last, side="right"))
        levels = raised_to[members].tolist()
        mark = max(levels[:first], default=0)
        for place in range(first, last):
            request, cap, level = int(members[place]), int(capacity[members[place]]), levels[place]
            if level > mark:
                yield [request], [0]
                if cap > level:
                    yield [request], [cap]
                following = next((later for later in range(place + 1, members.size) if levels[later] > level), None)
                if following is not None and mark < (less := int(wanted[members[following]])) < level:
                    yield [request], [less]
                    yield [request], [(less + level) // 2]
                for other in members[max(0, place - NEIGHBOURS) : place + NEIGHBOURS + 1].tolist():
                    if other != request and capacity[other] >= level:
                        yield [request, other], [0, level]
                mark = level
            elif cap > mark:
                yield [request], [cap]
                level = next((later for later in levels[place + 1 :] if later > mark), 0)
                if mark < level < cap:
                    yield [request], [level]
