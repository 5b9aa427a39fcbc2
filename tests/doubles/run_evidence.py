"""One run's evidence, from a few numbers: ten requests of 100 tokens on a server in the form of vLLM 0.32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.doubles.metric_texts import engine, snapshot, vllm_text

from ais_bench_prefix_cache.analysis.diagnosis.evidence import Evidence
from ais_bench_prefix_cache.analysis.planned_traffic import PlannedTraffic, RequestColumns
from ais_bench_prefix_cache.analysis.request_comparison import compare_requests
from ais_bench_prefix_cache.analysis.run_facts import RunFacts
from ais_bench_prefix_cache.analysis.seen_request import SeenRequest
from ais_bench_prefix_cache.counters.difference import difference
from ais_bench_prefix_cache.counters.ranks import MetricsSnapshot
from ais_bench_prefix_cache.foundation.errors import SnapshotError
from ais_bench_prefix_cache.foundation.token_share import TokenShare

# Ten requests of 100 tokens; all but the first hit 64: 1000 queries, 576 hits.
COLUMNS = RequestColumns(
    group_ids=["group-0"] * 10,
    dp_ranks=[-1] * 10,
    lane_sequences=[-1] * 10,
    input_tokens=[100] * 10,
    hit_tokens=[0] + [64] * 9,
)
WARM = PlannedTraffic(
    mode="warmup",
    block_size=16,
    dp_size=1,
    requests=10,
    tokens=TokenShare(1000, 576),
    canonical_prefix_tokens={"group-0": 64},
    requests_with_hits=9,
    first_input_tokens=(100,) * 10,
)
# Requests of different lengths, so that an excess has only one reading.
SPREAD = replace(WARM, tokens=TokenShare(1045, 576), first_input_tokens=tuple(range(100, 110)))
COLD = replace(WARM, mode="cold", dp_size=2, by_rank={0: TokenShare(600, 320), 1: TokenShare(400, 256)})
# Ranks that the server chooses.
FREE = replace(COLD, by_rank={}, least_hits=320, most_hits=640)


def counted(
    queries: int, hits: int, planned: PlannedTraffic = WARM, *, config: Mapping[str, str] | None = None, **more: float
) -> Evidence:
    """One engine that counted so much between an empty baseline and the end."""
    zeros = dict.fromkeys(more, 0)
    return between(
        vllm_text(engine(0, 0, **zeros), config=config),
        vllm_text(engine(queries, hits, **more), config=config),
        planned,
    )


def between(baseline: str, after: str, planned: PlannedTraffic, dp_size: int = 1) -> Evidence:
    early, late = snapshot(baseline, dp_size=dp_size), snapshot(after, dp_size=dp_size)
    return Evidence(planned, early, late, difference(early, late))


def seen(
    evidence: Evidence,
    cached: list[int],
    prompt_tokens: int = 100,
    last_prompt_tokens: int | None = None,
    expected: list[int] | None = None,
) -> Evidence:
    """With responses of so many cached and prompt tokens; the last may count others, and others may be expected."""
    rows = [
        SeenRequest(index, "reported", cached_tokens=tokens, prompt_tokens=prompt_tokens)
        for index, tokens in enumerate(cached)
    ]
    if last_prompt_tokens is not None:
        rows[-1] = replace(rows[-1], prompt_tokens=last_prompt_tokens)
    columns = COLUMNS if expected is None else replace(COLUMNS, hit_tokens=expected)
    return replace(evidence, requests=compare_requests(columns, rows))


def facts(evidence: Evidence, **known: Any) -> Evidence:
    return replace(evidence, facts=RunFacts(**known))


def refused(baseline: str, after: str, dp_size: int = 1) -> Evidence:
    """Two texts that cannot be compared."""
    parsed: list[MetricsSnapshot | None] = []
    problems: list[Any] = []
    for text in (baseline, after):
        try:
            parsed.append(snapshot(text, dp_size=dp_size, where=["m"]))
        except SnapshotError as error:
            parsed.append(None)
            problems.extend(error.problems)
    if not problems:
        early, late = parsed
        assert early is not None and late is not None
        with pytest.raises(SnapshotError) as error_info:
            difference(early, late)
        problems.extend(error_info.value.problems)
    return Evidence(WARM, parsed[0], parsed[1], problems=tuple(problems))


EXACT = counted(1000, 576)
