"""Whatever two texts say, the analysis is a JSON document whose parts agree, or a SnapshotError with findings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doubles.fake_service import service_config
from tests.doubles.metric_texts import engine, vllm_text

from ais_bench_prefix_cache.analysis.analysis_document import SnapshotTexts, analyze_run, explain_unusable
from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
from ais_bench_prefix_cache.foundation.errors import SnapshotError
from ais_bench_prefix_cache.reporting.summary_table import render_summary_table
from ais_bench_prefix_cache.scenario.model import ValidationConfig

TEXTS = [path.read_bytes().decode() for path in sorted((Path(__file__).parent.parent / "data" / "prom").iterdir())]
COLUMNS = RequestColumns(
    group_ids=["group-0"] * 10,
    dp_ranks=[0, 1] * 5,
    lane_sequences=[n // 2 for n in range(10)],
    input_tokens=[100] * 10,
    hit_tokens=[0, 0] + [64] * 8,
    shared_prefix_tokens=[64] * 10,
    max_tokens=[4] * 10,
)


def documents(dp_size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    cold = dp_size == 2
    manifest = {
        "prefix_cache": {"mode": "cold" if cold else "warmup"},
        "tokenizer": {"block_size": 16},
        "dp": {"size": dp_size},
        "requests": {"count": 10, "input_length_summary": {"max": 100}},
        "groups": {"group-0": {"canonical_prefix_tokens": 64}},
        "warmup": {"plan": []},
    }
    share = {"input_tokens": 500, "hit_tokens": 256}
    analysis = {
        "requested_target_hit_rate": 0.5,
        "theoretical_hit_rate": 0.512,
        "target_absolute_difference_pp": 1.2,
        "validation": {},
        "theory": {"input_tokens": 1000, "hit_tokens": 512, "dp": {"0": share, "1": share} if cold else {}},
        "warnings": [],
    }
    return manifest, analysis


def check(baseline: str, after: str, dp_size: int, columns: RequestColumns | None) -> None:
    manifest, analysis = documents(dp_size)
    if columns is not None and dp_size == 1:
        columns = replace(columns, dp_ranks=[-1] * 10, lane_sequences=[-1] * 10)
    arguments: dict[str, Any] = {
        "manifest": manifest,
        "previous_analysis": analysis,
        "baseline": SnapshotTexts((baseline,), ("b",)),
        "after": SnapshotTexts((after,), ("a",)),
        "service": service_config(dp_size=dp_size),
    }
    try:
        document = analyze_run(**arguments, validation=ValidationConfig(1.0, 5.0), status="analyzed", columns=columns)
    except SnapshotError as error:
        json.dumps([f.as_json() for f in explain_unusable(error, **arguments)], allow_nan=False)
        return
    json.dumps(document, allow_nan=False)
    assert render_summary_table(document)
    actual = document["actual"]
    assert 0 <= actual["global_hits"] <= actual["global_queries"] > 0
    assert actual["global_hit_rate"] == actual["global_hits"] / actual["global_queries"]
    ranks = actual["by_dp"].values()
    if ranks:
        assert sum(rank["queries"] for rank in ranks) == actual["global_queries"]
        assert sum(rank["hits"] for rank in ranks) == actual["global_hits"]
    assert all(rank["hit_rate"] is None or 0 <= rank["hit_rate"] <= 1 for rank in ranks)
    # Where counters and theory agree, rank by rank where that is planned, nothing may be said about hits or traffic.
    exact = actual["queries_difference"] == actual["hits_difference"] == 0 and not any(
        rank.get("queries_difference") or rank.get("hits_difference") for rank in ranks
    )
    if exact:
        assert not document["warnings"]
        assert not {f["code"] for f in document["findings"]} & {"FOREIGN_TRAFFIC", "HITS_MISSING", "CACHE_NOT_EMPTY"}
    elif actual["hits_difference"]:
        assert document["findings"]


@settings(max_examples=100, deadline=None)
@given(baseline=st.sampled_from(TEXTS), after=st.sampled_from(TEXTS), dp_size=st.integers(1, 2))
def test_any_two_recorded_texts(baseline: str, after: str, dp_size: int) -> None:
    check(baseline, after, dp_size, None)


small = st.integers(0, 40).map(lambda n: 16 * n)
names = st.sampled_from(
    [
        "num_preemptions",
        "prompt_tokens",
        "prompt_tokens_cached",
        "request_success",
        "external_prefix_cache_hits",
        "spec_decode_num_drafts",
        "num_requests_running",
    ]
)
counters = st.builds(
    lambda queries, hits, more: engine(queries, hits, **more),
    st.integers(0, 60).map(lambda n: 20 * n) | st.integers(0, 1200),
    small | st.integers(0, 700),
    st.dictionaries(names, st.integers(0, 1200), max_size=4),
)
configs = st.fixed_dictionaries(
    {},
    optional={
        "block_size": st.sampled_from(["16", "24", "32", "None", ""]),
        "kv_cache_size_tokens": st.sampled_from(["160000", "128", "320000", "100001", "0"]),
        "num_gpu_blocks": st.sampled_from(["0", "8", "10000", "20000"]),
        "enable_prefix_caching": st.sampled_from(["True", "False"]),
        "sliding_window": st.sampled_from(["512", "None"]),
    },
)


@settings(max_examples=200, deadline=None)
@given(
    dp_size=st.integers(1, 2),
    engines=st.lists(counters, min_size=4, max_size=4),
    config=configs,
    blocks=st.booleans(),
    rows=st.booleans(),
)
def test_any_two_made_texts(
    dp_size: int, engines: list[dict[str, float]], config: dict[str, str], blocks: bool, rows: bool
) -> None:
    baseline = vllm_text(*engines[:dp_size], config=config)
    after = vllm_text(*engines[2 : 2 + dp_size], config=config)
    if blocks:
        help_text = "# HELP vllm:gpu_prefix_cache_queries_total in terms of number of queried blocks.\n"
        baseline, after = (help_text + t.replace("vllm:prefix", "vllm:gpu_prefix") for t in (baseline, after))
    check(baseline, after, dp_size, COLUMNS if rows else None)


@settings(max_examples=100, deadline=None)
@given(queries=st.integers(990, 1010), hits=st.integers(500, 520), preemptions=st.integers(0, 1))
def test_texts_near_the_plan(queries: int, hits: int, preemptions: int) -> None:
    late = engine(queries, hits, num_preemptions=preemptions)
    check(vllm_text(engine(0, 0)), vllm_text(late), 1, COLUMNS)
