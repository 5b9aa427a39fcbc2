"""The content of analysis.json from two texts: statuses, what is kept, what is made anew."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.doubles.fake_service import service_config
from tests.doubles.metric_texts import engine, vllm_text

from ais_bench_prefix_cache.analysis.analysis_document import SnapshotTexts, analyze_run, explain_unusable
from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
from ais_bench_prefix_cache.analysis.request_comparison import compare_requests
from ais_bench_prefix_cache.analysis.run_facts import RunFacts
from ais_bench_prefix_cache.analysis.seen_request import SeenRequest
from ais_bench_prefix_cache.foundation.errors import SnapshotError
from ais_bench_prefix_cache.reporting.summary_table import render_summary_table
from ais_bench_prefix_cache.scenario.model import ValidationConfig

MANIFEST: dict[str, Any] = {
    "prefix_cache": {"mode": "warmup"},
    "tokenizer": {"block_size": 16},
    "dp": {"size": 1, "cold_route_strategy": None},
    "requests": {"count": 10, "input_length_summary": {"max": 100}},
    "groups": {"group-0": {"canonical_prefix_tokens": 64}},
}
DEVIATION = {"code": "TARGET_DEVIATION", "message": "the theoretical hit rate …"}
PREPARED: dict[str, Any] = {
    "schema_version": "1.0",
    "run_id": "r_20260825_123456",
    "status": "prepared",
    "requested_target_hit_rate": 0.6,
    "effective_target_hit_rate": 0.576,
    "theoretical_hit_rate": 0.576,
    "target_difference_pp": 2.4,
    "target_signed_difference_pp": -2.4,
    "target_absolute_difference_pp": 2.4,
    "validation": {
        "target_reachable": True,
        "status": "PASS_WITH_WARNING",
        "warning_only": True,
        "affects_exit_code": False,
    },
    "theory": {
        "input_tokens": 1000,
        "hit_tokens": 576,
        "hit_rate": 0.576,
        "groups": {"group-0": {"requests": 10, "input_tokens": 1000, "hit_tokens": 576, "hit_rate": 0.576}},
        "dp": {},
    },
    "warnings": [DEVIATION],
    "content_sha256": "0" * 64,
}
COLUMNS = RequestColumns(["group-0"] * 10, [-1] * 10, [-1] * 10, [100] * 10, [0] + [64] * 9)
SERVICE = service_config(dp_size=1)
EMPTY = vllm_text(engine(0, 0, kv_cache_usage_perc=0.0))


def texts(*all_texts: str, name: str = "t") -> SnapshotTexts:
    return SnapshotTexts(all_texts, tuple(f"{name}{i}" for i in range(len(all_texts))))


def analyzed(queries: int, hits: int, previous: dict[str, Any] = PREPARED, **more: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "manifest": MANIFEST,
        "previous_analysis": previous,
        "baseline": texts(EMPTY),
        "after": texts(vllm_text(engine(queries, hits, kv_cache_usage_perc=0.25))),
        "service": SERVICE,
        "validation": ValidationConfig(1.0, 5.0),
        "status": "analyzed",
        "columns": COLUMNS,
    }
    document = analyze_run(**{**arguments, **more})
    json.dumps(document, allow_nan=False)
    return document


def test_all_keys_in_the_contracts_order() -> None:
    document = analyzed(1000, 576)
    assert list(document) == [
        *(key for key in PREPARED if key != "content_sha256"),
        "runtime",
        "actual",
        "theory_actual_difference_pp",
        "theory_actual_signed_difference_pp",
        "theory_actual_absolute_difference_pp",
        "findings",
    ]
    assert document["status"] == "analyzed"
    assert document["theory_actual_difference_pp"] == 0
    assert document["findings"] == []
    assert document["validation"] == {
        "target_reachable": True,
        "status": "PASS_WITH_WARNING",
        "warning_only": True,
        "affects_exit_code": False,
        "actual_status": "PASS",
    }
    assert document["warnings"] == [DEVIATION]


def test_the_snapshots_are_kept_with_names_numbers_and_raw_text() -> None:
    section = analyzed(1000, 576)["runtime"]["metrics_after"]
    assert section == {
        "server": "vllm",
        "queries_metric": "vllm:prefix_cache_queries_total",
        "hits_metric": "vllm:prefix_cache_hits_total",
        "unit": "tokens",
        "by_dp": {"0": {"engine": "0", "queries": 1000, "hits": 576, "kv_cache_usage": 0.25}},
        "raw_prometheus": vllm_text(engine(1000, 576, kv_cache_usage_perc=0.25)),
    }


def test_raw_texts_of_several_ports_are_a_list() -> None:
    one, two = vllm_text(engine(0, 0)), vllm_text(engine(0, 0), labels=("1",))
    late = vllm_text(engine(1000, 576)), two
    service = service_config(dp_size=2)
    document = analyzed(0, 0, baseline=texts(one, two), after=texts(*late), service=service)
    assert document["runtime"]["metrics_baseline"]["raw_prometheus"] == [one, two]
    assert document["runtime"]["metrics_after"]["raw_prometheus"] == list(late)


def test_a_deviation_and_a_mismatch_warn_and_say_what_they_suggest() -> None:
    document = analyzed(1010, 300)
    assert [warning["code"] for warning in document["warnings"]] == [
        "TARGET_DEVIATION",
        "ACTUAL_DEVIATION",
        "QUERIES_MISMATCH",
    ]
    assert document["warnings"][2]["message"] == (
        "the server counted 1010 prompt tokens, planned were 1000: 10 too many - the sum is 1 token more for each "
        "request, which is consistent with a special token (BOS) or a template in every prompt, and with other traffic "
        "of that size"
    )
    assert document["warnings"][2]["suggests"] == ["TOKENS_ADDED"]
    assert document["validation"]["actual_status"] == "PASS_WITH_WARNING"
    assert [finding["code"] for finding in document["findings"]] == ["TOKENS_ADDED"]


def test_a_clean_rerun_forgets_old_warnings_and_findings() -> None:
    bad = analyzed(1010, 300)
    clean = analyzed(1000, 576, previous={**bad, "content_sha256": "1" * 64})
    assert clean == analyzed(1000, 576)


def test_no_warning_at_all_is_a_pass() -> None:
    previous = {**PREPARED, "warnings": []}
    assert analyzed(1000, 576, previous)["validation"]["status"] == "PASS"
    assert analyzed(1000, 300, previous)["validation"]["status"] == "PASS_WITH_WARNING"


def test_a_run_hands_in_its_runtime_and_analyze_keeps_it() -> None:
    seen = [SeenRequest(i, "reported", cached_tokens=c) for i, c in enumerate([0] + [64] * 8 + [48])]
    run = analyzed(
        1000,
        560,
        status="complete",
        runtime={"phases": {"precheck": "done"}, "kv_cache_polling": {"interval": 5.0}},
        facts=RunFacts(assumed_empty=True, engine_label_map={"0": 0}),
        requests=compare_requests(COLUMNS, seen),
    )
    assert run["status"] == "complete"
    assert [warning["code"] for warning in run["warnings"]] == ["TARGET_DEVIATION", "ASSUME_EMPTY_CACHE"]
    assert run["requests"]["agrees_with_counters"] is True
    again = analyzed(1000, 560, previous=json.loads(json.dumps(run)))
    assert again["status"] == "analyzed"
    assert again["runtime"] == run["runtime"]
    assert {**again, "status": "complete"} == run


def test_the_map_that_probes_proved_is_used_offline() -> None:
    service = service_config(dp_size=2)
    labels = ("left", "right")
    run = {"runtime": {"facts": {"engine_label_map": {"left": 1, "right": 0}}}}
    document = analyzed(
        0,
        0,
        previous={**PREPARED, **run},
        baseline=texts(vllm_text(engine(0, 0), engine(0, 0), labels=labels)),
        after=texts(vllm_text(engine(600, 300), engine(400, 276), labels=labels)),
        service=service,
    )
    assert {rank: entry["engine"] for rank, entry in document["actual"]["by_dp"].items()} == {"0": "right", "1": "left"}


def test_problems_of_both_texts_come_at_once_and_are_explained() -> None:
    arguments: dict[str, Any] = {
        "manifest": MANIFEST,
        "previous_analysis": PREPARED,
        "baseline": texts("", name="baseline"),
        "after": texts("python_info 1\n", name="after"),
        "service": SERVICE,
    }
    with pytest.raises(SnapshotError) as refused:
        analyze_run(**arguments, validation=ValidationConfig(1.0, 5.0), status="analyzed")
    assert [(p.code, p.where) for p in refused.value.problems] == [
        ("SNAPSHOT_EMPTY", "baseline0"),
        ("SNAPSHOT_NO_ENGINE_METRICS", "after0"),
    ]
    assert [finding.code for finding in explain_unusable(refused.value, **arguments)] == ["NO_LOG_STATS"]


def test_the_table_before_and_after() -> None:
    assert (
        render_summary_table(PREPARED)
        == """\
