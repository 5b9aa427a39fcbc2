"""What the server's own words bring up, with the whole sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.doubles.metric_texts import engine, snapshot, vllm_text
from tests.doubles.run_evidence import EXACT, WARM, between, counted, facts, refused, seen

from ais_bench_prefix_cache.analysis.diagnosis.diagnose import diagnose
from ais_bench_prefix_cache.analysis.diagnosis.evidence import Evidence
from ais_bench_prefix_cache.analysis.run_facts import ResetFact
from ais_bench_prefix_cache.counters.difference import difference
from ais_bench_prefix_cache.foundation.codes import Code

Prom = Callable[[str], str]


CASES: list[tuple[Code, Evidence, str, str]] = [
    (
        Code.RESET_REFUSED,
        facts(EXACT, reset=ResetFact(accepted=False, attempts=5)),
        "error",
        "the server refused to reset its cache (5 tries)",
    ),
    (
        Code.RESET_IGNORED,
        facts(EXACT, reset=ResetFact(accepted=True, hits_after={0: 64, 1: 64})),
        "error",
        "the server answered that the cache was reset, and still hits what was cached before",
    ),
    (
        Code.RESET_PARTIAL,
        facts(EXACT, reset=ResetFact(accepted=False, hits_after={0: 0, 1: 64})),
        "error",
        "after the reset the rank 1 still hit what was cached before; the others do not",
    ),
    (
        Code.NO_HIT_SERIES,
        between("sglang:prompt_tokens_total 0\n", "sglang:prompt_tokens_total 1000\n", WARM),
        "warning",
        "sglang:cached_tokens_total is not shown: either nothing was hit, or this version does not count hits",
    ),
    (
        Code.SERVER_BUSY,
        counted(1000, 576, num_requests_running=2),
        "warning",
        "requests were under way when the after snapshot was taken",
    ),
    (
        Code.COUNTERS_DISAGREE,
        counted(1000, 576, prompt_tokens_cached=560),
        "warning",
        "the server counted 576 hits, and 560 cached prompt tokens",
    ),
    (
        Code.COUNTERS_DISAGREE,
        seen(counted(1000, 576), [0] + [64] * 8 + [48]),
        "warning",
        "the server counted 576 hits, and reported 560 in its responses",
    ),
    (
        Code.HITS_ABOVE_QUERIES,
        refused(vllm_text(engine(0, 0)), vllm_text(engine(100, 164))),
        "error",
        "rank 0: 164 hits were counted for 100 queries",
    ),
    (
        Code.SERVER_RESTARTED,
        refused(vllm_text(engine(0, 0)), vllm_text(engine(100, 64), start=950.0)),
        "error",
        "process_start_time_seconds: the snapshots are of different processes: it was restarted in between, or another "
        "server answered (it was 900.000, it is 950.000)",
    ),
    (
        Code.ROLES_MIXED,
        refused(
            vllm_text(engine(0, 0)).replace('engine="0"', 'engine="0",role="decode"'),
            vllm_text(engine(100, 64)).replace('engine="0"', 'engine="0",role="prefill"'),
        ),
        "error",
        'm: only the decode side is shown (role="decode"), which gets its prompts from the prefill side',
    ),
    (
        Code.COUNTERS_FELL,
        refused(vllm_text(engine(500, 0)), vllm_text(engine(100, 64))),
        "error",
        'rank 0: vllm:prefix_cache_queries_total{engine="0",model_name="m"} fell from 500 to 100',
    ),
    (
        Code.RANKS_MISSING,
        refused(vllm_text(engine(0, 0)), vllm_text(engine(0, 0), engine(9, 0)), dp_size=2),
        "error",
        "m: rank 1 of 2 not found among the engine labels (0)",
    ),
    (
        Code.NO_TRAFFIC,
        refused(vllm_text(engine(7, 0)), vllm_text(engine(7, 0))),
        "error",
        "vllm:prefix_cache_queries_total: no queries between the snapshots (it is 7 in both); that is no data, not a "
        "hit rate of 0",
    ),
    (
        Code.PREFIX_CACHING_OFF,
        refused(
            vllm_text(engine(0, 0), config={"enable_prefix_caching": "False"}),
            vllm_text(engine(0, 0), config={"enable_prefix_caching": "False"}),
        ),
        "error",
        "the server says that prefix caching is off (cache_config_info: enable_prefix_caching)",
    ),
]


@pytest.mark.parametrize(("code", "evidence", "severity", "message"), CASES, ids=[case[0] for case in CASES])
def test_the_evidence_brings_up_its_finding_alone(code: Code, evidence: Evidence, severity: str, message: str) -> None:
    findings = diagnose(evidence)
    assert [(f.code, f.severity, f.message) for f in findings] == [(code, severity, message)]
    assert findings[0].evidence and findings[0].remedy.endswith(".")


def test_a_sleeping_real_server(prom: Prom) -> None:
    look = snapshot(prom("02"), dp_size=1)
    (finding,) = diagnose(Evidence(replace(WARM, block_size=32), None, look))
    assert (finding.code, finding.message) == (
        Code.SERVER_ASLEEP,
        "the server was asleep when the after snapshot was taken; falling asleep empties the cache",
    )


def test_real_texts_without_counters(prom: Prom) -> None:
    (no_stats,) = diagnose(refused(prom("06"), vllm_text(engine(0, 0))))
    assert (no_stats.code, no_stats.severity) == (Code.NO_LOG_STATS, "error")
    (gauge,) = diagnose(refused(vllm_text(engine(0, 0)), prom("25")))
    assert gauge.code == Code.GAUGE_ONLY
    assert gauge.message == (
        "m: only a momentary hit-rate gauge (vllm:*cache_hit_rate) is shown; no counters of queries and hits"
    )


def test_a_server_that_counts_blocks(prom: Prom) -> None:
    info = 'vllm:cache_config_info{block_size="16"} 1.0\n'
    late = prom("26").replace(" 1000.0", " 1060.0").replace(" 600.0", " 636.0")
    (finding,) = diagnose(between(prom("26") + info, late + info, WARM))
    # 60 blocks of ten prompts of 100 tokens (6 whole blocks each), 36 of them hit: 576 tokens.
    assert (finding.code, finding.message) == (
        Code.BLOCK_COUNTERS,
        "this server counts blocks of 16 tokens (vLLM 0.7.3 to 0.8.5); they were multiplied; each prompt's incomplete "
        "last block is not counted, so the rate is a little too high",
    )
    (without_size,) = diagnose(refused(prom("26"), late))
    assert without_size.code == Code.BLOCK_COUNTERS and without_size.severity == "error"


def test_a_reset_that_was_not_asked_for_is_no_finding() -> None:
    assert diagnose(facts(EXACT, reset=ResetFact(accepted=False, attempts=0), assumed_empty=True)) == []


def test_a_refused_reset_of_an_empty_cache_is_a_note() -> None:
    (finding,) = diagnose(facts(EXACT, reset=ResetFact(accepted=False, hits_after={0: 0})))
    assert (finding.code, finding.severity) == ("RESET_REFUSED", "note")
    assert finding.message == "the server refused to reset its cache (1 try)"


def test_a_replaced_worker_is_named_by_its_series() -> None:
    findings = diagnose(
        refused(
            vllm_text(engine(500, 0)).replace('engine="0"', 'engine="0",WorkerId="a"'),
            vllm_text(engine(900, 64)).replace('engine="0"', 'engine="0",WorkerId="b"'),
        )
    )
    assert {finding.code for finding in findings} == {Code.SERIES_CHANGED}
    assert [finding.message for finding in findings if "queries" in finding.message] == [
        'rank 0: vllm:prefix_cache_queries_total{WorkerId="a",engine="0",model_name="m"} went away between the '
        "snapshots; it was 500",
        'rank 0: vllm:prefix_cache_queries_total{WorkerId="b",engine="0",model_name="m"} appeared between the '
        "snapshots; it is 900",
    ]


def test_a_process_that_was_started_before_the_first_one_is_no_restart() -> None:
    (finding,) = diagnose(refused(vllm_text(engine(0, 0), start=950.0), vllm_text(engine(100, 64))))
    assert finding.code == "SERVER_RESTARTED"
    assert finding.message == (
        "process_start_time_seconds: the snapshots are of different processes, and the second was started before the "
        "first: the files are swapped, or another server answered (it was 950.000, it is 900.000)"
    )


def test_hits_that_were_counted_outweigh_a_label_that_says_that_nothing_is_cached() -> None:
    off = {"enable_prefix_caching": "False"}
    assert diagnose(counted(1000, 576, config=off)) == []
    findings = diagnose(counted(1000, 560, config=off))
    assert [(finding.code, finding.severity) for finding in findings] == [
        ("HITS_MISSING", "warning"),
        ("PREFIX_CACHING_OFF", "note"),
    ]
    (nothing,) = diagnose(counted(1000, 0, config=off))
    assert (nothing.code, nothing.severity) == ("PREFIX_CACHING_OFF", "error")


def test_one_text_in_the_place_of_two_is_named() -> None:
    def two_ports(created: float) -> Evidence:
        early, late = (
            snapshot(vllm_text(engine(*counts)), vllm_text(engine(*counts), created=created), dp_size=2)
            for counts in ((0, 0), (500, 288))
        )
        return Evidence(replace(WARM, dp_size=2), early, late, difference(early, late))

    (finding,) = diagnose(two_ports(1000.0))
    assert (finding.code, finding.severity, finding.evidence["ranks"]) == ("RANKS_MISSING", "warning", [0, 1])
    assert finding.message == (
        "two texts show the same series, values and times of creation for the ranks 0 and 1, which is consistent with "
        "one server's text given twice"
    )
    assert diagnose(two_ports(1000.25)) == []
