"""The check that ``inspect`` and ``prepare`` make where the Scenario says how many blocks the server has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ais_bench_prefix_cache.planning.plan import Plan
    from ais_bench_prefix_cache.scenario.model import Scenario


def capacity_warnings(scenario: Scenario, plan: Plan) -> list[dict[str, Any]]:
    """The warning that the plan does not fit into ``service.kv_cache_blocks``; empty where it does or none is given."""
    from ais_bench_prefix_cache.analysis.cache_prediction import WarmupRequest, capacity_warning
    from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
    from ais_bench_prefix_cache.group_names import group_name

    if scenario.service.kv_cache_blocks is None:
        return []
    columns = RequestColumns(
        group_ids=[group_name(group) for group in plan.group.tolist()],
        dp_ranks=plan.dp_rank.tolist(),
        lane_sequences=plan.lane_sequence.tolist(),
        input_tokens=plan.input_tokens.tolist(),
        hit_tokens=plan.hit_tokens.tolist(),
        shared_prefix_tokens=plan.shared_prefix_tokens.tolist(),
        max_tokens=plan.max_tokens.tolist(),
    )
    warmup = [
        WarmupRequest(group_name(group), rank, prefix + plan.seed_tokens, prefix)
        for group, prefix in enumerate(plan.canonical_prefix_tokens.tolist())
        for rank in range(plan.dp_size)
        if plan.mode == "warmup" and prefix
    ]
    warning = capacity_warning(
        columns,
        block_size=plan.block_size,
        kv_cache_blocks=scenario.service.kv_cache_blocks,
        dp_size=plan.dp_size,
        warmup=warmup,
    )
    return [] if warning is None else [warning]
