"""A data set in the numbers that a comparison needs."""

from __future__ import annotations

from typing import Any

from ais_bench_prefix_cache.analysis.planned_traffic import PlannedTraffic, RequestColumns
from ais_bench_prefix_cache.foundation.token_share import TokenShare


def row(number: int, **changes: Any) -> dict[str, Any]:
    values = {
        "group_id": "group-0",
        "dp_rank": None,
        "lane_sequence": None,
        "actual_input_tokens": 100 + number,
        "theoretical_hit_tokens": 64 if number else 0,
        "shared_prefix_tokens": 64,
        "max_tokens": 4,
    }
    return {**values, **changes}


def test_rows_become_columns() -> None:
    columns = RequestColumns.from_rows([row(0), row(1, dp_rank=1, lane_sequence=0)])
    assert (list(columns.dp_ranks), list(columns.lane_sequences)) == ([-1, 1], [-1, 0])
    assert (list(columns.input_tokens), list(columns.hit_tokens)) == ([100, 101], [0, 64])
    assert len(columns) == 2


def test_theory_and_rows_together() -> None:
    manifest = {
        "prefix_cache": {"mode": "cold"},
        "tokenizer": {"block_size": 16},
        "dp": {"size": 2},
        "requests": {"count": 70},
        "groups": {"group-0": {"canonical_prefix_tokens": 64}},
    }
    share = {"input_tokens": 600, "hit_tokens": 320}
    analysis = {"theory": {"input_tokens": 1000, "hit_tokens": 576, "dp": {"0": share, "1": share}}}
    columns = RequestColumns.from_rows(row(number) for number in range(70))
    planned = PlannedTraffic.from_documents(manifest, analysis, columns)
    assert (planned.tokens, planned.by_rank[1]) == (TokenShare(1000, 576), TokenShare(600, 320))
    assert (planned.requests_with_hits, planned.first_input_tokens[:2], len(planned.first_input_tokens)) == (
        69,
        (100, 101),
        64,
    )
    assert PlannedTraffic.from_documents(manifest, analysis).requests_with_hits is None
