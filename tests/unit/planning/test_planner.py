"""Whole plans: edge cases, paths, trajectory, summary, determinism, speed."""

from __future__ import annotations

import json
import resource
from typing import Any

import numpy as np
import pytest
from tests.doubles.plan_scenarios import make_scenario

from ais_bench_prefix_cache.planning.lanes import build_lanes
from ais_bench_prefix_cache.planning.plan import Plan
from ais_bench_prefix_cache.planning.planner import plan_scenario
from ais_bench_prefix_cache.planning.summary import inspect_summary, length_summary
from ais_bench_prefix_cache.planning.trajectory import LISTED_ISSUES, check_trajectory
from ais_bench_prefix_cache.scenario.model import (
    ExplicitLengths,
    FixedLength,
    GroupAssignment,
    GroupOverride,
    UniformLength,
)

SPREAD = UniformLength(512, 4096)


def test_the_contracts_example_is_planned_by_hand() -> None:
    """100 requests of 1024 tokens at 60 %: 3840 blocks of 16, 38.4 each."""
    plan = plan_scenario(make_scenario(mode="warmup"))
    assert plan.total_hit_tokens == 61440 == round(0.6 * 102400)
    assert plan.theoretical_hit_rate == plan.effective_target_hit_rate == 0.6
    assert (plan.hit_tokens[:5] // 16).tolist() == [38, 39, 38, 39, 38]
    assert plan.canonical_prefix_tokens.tolist() == [39 * 16]
    assert plan.max_shared_prefix_tokens.tolist() == [63 * 16]
    assert (plan.reachability.min_rate, plan.reachability.max_rate) == (0.0, 63 / 64)
    assert plan.trajectory.path == "warmup"
    assert plan.trajectory.status == "PASS"


@pytest.mark.parametrize("mode", ["cold", "warmup"])
@pytest.mark.parametrize(
    "changes",
    [
        {"count": 1},
        {"count": 1, "target": 1.0},
        {"count": 3, "dp_size": 8},
        {"target": 0.0},
        {"target": 1.0},
        {"input_length": FixedLength(16)},
        {"input_length": FixedLength(1), "minimum_non_shared": 1},
        {"block_size": 1, "input_length": UniformLength(1, 50)},
        {"minimum_non_shared": 1000},
        {"count": 5, "groups": 20, "assignment": GroupAssignment("zipf", exponent=1.5)},
        {"count": 50, "groups": 3, "assignment": GroupAssignment("weights", weights=(0.0, 1.0, 0.0))},
        {"count": 200, "input_length": UniformLength(1_000_000, 100_000_000)},
        {"count": 10, "input_length": UniformLength(1 << 40, 1 << 41), "block_size": 1},
        {"count": 60, "groups": 2, "overrides": {1: GroupOverride(input_length=FixedLength(2048))}},
    ],
)
def test_edge_cases(mode: str, changes: dict[str, Any]) -> None:
    plan = plan_scenario(make_scenario(mode=mode, **changes))
    block, total = plan.block_size, plan.total_input_tokens
    assert plan.total_hit_tokens == plan.effective_hit_tokens
    wanted = changes.get("target", 0.6) * total
    if wanted <= plan.reachability.max_hit_tokens:
        assert abs(plan.total_hit_tokens - wanted) <= block / 2 + 1e-6 * wanted
    else:
        assert plan.total_hit_tokens == plan.reachability.max_hit_tokens
    assert (
        plan.shared_prefix_tokens + plan.minimum_non_shared_tokens
        <= np.maximum(plan.input_tokens, plan.minimum_non_shared_tokens)
    ).all()
    json.dumps(inspect_summary(make_scenario(mode=mode, **changes), plan), allow_nan=False)


def test_columns_cannot_be_changed() -> None:
    plan = plan_scenario(make_scenario(count=10))
    for name, column in vars(plan).items():
        if isinstance(column, np.ndarray):
            assert column.dtype in (np.int64, np.int32), name
            with pytest.raises(ValueError, match="read-only"):
                column[0] = 1


def test_paths_follow_the_contracts_table() -> None:
    def path(**changes: Any) -> tuple[str, str]:
        trajectory = plan_scenario(make_scenario(**changes)).trajectory
        return trajectory.path, trajectory.status

    # 256 * 100 * (capacity + 1) <= 2,000,000 up to a capacity of 77 blocks.
    assert path(count=100, input_length=FixedLength(78 * 16)) == ("beam", "PASS")
    assert path(count=100, input_length=FixedLength(79 * 16)) == ("scalable", "PASS")
    assert path(count=1000, input_length=SPREAD, order="input_len_asc", groups=3)[0] == "scalable"
    assert path(count=1000, input_length=SPREAD, groups=3) == ("exact", "BEST_EFFORT")


def test_the_exact_fallback_names_its_reason() -> None:
    # Rank 0 gets the 1st, 3rd, … request.
    lengths = ExplicitLengths((4000, 4000, 4016, 4000, 4000, 4000, *[4000] * 94))
    plan = plan_scenario(make_scenario(count=100, input_length=lengths))
    assert plan.trajectory.fallback_reason == (
        "prefix capacities fall within a lane: group-0 on rank 0 has 249 blocks after 250 at position 2"
    )


def trajectory_of(inputs: list[int], hits: list[int], ranks: list[int]) -> tuple[tuple[Any, ...], int]:
    lanes = build_lanes(np.zeros(len(inputs), dtype=np.int32), np.array(ranks, dtype=np.int32), 2)
    return check_trajectory(np.array(inputs, dtype=np.int64), np.array(hits, dtype=np.int64), lanes, 16)


def test_a_falling_lane_is_found_and_rounding_is_not_a_fall() -> None:
    # Rank 1 keeps its rate to the block. Rank 0: 0, 480/1024, 960/1536, then nothing more.
    inputs, ranks = [512, 512] * 5, [0, 1] * 5
    hits = [0, 0, 480, 256, 480, 256, 0, 256, 0, 272]
    issues, count = trajectory_of(inputs, hits, ranks)
    falls = [issue for issue in issues if issue["code"] == "CUMULATIVE_RATE_FALLS"]
    assert falls == [
        {
            "code": "CUMULATIVE_RATE_FALLS",
            "group": "group-0",
            "dp_rank": 0,
            "position": 3,
            "sequence_index": 6,
            "cumulative_hit_rate": 960 / 2048,
            "peak_hit_rate": 944 / 1536,
            "requests": 2,
            "largest_excess": 944 / 1536 - 976 / 2560,
        }
    ]
    overshoots = [issue for issue in issues if issue["code"] == "CUMULATIVE_RATE_OVERSHOOTS"]
    # Whole plan: 2000 / 5120; lane 0 ends at 960 / 2560.
    assert [(issue["position"], issue["goal_hit_rate"], issue["requests"]) for issue in overshoots] == [
        (1, 2000 / 5120, 3)
    ]
    assert count == 4


def test_a_level_trajectory_has_no_issue() -> None:
    assert trajectory_of([512] * 10, [0, 0] + [256] * 8, [0, 1] * 5) == ((), 0)


def test_the_list_of_issues_is_bounded() -> None:
    count = 400
    lanes = build_lanes(np.repeat(np.arange(100, dtype=np.int32), 4), np.zeros(count, dtype=np.int32), 1)
    issues, found = check_trajectory(
        np.full(count, 512, dtype=np.int64), np.array([0, 480, 0, 0] * 100, dtype=np.int64), lanes, 16
    )
    assert len(issues) == LISTED_ISSUES
    assert found == 300
    excesses = [issue["largest_excess"] for issue in issues]
    assert excesses == sorted(excesses, reverse=True)


def test_the_summary_has_the_contracts_keys_in_numeric_group_order() -> None:
    scenario = make_scenario(count=240, groups=12, input_length=SPREAD, dp_size=2)
    summary = inspect_summary(scenario, plan_scenario(scenario))
    assert list(summary) == [
        "run_id",
        "mode",
        "requested_target_hit_rate",
        "effective_target_hit_rate",
        "theoretical_hit_rate",
        "reachable_min",
        "reachable_max",
        "target_reachable",
        "trajectory",
        "group_reachability",
        "groups",
        "input_tokens",
        "output_tokens",
        "dp_route_counts",
        "sends_requests",
        "planning_only",
        "content_validation_deferred_to_prepare",
    ]
    names = [f"group-{number}" for number in range(12)]
    assert list(summary["groups"]) == list(summary["group_reachability"]) == names
    assert set(summary["groups"].values()) == {20}
    assert summary["dp_route_counts"] == {"0": 120, "1": 120}
    assert list(summary["input_tokens"]) == ["min", "max", "mean", "p50", "p90", "p95", "p99", "bins", "total"]
    assert summary["output_tokens"]["total"] == 240 * 32
    assert json.loads(json.dumps(summary)) == summary
    warm = make_scenario(mode="warmup")
    assert inspect_summary(warm, plan_scenario(warm))["dp_route_counts"] == {}


def test_length_summary_against_numpy() -> None:
    lengths = np.array([1, 2, 3, 50, 51, 100, 100, 7, 8, 10], dtype=np.int64)
    summary = length_summary(lengths)
    assert summary["mean"] == 33.2
    for percent in (50, 90, 95, 99):
        assert summary[f"p{percent}"] == pytest.approx(float(np.percentile(lengths, percent)), abs=1e-12)
    # Width ceil(100 / 10) = 10; empty bins are left out.
    assert summary["bins"] == [
        {"min": 1, "max": 10, "count": 6},
        {"min": 41, "max": 50, "count": 1},
        {"min": 51, "max": 60, "count": 1},
        {"min": 91, "max": 100, "count": 2},
    ]
    single = length_summary(np.array([5, 5], dtype=np.int64))
    assert single == {
        "min": 5,
        "max": 5,
        "mean": 5.0,
        "p50": 5,
        "p90": 5,
        "p95": 5,
        "p99": 5,
        "bins": [{"min": 5, "max": 5, "count": 2}],
    }


def columns_digest(plan: Plan) -> str:
    import hashlib

    digest = hashlib.sha256()
    for name, column in sorted(vars(plan).items()):
        if isinstance(column, np.ndarray):
            digest.update(name.encode() + column.astype("<i8").tobytes())
    return digest.hexdigest()


def test_plans_are_the_same_every_time_and_depend_on_the_seed() -> None:
    def digest(**changes: Any) -> str:
        return columns_digest(plan_scenario(make_scenario(count=300, groups=3, input_length=SPREAD, **changes)))

    assert digest() == digest()
    assert digest(random_seed=43) != digest()


@pytest.mark.parametrize("order", ["interleave", "input_len_asc", "global_shuffle"])
def test_one_hundred_thousand_cold_requests_reach_their_target(order: Any) -> None:
    plan = plan_scenario(make_scenario(count=100_000, input_length=SPREAD, groups=100, dp_size=8, order=order))
    assert plan.total_hit_tokens == plan.effective_hit_tokens
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2_000_000
