"""What manifest and analysis of a text data set say of its plan. Every figure follows from the plan alone.

Token counts are integers; rates are divided last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ais_bench_prefix_cache.datasets.format.capacity import capacity_warnings
from ais_bench_prefix_cache.datasets.format.targets import deviation_warnings
from ais_bench_prefix_cache.datasets.text.plan_replay import PlannedRequest, planned_kept_hits
from ais_bench_prefix_cache.datasets.text.prompt_set import WarmupPrompt
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.names import NO_RANK, PASS, group_name, verdict
from ais_bench_prefix_cache.foundation.token_share import TokenShare
from ais_bench_prefix_cache.planning.plan import Plan
from ais_bench_prefix_cache.planning.summary import length_summary, trajectory_summary
from ais_bench_prefix_cache.scenario.model import Scenario

COLD_ROUTE_STRATEGY = "group_round_robin"
COLLISION_STATUS = "pass"
MOST_REPLAYED_BLOCKS = 10_000_000
REQUEST_IN_BLOCKS = 40
"""What sending a request to the replay takes, in blocks: measured, as is that ten million take a minute."""


@dataclass(frozen=True)
class PrefixOrigin:
    """A group's canonical prefix: the digest of its tokens, and the corpus rows whose text it uses."""

    sha256: str
    corpus_indices: tuple[int, ...]
    corpus_sha256: tuple[str, ...]


def requests_section(plan: Plan) -> dict[str, Any]:
    """``manifest.requests``."""
    return {
        "count": len(plan),
        "total_input_tokens": plan.total_input_tokens,
        "input_length_summary": length_summary(plan.input_tokens),
        "output_length_summary": length_summary(plan.max_tokens),
    }


def prefix_cache_section(plan: Plan, target_warning_pp: float) -> dict[str, Any]:
    """``manifest.prefix_cache``. ``trajectory`` is ours: how the plan was made."""
    signed = signed_difference_pp(plan)
    requested = float(plan.requested_target_hit_rate)
    return {
        "mode": plan.mode,
        "requested_target_hit_rate": requested,
        "effective_target_hit_rate": plan.effective_target_hit_rate,
        "theoretical_hit_rate": plan.theoretical_hit_rate,
        "reachable_min": plan.reachability.min_rate,
        "reachable_max": plan.reachability.max_rate,
        "target_reachable": plan.target_reachable,
        "minimum_non_shared_length": plan.minimum_non_shared_tokens,
        "adjusted": plan.effective_target_hit_rate != requested,
        "reason": _adjustment_reason(plan),
        "validation_status": verdict(target_warnings(plan, target_warning_pp)),
        "target_signed_difference_pp": signed,
        "target_absolute_difference_pp": abs(signed),
        "trajectory": trajectory_summary(plan),
    }


def groups_section(plan: Plan, prefixes: Sequence[PrefixOrigin]) -> dict[str, Any]:
    """``manifest.groups``, in the groups' numeric order."""
    shares = _shares(plan.group, plan, plan.group_count)
    return {
        group_name(number): {
            "canonical_prefix_sha256": prefix.sha256,
            "canonical_prefix_tokens": int(plan.canonical_prefix_tokens[number]),
            "max_shared_prefix_tokens": int(plan.max_shared_prefix_tokens[number]),
            "gsm_indices": list(prefix.corpus_indices),
            "gsm_question_sha256": list(prefix.corpus_sha256),
            "reachable_min": plan.group_reachability[number].min_rate,
            "reachable_max": plan.group_reachability[number].max_rate,
            "theoretical_hit_rate": shares[number][1].rate,
        }
        for number, prefix in enumerate(prefixes)
    }


def dp_section(plan: Plan) -> dict[str, Any]:
    """``manifest.dp``."""
    return {"size": plan.dp_size, "cold_route_strategy": COLD_ROUTE_STRATEGY if plan.mode == "cold" else None}


