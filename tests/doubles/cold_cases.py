"""Cold requests for planning tests, and the best that any plan can do for them, found without the planner."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ais_bench_prefix_cache.planning.lanes import Lanes, build_lanes, cold_ranks
from ais_bench_prefix_cache.planning.ordering import occurrence_in_group
from ais_bench_prefix_cache.planning.reachability import cold_hit_limits, prefix_capacities

BLOCK = 4


@dataclass(frozen=True)
class ColdCase:
    inputs: npt.NDArray[np.int64]
    capacity: npt.NDArray[np.int64]
    lanes: Lanes
    limits: npt.NDArray[np.int64]

    def simulate(self, shared: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Hits of shared blocks, by the definition."""
        watermark = [0] * self.lanes.count
        hits = []
        for lane, blocks in zip(self.lanes.lane.tolist(), shared.tolist(), strict=True):
            hits.append(min(blocks, watermark[lane]))
            watermark[lane] = max(watermark[lane], blocks)
        return np.array(hits, dtype=np.int64)


def cold_case(lengths: list[int], groups: list[int], dp_size: int) -> ColdCase:
    inputs, group = np.array(lengths, dtype=np.int64), np.array(groups, dtype=np.int32)
    capacity = prefix_capacities(inputs, BLOCK, BLOCK)
    lanes = build_lanes(group, cold_ranks(occurrence_in_group(group), dp_size), dp_size)
    return ColdCase(inputs, capacity, lanes, cold_hit_limits(capacity, lanes))


def distances(case: ColdCase, hits: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The largest distance of each plan's cumulative rate from its final one, after a tenth of the input.

    ``hits``: blocks, of shape [plans, N].
    """
    inputs = np.cumsum(case.inputs)
    counts = inputs >= inputs[-1] / 10
    rates = np.cumsum(hits, axis=1) * BLOCK / inputs
    largest: npt.NDArray[np.float64] = np.abs(rates - rates[:, -1:])[:, counts].max(axis=1)
    return largest


def seeded_cases(
    number: int, ascending: bool, largest: int, capacity: int, lanes: int
) -> Iterator[tuple[ColdCase, int]]:
    """Cases with a total: even lengths, two kinds of lengths, a few long ones among many short, and three steps."""
    rng = random.Random(f"{number}{ascending}{largest}{capacity}{lanes}")
    for _ in range(number):
        size, longest = rng.randint(2, largest), BLOCK * rng.randint(2, capacity)
        short, kind = BLOCK * max(1, longest // (8 * BLOCK)), rng.randrange(4)
        lengths = [
            (
                rng.randint(1, longest),
                rng.choice([rng.randint(1, short), rng.randint(longest // 2, longest)]),
                max(1, int(longest * rng.random() ** 4)),
                rng.choice([2 * BLOCK, longest // 3 + 1, longest]),
            )[kind]
            for _ in range(size)
        ]
        if ascending:
            lengths.sort()
        groups = rng.randint(1, lanes)
        case = cold_case(lengths, [rng.randrange(groups) for _ in range(size)], 1)
        yield case, round(rng.random() * int(case.limits.sum()))


def optimal_distance(case: ColdCase, hit_blocks: int, known: float, precision: float = 1e-6) -> float:
    """The smallest distance of all plans whose total is ``hit_blocks``, to ``precision``; ``known`` is one of them.

    It follows every plan at once: for each combination of the lanes' watermarks the cumulative hits that can have been
    reached, as the bits of one integer. A distance is possible if a plan can stay within it to the end.
    """
    inputs = np.cumsum(case.inputs).tolist()
    target = hit_blocks * BLOCK / inputs[-1]

    def possible(distance: float) -> bool:
        reached = {(0,) * case.lanes.count: 1}
        for lane, most, tokens in zip(case.lanes.lane.tolist(), case.capacity.tolist(), inputs, strict=True):
            floor, ceiling = 0, hit_blocks
            if tokens * 10 >= inputs[-1]:
                floor = max(floor, math.ceil((target - distance) * tokens / BLOCK - 1e-9))
                ceiling = min(ceiling, math.floor((target + distance) * tokens / BLOCK + 1e-9))
            if ceiling < floor:
                return False
            band = (1 << (ceiling + 1)) - (1 << floor)
            step: dict[tuple[int, ...], int] = {}
            for marks, totals in reached.items():
                mark = marks[lane]
                below = _up_to(totals, min(most, mark)) & band
                if below:
                    step[marks] = step.get(marks, 0) | below
                raised = (totals << mark) & band
                for level in range(mark + 1, most + 1) if raised else ():
                    higher = (*marks[:lane], level, *marks[lane + 1 :])
                    step[higher] = step.get(higher, 0) | raised
            reached = step
        return any(totals >> hit_blocks & 1 for totals in reached.values())

    low, high = 0.0, known
    if possible(low):
        return low
    if not possible(high - precision):
        return high
    while high - low > precision:
        middle = (low + high) / 2
        low, high = (low, middle) if possible(middle) else (middle, high)
    return high


def _up_to(totals: int, most: int) -> int:
    """``totals``, each with 0 … ``most`` added."""
    span = 1
    while span * 2 <= most + 1:
        totals |= totals << span
        span *= 2
    return totals | totals << (most + 1 - span)
