"""Theory against the counters as integers, and the warnings that follow."""

from __future__ import annotations

import pytest
from tests.doubles.metric_texts import engine, snapshot, vllm_text

from ais_bench_prefix_cache.analysis.comparison import Comparison, compare
from ais_bench_prefix_cache.analysis.planned_traffic import PlannedTraffic
from ais_bench_prefix_cache.counters.difference import difference
from ais_bench_prefix_cache.foundation.token_share import TokenShare
from ais_bench_prefix_cache.scenario.model import ValidationConfig

COLD = PlannedTraffic(
    mode="cold",
    block_size=16,
    dp_size=2,
    requests=10,
    tokens=TokenShare(1000, 576),
    by_rank={0: TokenShare(600, 320), 1: TokenShare(400, 256)},
)
WARM = PlannedTraffic(mode="warmup", block_size=16, dp_size=2, requests=10, tokens=TokenShare(1000, 576))


def compared(planned: PlannedTraffic, first: tuple[int, int], second: tuple[int, int], pp: float = 5.0) -> Comparison:
    early = snapshot(vllm_text(engine(0, 0), engine(0, 0)), dp_size=2)
    late = snapshot(vllm_text(engine(*first, kv_cache_usage_perc=0.5), engine(*second)), dp_size=2)
    return compare(planned, difference(early, late), late, ValidationConfig(1.0, pp))


def test_cold_is_compared_rank_by_rank() -> None:
    comparison = compared(COLD, (600, 304), (400, 256))
    assert comparison.actual == {
        "by_dp": {
            "0": {
                "engine": "0",
                "queries": 600,
                "hits": 304,
                "hit_rate": 304 / 600,
                "kv_cache_usage": 0.5,
                "expected_queries": 600,
                "expected_hits": 320,
                "queries_difference": 0,
                "hits_difference": -16,
            },
            "1": {
                "engine": "1",
                "queries": 400,
                "hits": 256,
                "hit_rate": 0.64,
                "kv_cache_usage": None,
                "expected_queries": 400,
                "expected_hits": 256,
                "queries_difference": 0,
                "hits_difference": 0,
            },
        },
        "global_queries": 1000,
        "global_hits": 560,
        "global_hit_rate": 0.56,
        "expected_queries": 1000,
        "expected_hits": 576,
        "queries_difference": 0,
        "hits_difference": -16,
        "queries_source": "queries_counter",
    }
    assert comparison.signed_difference_pp == pytest.approx(-1.6)
    assert comparison.absolute_difference_pp == pytest.approx(1.6)
    assert comparison.warnings == ()


def test_warmup_is_compared_over_all_ranks() -> None:
    comparison = compared(WARM, (1000, 576), (0, 0))
    assert comparison.signed_difference_pp == 0
    assert "expected_hits" not in comparison.actual["by_dp"]["0"]
    assert comparison.actual["by_dp"]["1"]["hit_rate"] is None


def test_a_deviation_above_the_threshold_is_a_warning() -> None:
    (warning,) = compared(WARM, (500, 250), (500, 250)).warnings
    assert warning == {
        "code": "ACTUAL_DEVIATION",
        "message": "the counted hit rate 0.5000 is 7.60 percentage points away from the theoretical 0.5760 (warning "
        "above 5)",
        "theoretical_hit_rate": 0.576,
        "actual_hit_rate": 0.5,
        "difference_pp": pytest.approx(7.6),
        "threshold_pp": 5.0,
    }
    assert compared(WARM, (500, 250), (500, 250), pp=7.7).warnings == ()


@pytest.mark.parametrize(("counted", "words"), [(1007, "7 too many"), (993, "7 too few")])
def test_any_difference_in_queries_is_a_warning(counted: int, words: str) -> None:
    (warning,) = compared(WARM, (counted, 576), (0, 0)).warnings
    assert warning == {
        "code": "QUERIES_MISMATCH",
        "message": f"the server counted {counted} prompt tokens, planned were 1000: {words}",
        "expected_queries": 1000,
        "counted_queries": counted,
        "difference": counted - 1000,
    }


def blocks_counted(queries: int) -> Comparison:
    text = "vllm:gpu_prefix_cache_queries_total {}\nvllm:gpu_prefix_cache_hits_total {}\n"
    text += 'vllm:cache_config_info{{block_size="16"}} 1\n'
    early, late = (snapshot(text.format(*c), dp_size=1) for c in ((0, 0), (queries, 36)))
    planned = PlannedTraffic(mode="warmup", block_size=16, dp_size=1, requests=10, tokens=TokenShare(1000, 576))
    return compare(planned, difference(early, late), late, ValidationConfig(1.0, 5.0))


def test_counted_blocks_may_lack_the_incomplete_last_ones() -> None:
    # Ten prompts of 100 tokens have 60 whole blocks; the 40 tokens behind them are not counted.
    comparison = blocks_counted(60)
    assert (comparison.actual["global_queries"], comparison.actual["queries_source"]) == (960, "blocks")
    assert comparison.warnings == ()
    assert [warning["code"] for warning in blocks_counted(63).warnings] == ["QUERIES_MISMATCH"]


def test_an_external_tier_is_reported_beside_the_local_rate() -> None:
    early = snapshot(vllm_text(engine(0, 0)), dp_size=1)
    late = snapshot(
        vllm_text(engine(1000, 576, external_prefix_cache_queries=424, external_prefix_cache_hits=100)), dp_size=1
    )
    actual = compare(WARM, difference(early, late), late, ValidationConfig(1.0, 5.0)).actual
    assert (actual["global_hits"], actual["external_tier"]) == (576, {"queries": 424, "hits": 100})


def test_a_server_that_counts_for_all_ranks_has_no_ranks() -> None:
    text = "sglang:prompt_tokens_total {}\nsglang:cached_tokens_total {}\n"
    early, late = (snapshot(text.format(*c), dp_size=2) for c in ((0, 0), (1000, 576)))
    actual = compare(COLD, difference(early, late), late, ValidationConfig(1.0, 5.0)).actual
    assert (actual["by_dp"], actual["global_hits"]) == ({}, 576)


@pytest.mark.parametrize(
    ("hits", "nearer_end", "difference"), [(300, 320, -2.0), (320, 320, 0.0), (640, 640, 0.0), (700, 640, 6.0)]
)
def test_within_its_range_theory_is_met(hits: int, nearer_end: int, difference: float) -> None:
    """What stays on its rank hits 576; who routes freely may be anywhere between the ends."""
    free = PlannedTraffic("cold", 16, 2, 10, TokenShare(1000, 576), least_hits=320, most_hits=640)
    comparison = compared(free, (900, hits), (100, 0))
    assert comparison.actual["hits_range"] == {"least": 320, "most": 640}
    assert (comparison.actual["expected_hits"], comparison.actual["hits_difference"]) == (576, hits - 576)
    assert comparison.signed_difference_pp == pytest.approx(difference)
    assert free.hits_short(hits) == nearer_end - hits
    assert [warning["code"] for warning in comparison.warnings] == (["ACTUAL_DEVIATION"] if difference > 5 else [])
    assert all(warning["theoretical_hit_rate"] == nearer_end / 1000 for warning in comparison.warnings)