def warmup_section(plan: Plan, prompts: Sequence[WarmupPrompt]) -> dict[str, Any]:
    """``manifest.warmup``. ``prompts`` are those of the groups that share anything."""
    if plan.mode != "warmup":
        return {"enabled": False, "plan": []}
    entries = [
        {
            "request_id": f"warmup:{group_name(each.group)}:{rank}",
            "group_id": group_name(each.group),
            "dp_rank": rank,
            "prompt": each.text,
            "input_tokens": each.input_tokens,
            "shared_prefix_tokens": each.shared_prefix_tokens,
            "max_tokens": 1,
            "included_in_formal_statistics": False,
        }
        for each in prompts
        for rank in range(plan.dp_size)
    ]
    return {"enabled": True, "plan": entries}


def divergence_section(plan: Plan) -> dict[str, Any]:
    """``manifest.divergence``: every request's first unshared block is unique."""
    return {
        "strategy": "globally_unique_seed_block",
        "unique_request_blocks": len(plan),
        "request_count": len(plan),
        "collision_status": COLLISION_STATUS,
    }


def prepared_analysis(run_id: str, plan: Plan, warnings: list[dict[str, Any]]) -> dict[str, Any]:
    """``analysis.json`` as ``prepare`` writes it (without its digest)."""
    signed = signed_difference_pp(plan)
    return {
        "schema_version": "1.0",
        "run_id": run_id,
        "status": "prepared",
        "requested_target_hit_rate": float(plan.requested_target_hit_rate),
        "effective_target_hit_rate": plan.effective_target_hit_rate,
        "theoretical_hit_rate": plan.theoretical_hit_rate,
        "target_difference_pp": abs(signed),
        "target_signed_difference_pp": signed,
        "target_absolute_difference_pp": abs(signed),
        "validation": {
            "target_reachable": plan.target_reachable,
            "status": verdict(warnings),
            "warning_only": True,
            "affects_exit_code": False,
        },
        "theory": _theory_section(plan),
        "warnings": warnings,
    }


