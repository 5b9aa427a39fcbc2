"""The lane check of cold plans."""

from __future__ import annotations

import numpy as np

from ais_bench_prefix_cache.planning.lanes import build_lanes
from ais_bench_prefix_cache.planning.trajectory import LISTED_ISSUES, TrajectoryCheck, check_trajectory, clear_step


def trajectory_of(inputs: list[int], hits: list[int], ranks: list[int]) -> TrajectoryCheck:
    lanes = build_lanes(np.zeros(len(inputs), dtype=np.int32), np.array(ranks, dtype=np.int32), 2)
    return check_trajectory(np.array(inputs, dtype=np.int64), np.array(hits, dtype=np.int64), lanes, 16)


def test_a_falling_lane_is_found_and_rounding_is_not_a_fall() -> None:
    # Rank 1 keeps its rate to the block. Rank 0: 0, 480/1024, 960/1536, then nothing more.
    inputs, ranks = [512, 512] * 5, [0, 1] * 5
    hits = [0, 0, 480, 256, 480, 256, 0, 256, 0, 272]
    issues, count, largest = trajectory_of(inputs, hits, ranks)
    falls = [issue for issue in issues if issue["code"] == "CUMULATIVE_RATE_FALLS"]
    assert falls == [
        {
            "code": "CUMULATIVE_RATE_FALLS",
            "group": "group-0",
            "dp_rank": 0,
            "position": 3,
            "sequence_index": 6,
            "cumulative_hit_rate": 960 / 2048,
            "peak_hit_rate": 960 / 1536,
            "requests": 2,
            "largest_step": 960 / 1536 - 960 / 2560,
        }
    ]
    overshoots = [issue for issue in issues if issue["code"] == "CUMULATIVE_RATE_OVERSHOOTS"]
    # Whole plan: 2000 / 5120; lane 0 ends at 960 / 2560.
    assert [(issue["position"], issue["goal_hit_rate"], issue["requests"]) for issue in overshoots] == [
        (1, 2000 / 5120, 3)
    ]
    assert count == 4
    assert largest == 960 / 1536 - 960 / 2560


def test_a_step_that_one_block_of_the_smallest_request_explains_is_not_clear() -> None:
    inputs, ranks = [512] * 40, [0, 1] * 20
    assert clear_step(np.array([512, 4096]), 16) == 16 / 512
    # Rank 0 is at 1/2 after 16 of its requests. Then it falls: after 8 blocks less by 1/40, after 16 by 1/20.
    for missing, count in ((256, 0), (512, 2)):
        hits = [0, 256, 512, 256] + [256] * 28 + [256 - missing // 4, 256] * 4
        assert trajectory_of(inputs, hits, ranks).issue_count == count


def test_a_level_trajectory_has_no_issue() -> None:
    assert trajectory_of([512] * 10, [0, 0] + [256] * 8, [0, 1] * 5) == ((), 0, 0.0)


def test_the_list_of_issues_is_bounded() -> None:
    count = 400
    lanes = build_lanes(np.repeat(np.arange(100, dtype=np.int32), 4), np.zeros(count, dtype=np.int32), 1)
    issues, found, _ = check_trajectory(
        np.full(count, 512, dtype=np.int64), np.array([0, 480, 0, 0] * 100, dtype=np.int64), lanes, 16
    )
    assert len(issues) == LISTED_ISSUES
    assert found == 300
    steps = [issue["largest_step"] for issue in issues]
    assert steps == sorted(steps, reverse=True)
