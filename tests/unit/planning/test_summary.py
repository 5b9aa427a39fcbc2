"""What ``inspect`` tells about a plan."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.doubles.scenarios import make_scenario

from ais_bench_prefix_cache.planning.planner import plan_scenario
from ais_bench_prefix_cache.planning.summary import inspect_summary, length_summary, smoothness
from ais_bench_prefix_cache.scenario.model import UniformLength

SPREAD = UniformLength(512, 4096)


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
        "smoothness",
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


def test_smoothness_is_the_cumulative_rate_at_equal_steps() -> None:
    plan = plan_scenario(make_scenario(count=50, dp_size=2))
    shown = smoothness(plan)
    assert shown["requests"] == [2, 5, 7, 10, 12, 15, 17, 20, 22, 25, 27, 30, 32, 35, 37, 40, 42, 45, 47, 50]
    rates = [plan.hit_tokens[:end].sum() / plan.input_tokens[:end].sum() for end in shown["requests"]]
    assert shown["cumulative_hit_rate"] == rates
    assert shown["picture"][0] == "▁"  # The first request of each lane cannot hit.
    assert max(shown["picture"]) == shown["picture"][rates.index(max(rates))] == "█"
    assert smoothness(plan_scenario(make_scenario(count=3, target=0.0)))["picture"] == "▁▁▁"


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
