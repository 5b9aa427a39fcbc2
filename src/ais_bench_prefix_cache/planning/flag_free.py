"""An exhaustive search for a cold plan whose trajectory has no clear fall and no clear overshoot.

The check of a trajectory looks at each lane by itself, so lanes meet only in the total of the hits: for each lane the
search finds every number of hits that some plan of the lane reaches without an issue, and then one number for each
lane, as near to its proportional part as possible, whose sum is the total. All plans of a lane are followed at once. Of
plans with the same hits and watermark only those are kept that no other beats in all that the check remembers: the
largest rate, the largest lower end of its interval, and the goal that the rates so far ask for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ais_bench_prefix_cache.planning.lanes import Lanes
from ais_bench_prefix_cache.planning.plan import Int64Column
from ais_bench_prefix_cache.planning.trajectory import clear_step

SEARCH_WORK = 300_000
"""The most continuations of plans that are looked at, over all lanes: about a second."""


class _Reached(NamedTuple):
    """A plan of the lane's first requests: what the check remembers of it, and the way back."""

    peak_lowest: float
    peak_rate: float
    asked_goal: float
    shared: int
    before: _Reached | None


def flag_free_plan(
    input_tokens: Int64Column, capacity: Int64Column, lanes: Lanes, goals: Int64Column, hit_blocks: int, block_size: int
) -> Int64Column | None:
    """Shared blocks per request without an issue, whose hits add up to ``hit_blocks``.

    ``goals``: each lane's proportional part, in blocks. None where there is no such plan, or where to look at all plans
    would be more than :data:`SEARCH_WORK`.
    """
    target = hit_blocks * block_size / int(input_tokens.sum())
    search = _Search(block_size, clear_step(input_tokens, block_size), target)
    plans: list[dict[int, _Reached]] = []
    for start, end in zip(lanes.starts[:-1].tolist(), lanes.starts[1:].tolist(), strict=True):
        members = lanes.by_lane[start:end]
        found = search.plans_of_lane(input_tokens[members].tolist(), capacity[members].tolist(), hit_blocks)
        if not found:
            return None
        plans.append(found)
    chosen = _nearest_sum([list(found) for found in plans], goals.tolist(), hit_blocks)
    if chosen is None:
        return None
    shared = np.zeros(input_tokens.size, dtype=np.int64)
    for number, (found, hits) in enumerate(zip(plans, chosen, strict=True)):
        members = lanes.by_lane[int(lanes.starts[number]) : int(lanes.starts[number + 1])]
        state: _Reached | None = found[hits]
        for request in members[::-1].tolist():
            assert state is not None
            shared[request], state = state.shared, state.before
    return shared


class _Search:
    """The plans of lanes of one data set; ``work`` is what is left of :data:`SEARCH_WORK`."""

    def __init__(self, block_size: int, clear: float, target: float) -> None:
        self.block_size = block_size
        self.clear = clear
        self.target = target
        self.work = SEARCH_WORK

    def plans_of_lane(self, inputs: list[int], capacity: list[int], most: int) -> dict[int, _Reached]:
        """For each number of hits up to ``most`` that can be reached without an issue: one plan. Empty without work."""
        states: dict[tuple[int, int], list[_Reached]] = {(0, 0): [_Reached(-1.0, -1.0, -1.0, 0, None)]}
        total = 0
        # A watermark above all that later requests can share is worth no more than their largest capacity.
        useful = [max(capacity[index + 1 :], default=0) for index in range(len(capacity))]
        for tokens, cap, level in zip(inputs, capacity, useful, strict=True):
            total += tokens
            following: dict[tuple[int, int], list[_Reached]] = {}
            for (hits, mark), reached in states.items():
                self.work -= len(reached) * (cap + 1)
                if self.work < 0:
                    return {}
                for shared in range(cap + 1):
                    reached_hits = hits + min(shared, mark)
                    if reached_hits > most:
                        break
                    if mark < shared and shared > max(level, mark + 1):
                        continue
                    key = reached_hits, max(mark, shared)
                    for state in reached:
                        self._add(following, key, state, shared, total)
            states = following
        found: dict[int, _Reached] = {}
        for (hits, _), reached in states.items():
            goal = max(hits * self.block_size / total, self.target)
            for state in reached:
                if state.asked_goal <= goal:
                    found.setdefault(hits, state)
        return found

    def _add(
        self,
        following: dict[tuple[int, int], list[_Reached]],
        key: tuple[int, int],
        state: _Reached,
        shared: int,
        total: int,
    ) -> None:
        hits = key[0] * self.block_size
        rate = hits / total
        if (hits + self.block_size) / total < state.peak_lowest and state.peak_rate - rate > self.clear:
            return
        lowest = (hits - self.block_size) / total
        peak_lowest, peak_rate = max(state.peak_lowest, lowest), max(state.peak_rate, rate)
        asked = max(state.asked_goal, min(lowest, rate - self.clear))
        known = following.setdefault(key, [])
        for other in known:
            if other.peak_lowest <= peak_lowest and other.peak_rate <= peak_rate and other.asked_goal <= asked:
                return
        known[:] = [
            other
            for other in known
            if not (peak_lowest <= other.peak_lowest and peak_rate <= other.peak_rate and asked <= other.asked_goal)
        ]
        known.append(_Reached(peak_lowest, peak_rate, asked, shared, state))


def _nearest_sum(choices: Sequence[list[int]], goals: list[int], total: int) -> list[int] | None:
    """One of each lane's numbers, with the given sum and the smallest sum of squared differences from ``goals``."""
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for numbers, goal in zip(choices, goals, strict=True):
        following: dict[int, tuple[int, tuple[int, ...]]] = {}
        for reached, (cost, chosen) in best.items():
            for number in numbers:
                candidate = cost + (number - goal) ** 2, (*chosen, number)
                if reached + number <= total and (
                    reached + number not in following or candidate < following[reached + number]
                ):
                    following[reached + number] = candidate
        best = following
    return list(best[total][1]) if total in best else None
