"""The check that is made where the Scenario says how many blocks the server has: whether the plan fits into them."""

from __future__ import annotations

from collections.abc import Sequence

from ais_bench_prefix_cache.foundation.codes import Code

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from typing import Any

    from ais_bench_prefix_cache.analysis.cache_prediction import WarmupRequest
    from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
    from ais_bench_prefix_cache.datasets.format.verified_data_set import VerifiedDataSet
    from ais_bench_prefix_cache.kvcache.capacity_curve import CapacityCurve
    from ais_bench_prefix_cache.planning.plan import Plan
    from ais_bench_prefix_cache.scenario.model import Scenario


def capacity_warnings(scenario: Scenario, plan: Plan) -> list[dict[str, Any]]:
    """The warning that the plan does not fit into ``service.kv_cache_blocks``; empty where it does or none is given."""
    from ais_bench_prefix_cache.analysis.cache_prediction import WarmupRequest
    from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
    from ais_bench_prefix_cache.foundation.names import group_name

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
    return _warnings(columns, plan.block_size, scenario.service.kv_cache_blocks, plan.dp_size, warmup)


def trace_capacity_warnings(scenario: Scenario, curve: CapacityCurve, planned_hits: int) -> list[dict[str, Any]]:
    """The same for a data set made from a trace, whose prompts were replayed while they were written."""
    from ais_bench_prefix_cache.analysis.cache_prediction import warning_of_curve

    blocks = scenario.service.kv_cache_blocks
    warning = None if blocks is None else warning_of_curve(curve, kv_cache_blocks=blocks, planned_hits=planned_hits)
    return [] if warning is None else [warning]


def check_capacity_warnings(data_set: VerifiedDataSet) -> None:
    """Raises :class:`ArtifactError` where the analysis of a verified text data set does not warn as its rows do."""
    from ais_bench_prefix_cache.datasets.format.document_checks import capacity_warnings_of, compare_exactly
    from ais_bench_prefix_cache.datasets.format.documents import is_count
    from ais_bench_prefix_cache.foundation.findings import Findings, shown

    findings = Findings()
    blocks = data_set.manifest["effective_config"]["service"].get("kv_cache_blocks")
    if blocks is not None and not (is_count(blocks) and blocks):
        where = f"{data_set.paths.manifest.name}: effective_config.service.kv_cache_blocks"
        findings.add(Code.WRONG_TYPE, where, f"it says {shown(blocks)}", allowed="a whole number from 1 up, or null")
        findings.raise_if_any()
    expected = [] if blocks is None else _warnings_of_rows(data_set, blocks)
    claimed = capacity_warnings_of(data_set.analysis)
    compare_exactly(expected, claimed, f"{data_set.paths.analysis.name}: warnings about kv_cache_blocks", findings)
    findings.raise_if_any()


def _warnings_of_rows(data_set: VerifiedDataSet, kv_cache_blocks: int) -> list[dict[str, Any]]:
    from ais_bench_prefix_cache.analysis.cache_prediction import WarmupRequest
    from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
    from ais_bench_prefix_cache.datasets.text.rows import read_full_rows

    config = data_set.manifest["effective_config"]
    warmup = [
        WarmupRequest(entry["group_id"], entry["dp_rank"], entry["input_tokens"], entry["shared_prefix_tokens"])
        for entry in data_set.manifest["warmup"]["plan"]
    ]
    columns = RequestColumns.from_rows(read_full_rows(data_set.paths.full))
    block_size, dp_size = config["tokenizer"]["block_size"], config["service"]["dp_size"]
    return _warnings(columns, block_size, kv_cache_blocks, dp_size, warmup)


def _warnings(
    columns: RequestColumns, block_size: int, kv_cache_blocks: int, dp_size: int, warmup: Sequence[WarmupRequest]
) -> list[dict[str, Any]]:
    from ais_bench_prefix_cache.analysis.cache_prediction import capacity_warning

    warning = capacity_warning(
        columns, block_size=block_size, kv_cache_blocks=kv_cache_blocks, dp_size=dp_size, warmup=warmup
    )
    return [] if warning is None else [warning]
