"""The check of a cold plan's trajectory: does any lane's cumulative hit rate fall back or overshoot?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.names import group_name
from ais_bench_prefix_cache.planning.lanes import Lanes
from ais_bench_prefix_cache.planning.plan import Int64Column

LISTED_ISSUES = 50
"""The most issues that are listed; the others are only counted."""


class TrajectoryCheck(NamedTuple):
    """The issues of a cold plan; at most one of each code per lane and :data:`LISTED_ISSUES` in all are listed.

    ``issue_count``: requests that have one. ``largest_step``: how far the worst of them is from the peak or the goal.
    """

    issues: tuple[Mapping[str, Any], ...]
    issue_count: int
    largest_step: float


def clear_step(input_tokens: Int64Column, block_size: int) -> float:
    """What one block of the smallest request explains: a step of the hit rate counts only when it is larger."""
    return block_size / int(input_tokens.min())


def check_trajectory(
    input_tokens: Int64Column, hit_tokens: Int64Column, lanes: Lanes, block_size: int
) -> TrajectoryCheck:
    """Clear falls and overshoots of each lane's cumulative hit rate.

    Hits come in whole blocks, so after the cumulative lane input ``P`` a rate is known up to one block: it lies in
    ``[(hits - B) / P, (hits + B) / P]``. A rate *falls* where its whole interval lies below that of an earlier request
    of the lane (the historic peak). It *overshoots* where its whole interval lies above both the rate of the whole plan
    and the final rate of its lane: a lane must exceed the target where others cannot reach it. Either is *clear*, and
    counts, where the step from the peak or the goal is larger than :func:`clear_step`.
    """
    inputs = lanes.running_sum(input_tokens)[lanes.by_lane]
    hits = lanes.running_sum(hit_tokens)[lanes.by_lane]
    sizes, ends = lanes.sizes, lanes.starts[1:] - 1
    rate, lowest, highest = hits / inputs, (hits - block_size) / inputs, (hits + block_size) / inputs
    del inputs, hits
    peak = _segmented_maximum(rate, lanes)
    goal = np.repeat(np.maximum(rate[ends], int(hit_tokens.sum()) / int(input_tokens.sum())), sizes)
    clear = clear_step(input_tokens, block_size)
    falls = (highest < _segmented_maximum(lowest, lanes)) & (peak - rate > clear)
    overshoots = (lowest > goal) & (rate - goal > clear)

    found = [
        *_first_per_lane(Code.CUMULATIVE_RATE_FALLS, falls, peak - rate, rate, peak, "peak_hit_rate", lanes),
        *_first_per_lane(Code.CUMULATIVE_RATE_OVERSHOOTS, overshoots, rate - goal, rate, goal, "goal_hit_rate", lanes),
    ]
    found.sort(key=lambda issue: -issue["largest_step"])
    return TrajectoryCheck(
        tuple(found[:LISTED_ISSUES]),
        int((falls | overshoots).sum()),
        max((issue["largest_step"] for issue in found), default=0.0),
    )


def _segmented_maximum(column: npt.NDArray[np.float64], lanes: Lanes) -> npt.NDArray[np.float64]:
    """The running maximum of each lane, of a column in lane order.

    Ranks replace the numbers, because integers can be raised lane by lane without rounding.
    """
    order = np.argsort(column, kind="stable")
    rank = np.empty(column.size, dtype=np.int64)
    rank[order] = np.arange(column.size)
    floor = np.repeat(np.arange(lanes.count, dtype=np.int64) * column.size, lanes.sizes)
    rank += floor
    np.maximum.accumulate(rank, out=rank)
    rank -= floor
    del floor
    return np.asarray(column[order[rank]], dtype=np.float64)


def _first_per_lane(
    code: Code,
    flagged: npt.NDArray[np.bool_],
    step: npt.NDArray[np.float64],
    rate: npt.NDArray[np.float64],
    reference: npt.NDArray[np.float64],
    reference_name: str,
    lanes: Lanes,
) -> list[Mapping[str, Any]]:
    """The first flagged request of each lane, with the number of flagged ones and their largest step."""
    places = np.flatnonzero(flagged)
    if not places.size:
        return []
    lane_of = lanes.lane[lanes.by_lane[places]]
    first = np.concatenate(([0], np.flatnonzero(lane_of[1:] != lane_of[:-1]) + 1))
    counts = np.diff(np.append(first, places.size))
    largest = np.maximum.reduceat(step[places], first)
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
                "largest_step": float(above),
            }
        )
    return issues
