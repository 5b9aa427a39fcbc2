"""Plans for tests of what comes after planning, from a few numbers; hits are counted here by their definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ais_bench_prefix_cache.planning.plan import Plan, Reachability, Trajectory


def plan_of(
    requests: Sequence[tuple[int, int, int]],
    *,
    block: int = 16,
    mode: Any = "warmup",
    ranks: int = 1,
    seed_blocks: int = 1,
    **changes: Any,
) -> Plan:
    """A plan of ``(group, input tokens, shared blocks)`` in send order; ``changes`` replace fields of the plan.

    A warmed-up request hits what it shares; in cold mode a group's requests go to its ranks in turn, and a request hits
    what an earlier one of its group and rank shared.
    """
    count, groups = len(requests), max(group for group, _, _ in requests) + 1
    group = np.array([group for group, _, _ in requests], dtype=np.int32)
    inputs = np.array([tokens for _, tokens, _ in requests], dtype=np.int64)
    shared = np.array([blocks * block for _, _, blocks in requests], dtype=np.int64)
    occurrence = np.array([int((group[:index] == group[index]).sum()) for index in range(count)], dtype=np.int64)
    rank = np.full(count, -1) if mode == "warmup" else occurrence % ranks
    canonical = np.array([shared[group == each].max(initial=0) for each in range(groups)], dtype=np.int64)
    before = np.zeros(count, dtype=np.int64)
    held: dict[tuple[int, int], int] = {}
    for index in range(count):
        lane = (int(group[index]), int(rank[index]))
        before[index] = canonical[group[index]] if mode == "warmup" else held.get(lane, 0)
        held[lane] = max(int(before[index]), int(shared[index]))
    hits = np.minimum(before, shared)
    reach = [Reachability(int(inputs[group == g].sum()), 0, int(hits[group == g].sum())) for g in range(groups)]
    total = int(hits.sum())
    made = Plan(
        mode=mode,
        block_size=block,
        seed_tokens=seed_blocks * block,
        minimum_non_shared_tokens=seed_blocks * block,
        dp_size=ranks,
        group_count=groups,
        generation_index=np.arange(count, dtype=np.int64),
        group=group,
        occurrence_in_group=occurrence,
        dp_rank=rank.astype(np.int32),
        lane_sequence=np.full(count, -1) if mode == "warmup" else occurrence // ranks,
        input_tokens=inputs,
        max_tokens=np.full(count, 8, dtype=np.int64),
        shared_prefix_tokens=shared,
        hit_tokens=hits,
        watermark_before=before,
        watermark_after=np.maximum(before, shared),
        canonical_prefix_tokens=canonical,
        max_shared_prefix_tokens=canonical,
        requested_target_hit_rate=total / int(inputs.sum()),
        effective_hit_tokens=total,
        reachability=Reachability(int(inputs.sum()), 0, total),
        group_reachability=tuple(reach),
        trajectory=Trajectory(path="warmup" if mode == "warmup" else "beam", status="PASS"),
    )
    return replace(made, **changes)
