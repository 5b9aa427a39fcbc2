"""The cold planner for small data sets: a beam search over what each request shares."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ais_bench_prefix_cache.planning.allocation import lane_goals
from ais_bench_prefix_cache.planning.lanes import Lanes
from ais_bench_prefix_cache.planning.plan import Int64Column
from ais_bench_prefix_cache.planning.quality import settled, smallest_possible_distance

BEAM_STATES = 256
"""The most states that are kept after a request."""
BEAM_WORK_LIMIT = 2_000_000
"""The most ``BEAM_STATES * sum(cap + 1)`` for which the search is made."""


def beam_is_affordable(capacity: Int64Column) -> bool:
    """Whether ``256 * sum(cap + 1) <= 2,000,000``."""
    return BEAM_STATES * (int(capacity.sum()) + capacity.size) <= BEAM_WORK_LIMIT


def search_plan(
    input_tokens: Int64Column,
    capacity: Int64Column,
    limits: Int64Column,
    lanes: Lanes,
    hit_blocks: int,
    block_size: int,
) -> Int64Column:
    """Shared blocks per request whose hits add up to exactly ``hit_blocks`` (which must be reachable).

    A state is the hits so far, the hits of each lane and its watermark. Each request may share 0 … cap blocks. A
    state from which ``hit_blocks`` cannot be reached any more is dropped at once, so every state that is kept leads to
    an exact plan. States are ranked by their largest distance from the target after the first tenth of the input, as
    far as it exceeds ``attainable_distance``, and then by the squared differences, in blocks, of each lane's hits from
    its proportional share.
    """
    goals = lane_goals(lanes, input_tokens, np.zeros_like(limits), limits, hit_blocks).tolist()
    cumulative, start = np.cumsum(input_tokens).tolist(), settled(input_tokens)
    target = hit_blocks * block_size / cumulative[-1]
    future_before, future_after = _future_limits(capacity, lanes)

    unavoidable = smallest_possible_distance(input_tokens, limits, hit_blocks, block_size)
    hits, signature = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.uint64)
    # Both stay below BEAM_WORK_LIMIT / BEAM_STATES; small numbers, because they are copied for every request.
    lane_hits = np.zeros((1, lanes.count), dtype=np.int16)
    watermark = np.zeros((1, lanes.count), dtype=np.int16)
    weights = np.random.PCG64(0).random_raw(lanes.count)
    future = np.full(1, int(limits.sum()), dtype=np.int64)
    distance, roughness = np.full(1, unavoidable), np.zeros(1)
    history: list[tuple[npt.NDArray[np.int64], Int64Column]] = []

    for request, (lane, most) in enumerate(zip(lanes.lane.tolist(), capacity.tolist(), strict=True)):
        choices = np.arange(most + 1, dtype=np.int64)
        mark, after = watermark[:, lane].astype(np.int64), future_after[request]
        hit = np.minimum(choices, mark[:, None])
        raised = np.minimum(np.maximum(choices, mark[:, None]), after.size - 1)
        rest = (future - _lookup(future_before[request], mark))[:, None] + _lookup(after, raised)
        total = hits[:, None] + hit
        reached = lane_hits[:, lane, None] + hit
        parent, choice = np.nonzero((total <= hit_blocks) & (total + rest >= hit_blocks))

        total, rest, raised, reached = (part[parent, choice] for part in (total, rest, raised, reached))
        farthest = distance[parent]
        if request >= start:
            farthest = np.maximum(farthest, np.abs(total * block_size / cumulative[request] - target))
        rough = roughness[parent] + (reached - goals[request]).astype(np.float64) ** 2
        signed = signature[parent] + (raised - mark[parent]).astype(np.uint64) * weights[lane]
        best = np.lexsort((-raised, rough, farthest))[: 4 * BEAM_STATES]
        _, distinct = np.unique(
            np.column_stack((total[best].astype(np.uint64), signed[best])), axis=0, return_index=True
        )
        best = best[np.sort(distinct)[:BEAM_STATES]]

        parent, choice = parent[best], choice[best]
        hits, future, distance, roughness, signature = (
            total[best],
            rest[best],
            farthest[best],
            rough[best],
            signed[best],
        )
        watermark, lane_hits = watermark[parent], lane_hits[parent]
        watermark[:, lane], lane_hits[:, lane] = raised[best], reached[best]
        history.append((parent, choice))

    shared, state = [], 0
    for parent, choice in reversed(history):
        shared.append(int(choice[state]))
        state = int(parent[state])
    return np.array(shared[::-1], dtype=np.int64)


def _future_limits(
    capacity: Int64Column, lanes: Lanes
) -> tuple[list[npt.NDArray[np.int32]], list[npt.NDArray[np.int32]]]:
    """Per request two tables, from before and from after it: the most that its lane can still hit, by its watermark.

    A watermark above every capacity to come counts like the largest, so a table ends there.
    """
    caps = capacity.tolist()
    before: list[npt.NDArray[np.int32]] = [np.zeros(1, dtype=np.int32)] * capacity.size
    after = before.copy()
    for start, end in zip(lanes.starts[:-1].tolist(), lanes.starts[1:].tolist(), strict=True):
        table = np.zeros(1, dtype=np.int32)
        for request in lanes.by_lane[start:end][::-1].tolist():
            after[request] = table
            marks = np.arange(max(caps[request], table.size - 1) + 1, dtype=np.int64)
            table = (np.minimum(marks, caps[request]) + _lookup(table, np.maximum(marks, caps[request]))).astype(
                np.int32
            )
            before[request] = table
    return before, after


def _lookup(table: npt.NDArray[np.int32], marks: Int64Column) -> Int64Column:
    return np.asarray(table[np.minimum(marks, table.size - 1)], dtype=np.int64)
