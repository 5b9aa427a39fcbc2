"""What the lanes' caches do with a plan, against plain loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ais_bench_prefix_cache.planning.lane_simulation import simulate_cold, simulate_warm
from ais_bench_prefix_cache.planning.lanes import build_lanes, cold_ranks
from ais_bench_prefix_cache.planning.ordering import occurrence_in_group


@settings(deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=60),
    dp_size=st.integers(1, 5),
)
def test_cold_theory_equals_a_loop_over_lanes(requests: list[tuple[int, int]], dp_size: int) -> None:
    group = np.array([group for group, _ in requests], dtype=np.int32)
    shared = np.array([blocks * 16 for _, blocks in requests], dtype=np.int64)
    rank = cold_ranks(occurrence_in_group(group), dp_size)
    lanes = build_lanes(group, rank, dp_size)
    theory = simulate_cold(shared, lanes)

    seen: dict[int, int] = {}
    watermark: dict[tuple[int, int], int] = {}
    for i, (number, blocks) in enumerate(requests):
        expected_rank = seen.get(number, 0) % dp_size
        seen[number] = seen.get(number, 0) + 1
        lane = (number, expected_rank)
        before = watermark.get(lane, 0)
        watermark[lane] = max(before, blocks * 16)
        assert (rank[i], theory.watermark_before[i], theory.watermark_after[i]) == (
            expected_rank,
            before,
            watermark[lane],
        )
        assert theory.hit_tokens[i] == min(before, blocks * 16)
    assert sorted(watermark) == list(zip(lanes.group.tolist(), lanes.dp_rank.tolist(), strict=True))


def test_a_warm_request_hits_what_it_shares_up_to_its_groups_prefix() -> None:
    theory = simulate_warm(
        np.array([16, 64, 0], dtype=np.int64), np.array([0, 1, 1], dtype=np.int32), np.array([16, 48], dtype=np.int64)
    )
    assert theory.hit_tokens.tolist() == [16, 48, 0]
    assert theory.watermark_before.tolist() == theory.watermark_after.tolist() == [16, 48, 48]
