"""Theory against the cached tokens of each response."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
from ais_bench_prefix_cache.analysis.request_comparison import (
    TIME_BUCKETS,
    RequestComparison,
    compare_requests,
)
from ais_bench_prefix_cache.analysis.seen_request import SeenRequest

COLUMNS = RequestColumns.from_rows(
    [
        {
            "group_id": f"group-{group}",
            "dp_rank": rank,
            "lane_sequence": lane,
            "actual_input_tokens": 100,
            "theoretical_hit_tokens": hits,
            "shared_prefix_tokens": hits,
            "max_tokens": 8,
        }
        for group, rank, lane, hits in [(0, 0, 0, 0), (10, 0, 0, 0), (2, 1, 0, 0), (0, 1, 0, 32), (0, 0, 1, 64)]
    ]
)


def reported(*cached: int) -> list[SeenRequest]:
    return [SeenRequest(i, "reported", cached_tokens=c, prompt_tokens=100) for i, c in enumerate(cached)]


def test_all_match() -> None:
    comparison = compare_requests(COLUMNS, reported(0, 0, 0, 32, 64))
    assert (comparison.compared, comparison.matched, comparison.mismatched) == (5, 5, 0)
    assert (comparison.first_mismatch, comparison.complete) == (None, True)
    assert comparison.as_json(96)["agrees_with_counters"] is True
    assert comparison.as_json(80)["agrees_with_counters"] is False


def test_requests_that_hit_although_they_begin_their_lane_are_counted() -> None:
    comparison = compare_requests(COLUMNS, reported(0, 16, 32, 32, 64))
    assert comparison.lane_starts_hit == 2
    assert RequestComparison.from_json(json.loads(json.dumps(comparison.as_json()))) == comparison


def test_the_first_mismatch_is_named_and_each_counted_by_group_and_rank() -> None:
    comparison = compare_requests(COLUMNS, reported(0, 0, 0, 16, 64))
    assert comparison.first_mismatch == {
        "request_id": "request-00000003",
        "sequence_index": 3,
        "group_id": "group-0",
        "dp_rank": 1,
        "lane_sequence": 0,
        "input_tokens": 100,
        "expected_hit_tokens": 32,
        "seen_hit_tokens": 16,
    }
    assert list(comparison.by_group) == ["group-0", "group-2", "group-10"]
    assert comparison.by_group["group-0"] == {
        "requests": 3,
        "matched": 2,
        "mismatched": 1,
        "input_tokens": 300,
        "expected_hits": 96,
        "seen_hits": 80,
    }
    assert {rank: tally["mismatched"] for rank, tally in comparison.by_rank.items()} == {"0": 0, "1": 1}
    assert comparison.shortfalls == {16: 1}
    assert (comparison.seen_step, comparison.seen_values) == (16, 2)


def test_null_nothing_and_zero_are_three_things() -> None:
    comparison = compare_requests(
        COLUMNS,
        [
            SeenRequest(0, "reported", cached_tokens=0),
            SeenRequest(1, "null"),
            SeenRequest(2, "absent"),
            SeenRequest(3, "reported", cached_tokens=32),
        ],
    )
    assert (comparison.compared, comparison.matched) == (2, 2)
    assert (comparison.null, comparison.absent, comparison.missing) == (1, 1, 1)
    assert comparison.complete is False
    assert comparison.as_json(32)["agrees_with_counters"] is None


def test_warmup_requests_have_no_rank() -> None:
    columns = replace(COLUMNS, dp_ranks=[-1] * 5, lane_sequences=[-1] * 5)
    comparison = compare_requests(columns, reported(0, 0, 0, 0, 0))
    assert comparison.by_rank == {}
    assert comparison.first_mismatch is not None
    assert (comparison.first_mismatch["dp_rank"], comparison.first_mismatch["lane_sequence"]) == (None, None)


def test_buckets_follow_the_times_and_are_bounded() -> None:
    count = 1000
    columns = RequestColumns(["group-0"] * count, [-1] * count, [-1] * count, [100] * count, [64] * count)
    # Sent in reverse order; the first 50 that were sent hit nothing.
    rows = [
        SeenRequest(i, "reported", cached_tokens=0 if count - i <= 50 else 64, sent=float(count - i))
        for i in range(count)
    ]
    buckets = compare_requests(columns, rows).over_time
    assert len(buckets) == TIME_BUCKETS
    assert [bucket["mismatched"] for bucket in buckets] == [50] + [0] * 19
    assert (buckets[0]["first_request"], buckets[0]["last_request"]) == (999, 950)


def test_prompt_tokens_retries_and_failures_are_kept() -> None:
    rows = [
        SeenRequest(0, "reported", cached_tokens=0, prompt_tokens=101, attempts=2),
        SeenRequest(1, "absent", prompt_tokens=99),
        SeenRequest(2, "absent", success=False),
    ]
    comparison = compare_requests(COLUMNS, rows)
    assert comparison.prompt_token_excess == (-1, 1)
    assert (comparison.retried, comparison.failed) == (1, 1)


def test_a_comparison_survives_its_json() -> None:
    comparison = compare_requests(COLUMNS, reported(0, 0, 16, 16, 64))
    document = json.loads(json.dumps(comparison.as_json(96)))
    assert RequestComparison.from_json(document) == comparison


def test_an_index_outside_of_the_data_set_is_refused() -> None:
    with pytest.raises(ValueError, match="request 5 of 5"):
        compare_requests(COLUMNS, [SeenRequest(5, "absent")])