╒══════════════════════════════╤══════════════╕
│ Prefix Cache Metric          │ Value        │
╞══════════════════════════════╪══════════════╡
│ Overall target hit rate      │ 60.00%       │
├──────────────────────────────┼──────────────┤
│ Overall theoretical hit rate │ 57.60%       │
├──────────────────────────────┼──────────────┤
│ Overall actual hit rate      │ not measured │
├──────────────────────────────┼──────────────┤
│ Theory-actual deviation      │ not measured │
├──────────────────────────────┼──────────────┤
│ Theory-target deviation      │ 2.40 pp      │
╘══════════════════════════════╧══════════════╛"""
    )
    service = service_config(dp_size=2)
    seen = [SeenRequest(i, "reported", cached_tokens=c) for i, c in enumerate([0] + [64] * 8 + [48])]
    document = analyzed(
        0,
        0,
        baseline=texts(vllm_text(engine(0, 0), engine(0, 0))),
        after=texts(vllm_text(engine(1000, 560), engine(0, 0))),
        service=service,
        requests=compare_requests(COLUMNS, seen),
    )
    assert (
        render_summary_table(document)
        == """\
╒══════════════════════════════╤═════════════════════════════╕
│ Prefix Cache Metric          │ Value                       │
╞══════════════════════════════╪═════════════════════════════╡
│ Overall target hit rate      │ 60.00%                      │
├──────────────────────────────┼─────────────────────────────┤
│ Overall theoretical hit rate │ 57.60%                      │
├──────────────────────────────┼─────────────────────────────┤
│ Overall actual hit rate      │ 56.00%                      │
├──────────────────────────────┼─────────────────────────────┤
│ Theory-actual deviation      │ 1.60 pp                     │
├──────────────────────────────┼─────────────────────────────┤
│ Theory-target deviation      │ 2.40 pp                     │
├──────────────────────────────┼─────────────────────────────┤
│ Theoretical hits             │ 576 of 1000 tokens          │
├──────────────────────────────┼─────────────────────────────┤
│ Actual hits                  │ 560 of 1000 tokens          │
├──────────────────────────────┼─────────────────────────────┤
│ DP rank 0 actual hit rate    │ 56.00% (560 of 1000 tokens) │
├──────────────────────────────┼─────────────────────────────┤
│ DP rank 1 actual hit rate    │ no queries                  │
├──────────────────────────────┼─────────────────────────────┤
│ Requests as predicted        │ 9 of 10                     │
╘══════════════════════════════╧═════════════════════════════╛"""
    )