def plan_warnings(scenario: Scenario, plan: Plan) -> list[dict[str, Any]]:
    """Everything that a plan has to be warned of: of the target, of the way there, and of the server's cache."""
    warnings = target_warnings(plan, scenario.validation.target_warning_pp) + trajectory_warnings(plan)
    blocks = scenario.service.kv_cache_blocks
    if blocks is None:
        return warnings
    warmed = plan.canonical_prefix_tokens if plan.mode == "warmup" else plan.canonical_prefix_tokens[:0]
    named = int((plan.shared_prefix_tokens // plan.block_size).sum() + plan.dp_size * (warmed // plan.block_size).sum())
    steps = named + REQUEST_IN_BLOCKS * (len(plan) + plan.dp_size * len(warmed))
    if steps > MOST_REPLAYED_BLOCKS:
        message = (
            f"not proven: that a cache of {blocks} blocks keeps what the plan counts on; its requests share {named:,} "
            "blocks, and replaying them would take longer than it tells"
        )
        return [*warnings, {"code": Code.NOT_PROVEN.value, "message": message}]
    kept = planned_kept_hits(
        _planned_requests(plan),
        engine=scenario.service.engine,
        block_size=plan.block_size,
        ranks=plan.dp_size,
        num_blocks=blocks,
        planned_hits=plan.total_hit_tokens,
    )
    return warnings + capacity_warnings(kept, plan.total_hit_tokens)


def _planned_requests(plan: Plan) -> Iterator[PlannedRequest]:
    """All that a server is sent. Requests without a planned rank are taken to go to the ranks in turn."""
    if plan.mode == "warmup":
        for group, prefix in enumerate(plan.canonical_prefix_tokens.tolist()):
            for rank in range(plan.dp_size if prefix else 0):
                yield PlannedRequest(group_name(group), rank, prefix + plan.seed_tokens, prefix, counted=False)
    columns = (plan.group, plan.dp_rank, plan.input_tokens, plan.shared_prefix_tokens, plan.max_tokens)
    for index, (group, rank, *tokens) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        yield PlannedRequest(group_name(group), index % plan.dp_size if rank == NO_RANK else rank, *tokens)


def target_warnings(plan: Plan, target_warning_pp: float) -> list[dict[str, Any]]:
    """How the plan misses the requested target. Known before anything is sent; warnings never change an exit code."""
    warnings: list[dict[str, Any]] = []
    requested = float(plan.requested_target_hit_rate)
    reachable_min, reachable_max = plan.reachability.min_rate, plan.reachability.max_rate
    if not plan.target_reachable:
        warnings.append(
            {
                "code": Code.TARGET_UNREACHABLE.value,
                "message": f"the requested hit rate {requested:.4f} lies outside of what these lengths, groups and "
                f"order can reach: {reachable_min:.4f} to {reachable_max:.4f}",
                "requested_target_hit_rate": requested,
                "reachable_min": reachable_min,
                "reachable_max": reachable_max,
            }
        )
    return [*warnings, *deviation_warnings(requested, plan.theoretical_hit_rate, target_warning_pp)]


def trajectory_warnings(plan: Plan) -> list[dict[str, Any]]:
    """How far the cumulative hit rate falls back or overshoots on the way to its target."""
    trajectory = plan.trajectory
    if trajectory.status == PASS:
        return []
    how_far = (
        f"falls back or overshoots by up to {100 * trajectory.largest_step:.2f} percentage points"
        if trajectory.issue_count
        else f"may fall back or overshoot, here by no more than {100 * trajectory.clear_step:.2f} percentage points"
    )
    return [
        {
            "code": Code.TRAJECTORY_BEST_EFFORT.value,
            "message": f"the total of hits is exact, but on the way there the cumulative hit rate {how_far} "
            "(manifest: prefix_cache.trajectory)",
            "issue_count": trajectory.issue_count,
            "largest_step_pp": 100 * trajectory.largest_step,
        }
    ]


def signed_difference_pp(plan: Plan) -> float:
    """Theory minus target in percentage points."""
    return (plan.theoretical_hit_rate - float(plan.requested_target_hit_rate)) * 100


def _theory_section(plan: Plan) -> dict[str, Any]:
    """``analysis.theory``; ``dp`` is empty in warm-up mode: the server's balancer may put a request anywhere."""
    total = TokenShare(plan.total_input_tokens, plan.total_hit_tokens)
    groups = _shares(plan.group, plan, plan.group_count)
    ranks = _shares(plan.dp_rank, plan, plan.dp_size) if plan.mode == "cold" else []
    return {
        **total.section(),
        "groups": {
            group_name(number): {"requests": each, **share.section()} for number, (each, share) in enumerate(groups)
        },
        "dp": {str(rank): {"requests": each, **share.section()} for rank, (each, share) in enumerate(ranks)},
    }


def _shares(key: npt.NDArray[np.integer[Any]], plan: Plan, size: int) -> list[tuple[int, TokenShare]]:
    """Requests, and the share of their tokens that is hit, for each value of the column ``key``."""

    def sums(values: Any) -> list[int]:
        totals = np.zeros(size, dtype=np.int64)
        np.add.at(totals, key, values)
        return [int(total) for total in totals]

    columns = zip(sums(1), sums(plan.input_tokens), sums(plan.hit_tokens), strict=True)
    return [(requests, TokenShare(inputs, hits)) for requests, inputs, hits in columns]


def _adjustment_reason(plan: Plan) -> str | None:
    if plan.requested_target_hit_rate > plan.reachability.max_rate:
        return "above_reachable_max"
    if plan.requested_target_hit_rate < plan.reachability.min_rate:
        return "below_reachable_min"
    if plan.effective_target_hit_rate != plan.requested_target_hit_rate:
        return "block_rounding"
    return None
