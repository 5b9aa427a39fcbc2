"""What ``inspect`` tells about a plan. Everything is JSON-ready: Python numbers, strings, lists and dicts."""

from __future__ import annotations

from typing import Any

import numpy as np

from ais_bench_prefix_cache.foundation.names import group_name
from ais_bench_prefix_cache.planning.plan import Int64Column, Plan
from ais_bench_prefix_cache.scenario.model import FixedLength, Scenario

PERCENTILES = (50, 90, 95, 99)
LENGTH_BINS = 10
SMOOTHNESS_POINTS = 20
BARS = "▁▂▃▄▅▆▇█"


def inspect_summary(scenario: Scenario, plan: Plan) -> dict[str, Any]:
    """The keys of ``inspect``'s output, except ``warnings``, ``log`` and ``manifest``. Groups are in numeric order."""
    group_sizes = np.bincount(plan.group, minlength=plan.group_count).tolist()
    return {
        "run_id": scenario.run.run_id,
        "mode": plan.mode,
        "requested_target_hit_rate": plan.requested_target_hit_rate,
        "effective_target_hit_rate": plan.effective_target_hit_rate,
        "theoretical_hit_rate": plan.theoretical_hit_rate,
        "reachable_min": plan.reachability.min_rate,
        "reachable_max": plan.reachability.max_rate,
        "target_reachable": plan.target_reachable,
        "trajectory": trajectory_summary(plan),
        "smoothness": smoothness(plan),
        "group_reachability": {
            group_name(group): {"reachable_min": reach.min_rate, "reachable_max": reach.max_rate}
            for group, reach in enumerate(plan.group_reachability)
        },
        "groups": {group_name(group): size for group, size in enumerate(group_sizes)},
        "input_tokens": {**length_summary(plan.input_tokens), "total": plan.total_input_tokens},
        "output_tokens": {**length_summary(plan.max_tokens), "total": int(plan.max_tokens.sum())},
        "dp_route_counts": dp_route_counts(plan),
        "sends_requests": False,
        "planning_only": True,
        "content_validation_deferred_to_prepare": True,
    }


def image_summary(scenario: Scenario) -> dict[str, Any]:
    """The same of a Scenario for images, where every request has the same lengths and no shared prefix is planned."""
    count = scenario.requests.count
    summary: dict[str, Any] = {
        "run_id": scenario.run.run_id,
        "benchmark_mode": "mm",
        "requests": count,
        "scenarios": list(scenario.multimodal.scenarios) if scenario.multimodal else [],
    }
    for name, rule in (
        ("input_tokens", scenario.requests.input_length),
        ("output_tokens", scenario.requests.output_length),
    ):
        assert isinstance(rule, FixedLength), "images go with fixed lengths"
        # All are equal: one of them says everything but how many there are.
        one = length_summary(np.array([rule.value], dtype=np.int64))
        summary[name] = {**one, "bins": [{**one["bins"][0], "count": count}], "total": count * rule.value}
    return summary | {
        "sends_requests": False,
        "planning_only": True,
        "content_validation_deferred_to_prepare": True,
    }


def trajectory_summary(plan: Plan) -> dict[str, Any]:
    """The path taken, the result of the lane check, and the plan's quality."""
    trajectory = plan.trajectory
    summary: dict[str, Any] = {
        "path": trajectory.path,
        "status": trajectory.status,
        "issues": [dict(issue) for issue in trajectory.issues],
        "issue_count": trajectory.issue_count,
        "fallback_reason": trajectory.fallback_reason,
        "largest_distance_pp": 100 * trajectory.largest_distance,
        "smallest_possible_distance_pp": 100 * trajectory.smallest_possible_distance,
    }
    if plan.mode == "cold":
        summary["largest_step_pp"] = 100 * trajectory.largest_step
        summary["clear_step_pp"] = 100 * trajectory.clear_step
    return summary


def smoothness(plan: Plan) -> dict[str, Any]:
    """The cumulative hit rate after each of up to :data:`SMOOTHNESS_POINTS` equal parts of the requests.

    ``picture`` draws the same rates, the largest as the highest bar.
    """
    inputs, hits = np.cumsum(plan.input_tokens), np.cumsum(plan.hit_tokens)
    points = min(SMOOTHNESS_POINTS, len(plan))
    ends = np.arange(1, points + 1) * len(plan) // points
    rates = (hits[ends - 1] / inputs[ends - 1]).tolist()
    highest = max(rates)
    bars = [BARS[round(rate / highest * (len(BARS) - 1))] if highest else BARS[0] for rate in rates]
    return {"requests": ends.tolist(), "cumulative_hit_rate": rates, "picture": "".join(bars)}


def dp_route_counts(plan: Plan) -> dict[str, int]:
    """The formal requests of each rank in cold mode; empty in warm-up mode, where the server's balancer decides."""
    if plan.mode == "warmup":
        return {}
    counts = np.bincount(plan.dp_rank, minlength=plan.dp_size).tolist()
    return {str(rank): count for rank, count in enumerate(counts)}


def length_summary(lengths: Int64Column) -> dict[str, Any]:
    """``min``, ``max``, ``mean``, percentiles and the non-empty of up to ten equal ``bins`` of at least one length.

    A percentile interpolates linearly between the two nearest lengths. The bins have the width
    ``max(1, ceil((max - min + 1) / 10))`` and include both of their ends; the last one ends at ``max``.
    """
    low, high = int(lengths.min()), int(lengths.max())
    width = max(1, -(-(high - low + 1) // LENGTH_BINS))
    counts = np.bincount((lengths - low) // width).tolist()
    ordered: Int64Column = np.sort(lengths)
    return {
        "min": low,
        "max": high,
        "mean": int(lengths.sum()) / lengths.size,
        **{f"p{percent}": _percentile(ordered, percent) for percent in PERCENTILES},
        "bins": [
            {"min": low + width * number, "max": min(low + width * (number + 1) - 1, high), "count": count}
            for number, count in enumerate(counts)
            if count
        ],
    }


def _percentile(ordered: Int64Column, percent: int) -> int | float:
    """An int where the interpolation is exact; computed from integers, so equal on every machine."""
    place, rest = divmod(percent * (ordered.size - 1), 100)
    below = int(ordered[place])
    if not rest:
        return below
    scaled = 100 * below + rest * (int(ordered[place + 1]) - below)
    return scaled // 100 if scaled % 100 == 0 else scaled / 100
