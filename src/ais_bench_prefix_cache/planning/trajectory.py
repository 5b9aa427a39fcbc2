"""The check of a cold plan's trajectory: does any lane's cumulative hit rate fall back or overshoot?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.names import group_name
from ais_bench_prefix_cache.planning.lanes import Lanes
from ais_bench_prefix_cache.planning.plan import Int64Column

LISTED_ISSUES = 50
"""The most issues that are listed; the others are only counted."""


def check_trajectory(
    input_tokens: Int64Column, hit_tokens: Int64Column, lanes: Lanes, block_size: int
) -> tuple[tuple[Mapping[str, Any], ...], int]:
    """Issues of a cold plan, and how many requests have one.

    Listed is at most one issue of each code per lane, and :data:`LISTED_ISSUES` in all.

    Hits come in whole blocks, so after the cumulative lane input ``P`` a rate is known up to one block: it lies in
    ``[(hits - B) / P, (hits + B) / P]``. A rate *falls* where its whole interval lies below that of an earlier request
    of the lane (the historic peak). It *overshoots* where its whole interval lies above both the rate of the whole plan
    and the final rate of its lane: a lane must exceed the target where others cannot reach it.
    """
    inputs = lanes.running_sum(input_tokens)[lanes.by_lane]
    hits = lanes.running_sum(hit_tokens)[lanes.by_lane]
    sizes, ends = lanes.sizes, lanes.starts[1:] - 1
    rate, lowest, highest = hits / inputs, (hits - block_size) / inputs, (hits + block_size) / inputs
    peak = _segmented_maximum(lowest, lanes)
    goal = np.repeat(np.maximum(rate[ends], int(hit_tokens.sum()) / int(input_tokens.sum())), sizes)
    falls, overshoots = highest < peak, lowest > goal

    found = [
        *_first_per_lane(Code.CUMULATIVE_RATE_FALLS, falls, peak - highest, rate, peak, "peak_hit_rate", lanes),
        *_first_per_lane(
            Code.CUMULATIVE_RATE_OVERSHOOTS, overshoots, lowest - goal, rate, goal, "goal_hit_rate", lanes
        ),
    ]
    found.sort(key=lambda issue: -issue["largest_excess"])
    return tuple(found[:LISTED_ISSUES]), int((falls | overshoots).sum())


def _segmented_maximum(column: npt.NDArray[np.float64], lanes: Lanes) -> npt.NDArray[np.float64]:
    """The running maximum of each lane, of a column in lane order.

    Ranks replace the numbers, because integers can be raised lane by lane without rounding.
    """
    order = np.argsort(column, kind="stable")
    rank = np.empty(column.size, dtype=np.int64)
    rank[order] = np.arange(column.size)
    floor = np.repeat(np.arange(lanes.count, dtype=np.int64) * column.size, lanes.sizes)
    leader = order[np.maximum.accumulate(rank + floor) - floor]
    return np.asarray(column[leader], dtype=np.float64)


def _first_per_lane(
    code: Code,
    flagged: npt.NDArray[np.bool_],
    excess: npt.NDArray[np.float64],
    rate: npt.NDArray[np.float64],
    reference: npt.NDArray[np.float64],
    reference_name: str,
    lanes: Lanes,
) -> list[Mapping[str, Any]]:
    """The first flagged request of each lane, with the number of flagged ones and their largest excess."""
    places = np.flatnonzero(flagged)
    if not places.size:
        return []
    lane_of = lanes.lane[lanes.by_lane[places]]
    first = np.concatenate(([0], np.flatnonzero(lane_of[1:] != lane_of[:-1]) + 1))
    counts = np.diff(np.append(first, places.size))
    largest = np.maximum.reduceat(excess[places], first)
    issues: list[Mapping[str, Any]] = []
    for place, lane, count, above in zip(places[first], lane_of[first], counts, largest, strict=True):
        issues.append(
            {
                "code": code.value,
                "group": group_name(int(lanes.group[lane])),
                "dp_rank": int(lanes.dp_rank[lane]),
                "position": int(place - lanes.starts[lane]),
                "sequence_index": int(lanes.by_lane[place]),
                "cumulative_hit_rate": float(rate[place]),
                reference_name: float(reference[place]),
                "requests": int(count),
                "largest_excess": float(above),
            }
        )
    return issues
