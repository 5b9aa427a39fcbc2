"""Each finding code from the evidence that must bring it up, with its whole sentence; and none without evidence."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.metric_texts import engine, vllm_text

from ais_bench_prefix_cache.analysis import diagnosis
from ais_bench_prefix_cache.analysis.diagnosis import Evidence, Finding, diagnose
from ais_bench_prefix_cache.analysis.planned_traffic import PlannedShare, PlannedTraffic, RequestColumns
from ais_bench_prefix_cache.analysis.request_comparison import SeenRequest, compare_requests
from ais_bench_prefix_cache.analysis.run_facts import CachePrediction, ProbeFact, ResetFact, RunFacts, TokenizationFact
from ais_bench_prefix_cache.counters.difference import difference
from ais_bench_prefix_cache.counters.snapshot import MetricsSnapshot, parse_snapshot
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import SnapshotError

Prom = Callable[[str], str]

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
    input_tokens=1000,
    hit_tokens=576,
    canonical_prefix_tokens={"group-0": 64},
    requests_with_hits=9,
    first_input_tokens=(100,) * 10,
    longest_input_tokens=100,
)
# Requests of different lengths, so that an excess has only one reading.
SPREAD = replace(WARM, input_tokens=1045, first_input_tokens=tuple(range(100, 110)))
COLD = replace(WARM, mode="cold", dp_size=2, by_rank={0: PlannedShare(600, 320), 1: PlannedShare(400, 256)})


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
    early, late = parse_snapshot(baseline, dp_size=dp_size), parse_snapshot(after, dp_size=dp_size)
    return Evidence(planned, early, late, difference(early, late))


def seen(evidence: Evidence, cached: list[int], prompt_tokens: int = 100) -> Evidence:
    rows = [
        SeenRequest(index, "reported", cached_tokens=tokens, prompt_tokens=prompt_tokens)
        for index, tokens in enumerate(cached)
    ]
    return replace(evidence, requests=compare_requests(COLUMNS, rows))


def facts(evidence: Evidence, **known: Any) -> Evidence:
    return replace(evidence, facts=RunFacts(**known))


def refused(baseline: str, after: str, dp_size: int = 1) -> Evidence:
    """Two texts that cannot be compared."""
    parsed: list[MetricsSnapshot | None] = []
    problems: list[Any] = []
    for text in (baseline, after):
        try:
            parsed.append(parse_snapshot(text, dp_size=dp_size, where="m"))
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


def test_repeats_that_hit_more_are_no_larger_blocks() -> None:
    # Seen with retries on a real vLLM: 192 and, for a repeated request, 288 tokens in blocks of 32.
    requests = seen(counted(1000, 768), [96, 48, 48, 48, 96, 96, 96, 96, 96, 96])
    assert requests.requests is not None and requests.requests.seen_step == 48
    assert "SERVER_BLOCK_SIZE_MULTIPLE" not in {finding.code for finding in diagnose(requests)}


CASES: list[tuple[str, Evidence, str, str]] = [
    (
        "WRONG_BLOCK_SIZE",
        counted(1000, 432, config={"block_size": "24", "kv_cache_size_tokens": "240000"}),
        "error",
        "the server caches in blocks of 24 tokens, tokenizer.block_size is 16",
    ),
    (
        "SERVER_BLOCK_SIZE_MULTIPLE",
        counted(1000, 0, config={"block_size": "128", "kv_cache_size_tokens": "1280000"}),
        "error",
        "the server caches in blocks of 128 tokens, tokenizer.block_size is 16",
    ),
    (
        # Decode context parallelism of 2: the cache holds twice the tokens of its blocks.
        "SERVER_BLOCK_SIZE_MULTIPLE",
        counted(1000, 288, config={"kv_cache_size_tokens": "320000"}),
        "error",
        "the server's hits come in steps of 32 tokens, tokenizer.block_size is 16: with decode context parallelism a "
        "block spans several devices",
    ),
    (
        "SERVER_BLOCK_SIZE_MULTIPLE",
        seen(counted(1000, 352), [0, 32, 64, 32, 32, 64, 32, 32, 32, 32]),
        "error",
        "all cached_tokens that responses reported are multiples of 32, tokenizer.block_size is 16",
    ),
    (
        "WRONG_BLOCK_SIZE",
        seen(counted(1000, 528), [0, 48, 72, 48, 72, 48, 72, 48, 72, 48]),
        "error",
        "the cached_tokens that responses reported are multiples of 24 but not of tokenizer.block_size, 16",
    ),
    (
        "TOKENIZER_DIFFERS",
        facts(EXACT, tokenization=(TokenizationFact("group-0", 5, 100, 98, 7, 8),)),
        "error",
        "the server encodes the prompt of group-0 otherwise from token 5 on (98 tokens there, 100 here)",
    ),
    (
        "TOKENIZER_DIFFERS",
        counted(1007, 576, request_success=10),
        "error",
        "the server counts other numbers of tokens in the same prompts: it uses another tokenizer",
    ),
    (
        "TOKENS_ADDED",
        counted(1010, 576, request_success=10),
        "error",
        "the server counts 1 token more in every prompt than the data set: a special token (BOS) or a template",
    ),
    (
        "TOKENS_ADDED",
        counted(1020, 576),
        "error",
        "the server counts 2 tokens more in every prompt than the data set: a special token (BOS) or a template",
    ),
    (
        "TOKENS_ADDED",
        seen(counted(1010, 576), [0] + [64] * 9, prompt_tokens=101),
        "error",
        "the server counts 1 token more in every prompt than the data set: a special token (BOS) or a template",
    ),
    (
        "TOKENS_MISSING",
        counted(990, 576, request_success=10),
        "error",
        "the server counts 1 token fewer in every prompt than the data set: a special token (BOS) or a template",
    ),
    (
        "AISBENCH_WARMUPS",
        counted(1145, 576, SPREAD, request_success=11),
        "error",
        "the 100 tokens too many are exactly those of the first rows sent 1 more time: AISBench's own warm-ups",
    ),
    (
        "AISBENCH_WARMUPS",
        counted(1246, 576, SPREAD),
        "error",
        "the 201 tokens too many are exactly those of the first rows sent 2 more times: AISBench's own warm-ups",
    ),
    (
        "RETRIES",
        facts(counted(1100, 576, request_success=11), retried_requests=1, aisbench_warmups=0),
        "error",
        "1 request was sent more than once",
    ),
    (
        "RETRIES",
        facts(counted(1149, 576, SPREAD, request_success=11), retried_requests=1),
        "error",
        "1 request was sent more than once",
    ),
    (
        "FOREIGN_TRAFFIC",
        counted(1053, 576, SPREAD, request_success=12),
        "error",
        "the server counted 8 prompt tokens that this run did not send (2 requests)",
    ),
    (
        "REQUESTS_MISSING",
        facts(counted(845, 448, SPREAD, request_success=8), failed_requests=2),
        "error",
        "the server counted 200 prompt tokens fewer than planned: requests were not sent, were refused, failed or "
        "bypassed the cache",
    ),
    (
        "RANK_HEADER_IGNORED",
        facts(EXACT, probes=(ProbeFact(0, "0", 0), ProbeFact(1, "0", 0))),
        "error",
        "a probe sent to rank 1 moved the counter of rank 0",
    ),
    (
        "RANK_HEADER_IGNORED",
        between(vllm_text(engine(0, 0), engine(0, 0)), vllm_text(engine(500, 288), engine(500, 288)), COLD, 2),
        "error",
        "all planned tokens were counted, but on other ranks than planned: the server did not follow "
        "X-data-parallel-rank",
    ),
    (
        "ENGINE_MAP_WRONG",
        between(vllm_text(engine(0, 0), engine(0, 0)), vllm_text(engine(400, 256), engine(600, 320)), COLD, 2),
        "error",
        "the ranks counted each other's tokens: the engine labels belong to other ranks",
    ),
    (
        "RESET_REFUSED",
        facts(EXACT, reset=ResetFact(accepted=False, status=200, attempts=5)),
        "error",
        "the server refused to reset its cache (5 tries)",
    ),
    (
        "RESET_IGNORED",
        facts(EXACT, reset=ResetFact(accepted=True, status=200, hits_after={0: 64, 1: 64})),
        "error",
        "the server answered that the cache was reset, and still hits what was cached before",
    ),
    (
        "RESET_PARTIAL",
        facts(EXACT, reset=ResetFact(accepted=False, status=200, hits_after={0: 0, 1: 64})),
        "error",
        "after the reset the rank 1 still hit what was cached before; the others do not",
    ),
    (
        "CACHE_TOO_SMALL",
        facts(counted(1000, 192), cache_prediction=CachePrediction(320, 192, 40)),
        "error",
        "the server's cache evicts blocks that the plan counts on: with 320 tokens for each engine a hit rate of "
        "0.1920 is reachable, not 0.5760",
    ),
    (
        "CACHE_TOO_SMALL",
        counted(1000, 0, config={"kv_cache_size_tokens": "48", "num_gpu_blocks": "3"}),
        "error",
        "the canonical prefixes of 1 groups need 64 tokens, an engine's cache holds 48",
    ),
    (
        "HYBRID_MODEL",
        counted(1000, 448, config={"kv_cache_size_tokens": "104000"}),
        "warning",
        "the model is a hybrid (sliding window or Mamba layers): the first request that shares a shorter part of a "
        "warmed prefix hits 0, the second hits in full",
    ),
    (
        "SPECULATIVE_DECODING",
        counted(1000, 432, spec_decode_num_drafts=77),
        "warning",
        "every request with hits lacks one block of 16 tokens, as with EAGLE or MTP speculative decoding: it drops the "
        "last matched block",
    ),
    (
        "SPECULATIVE_DECODING",
        facts(EXACT, dropped_blocks=1),
        "warning",
        "the probes hit one block less than the cache holds, as with EAGLE or MTP speculative decoding",
    ),
    (
        "PREEMPTIONS",
        counted(1000, 512, num_preemptions=3),
        "warning",
        "the server preempted running requests 3 times because its KV cache was full, and lost cached blocks",
    ),
    (
        "EXTERNAL_KV_TIER",
        counted(1000, 512, external_prefix_cache_queries=488, external_prefix_cache_hits=64),
        "warning",
        "a tier outside of the device's cache served 64 prompt tokens; they are no local hits",
    ),
    (
        "NO_HIT_SERIES",
        between("sglang:prompt_tokens_total 0\n", "sglang:prompt_tokens_total 1000\n", WARM),
        "warning",
        "sglang:cached_tokens_total is not shown: either nothing was hit, or this version does not count hits",
    ),
    (
        "CACHE_BYPASSED",
        counted(1000, 576, prompt_tokens=1512),
        "warning",
        "512 prompt tokens were processed without asking the prefix cache, as requests with prompt_logprobs are",
    ),
    (
        "CACHE_BYPASSED",
        counted(900, 512, prompt_tokens=1000, request_success=10),
        "error",
        "100 prompt tokens were processed without asking the prefix cache, as requests with prompt_logprobs are",
    ),
    (
        "SERVER_BUSY",
        counted(1000, 576, num_requests_running=2),
        "warning",
        "requests were under way when the after snapshot was taken",
    ),
    (
        "COUNTERS_DISAGREE",
        counted(1000, 576, prompt_tokens_cached=560),
        "warning",
        "the server counted 576 hits, and 560 cached prompt tokens",
    ),
    (
        "COUNTERS_DISAGREE",
        seen(counted(1000, 576), [0] + [64] * 8 + [48]),
        "warning",
        "the server counted 576 hits, and reported 560 in its responses",
    ),
    (
        "CACHE_NOT_EMPTY",
        counted(1000, 640),
        "warning",
        "64 tokens more were hit than theory says: the cache held blocks of an earlier run or of others",
    ),
    (
        "HITS_MISSING",
        counted(1000, 560),
        "warning",
        "16 tokens fewer were hit than theory says, and nothing else shows why",
    ),
    (
        "HITS_ABOVE_QUERIES",
        refused(vllm_text(engine(0, 0)), vllm_text(engine(100, 164))),
        "error",
        "rank 0: 164 hits were counted for 100 queries",
    ),
    (
        "SERVER_RESTARTED",
        refused(vllm_text(engine(0, 0)), vllm_text(engine(100, 64), start=950.0)),
        "error",
        "process_start_time_seconds: the server was restarted between the snapshots: it was 900.000, it is 950.000",
    ),
    (
        "COUNTERS_FELL",
        refused(vllm_text(engine(500, 0)), vllm_text(engine(100, 64))),
        "error",
        "rank 0: vllm:prefix_cache_queries_total fell from 500 to 100",
    ),
    (
        "RANKS_MISSING",
        refused(vllm_text(engine(0, 0)), vllm_text(engine(0, 0), engine(9, 0)), dp_size=2),
        "error",
        "m: rank 1 of 2 not found among the engine labels (0)",
    ),
    (
        "NO_TRAFFIC",
        refused(vllm_text(engine(7, 0)), vllm_text(engine(7, 0))),
        "error",
        "vllm:prefix_cache_queries_total: no queries between the snapshots (it is 7 in both); that is no data, not a "
        "hit rate of 0",
    ),
    (
        "PREFIX_CACHING_OFF",
        refused(
            vllm_text(engine(0, 0), config={"enable_prefix_caching": "False"}),
            vllm_text(engine(0, 0), config={"enable_prefix_caching": "False"}),
        ),
        "error",
        "the server says that prefix caching is off (cache_config_info: enable_prefix_caching)",
    ),
]


@pytest.mark.parametrize(("code", "evidence", "severity", "message"), CASES, ids=[case[0] for case in CASES])
def test_the_evidence_brings_up_its_finding_alone(code: str, evidence: Evidence, severity: str, message: str) -> None:
    findings = diagnose(evidence)
    assert [(f.code, f.severity, f.message) for f in findings] == [(code, severity, message)]
    assert findings[0].evidence and findings[0].remedy.endswith(".")


def test_a_sum_that_lacks_as_many_blocks_as_requests_hit_is_no_speculative_decoding() -> None:
    """As a real vLLM counted around a reset between two requests: 17 requests with hits, 17 blocks too few."""
    assert [finding.code for finding in diagnose(counted(1000, 432))] == ["HITS_MISSING"]


def test_no_finding_where_theory_equals_the_counter() -> None:
    assert diagnose(EXACT) == []
    assert diagnose(seen(EXACT, [0] + [64] * 9)) == []
    ranks = between(vllm_text(engine(0, 0), engine(0, 0)), vllm_text(engine(600, 320), engine(400, 256)), COLD, 2)
    assert diagnose(ranks) == []


def test_the_servers_word_on_the_number_of_requests_settles_an_excess() -> None:
    # 100 tokens too many of 10 requests of 100: 10 added tokens each, or one request more?
    (one_more,) = diagnose(counted(1100, 576, replace(WARM, first_input_tokens=(90,) * 10), request_success=11))
    assert (one_more.code, one_more.evidence["counted_requests"]) == ("FOREIGN_TRAFFIC", 11)
    (each,) = diagnose(counted(1100, 576, request_success=10))
    assert (each.code, each.evidence["tokens_of_each_request"]) == ("TOKENS_ADDED", 10)


def test_a_data_set_sent_twice_shows_as_whole_repetitions() -> None:
    (finding,) = diagnose(counted(3000, 576, request_success=30))
    assert (finding.code, finding.evidence["whole_repetitions"]) == ("FOREIGN_TRAFFIC", 2)
    assert finding.message == (
        "the server counted 2000 prompt tokens that this run did not send (20 requests): those of the whole data set, "
        "2 more times"
    )


def test_a_request_with_n_2_counts_its_prompt_twice() -> None:
    """As a real vLLM counted 20 rows sent with n=2: it is no warm-up of AISBench, which would send the first rows."""
    (finding,) = diagnose(counted(2090, 576, SPREAD, request_success=20))
    assert (finding.code, finding.evidence["whole_repetitions"]) == ("FOREIGN_TRAFFIC", 1)
    assert "n or best_of above 1" in finding.remedy


def test_real_hybrid_server(prom: Prom) -> None:
    """Gemma 3 with sliding-window layers: 340654 tokens, 16384 blocks of 32 (grep)."""
    after = prom("11")
    baseline = re.sub(r"(?m)^(vllm:\w+_total\{.*\}) \S+$", r"\1 0.0", after)
    planned = replace(WARM, block_size=32, input_tokens=13984, hit_tokens=9000, requests=25, requests_with_hits=20)
    (finding,) = diagnose(between(baseline, after, planned))
    assert (finding.code, finding.evidence["cache_tokens"], finding.evidence["block_tokens"]) == (
        "HYBRID_MODEL",
        340654,
        524288,
    )


@pytest.mark.parametrize("file", ["01", "02", "03", "05", "08", "09"])
def test_real_full_attention_servers_are_neither_hybrid_nor_parallel(file: str, prom: Prom) -> None:
    block_size = 128 if file == "01" else 32
    dp_size = 2 if file in ("05", "08") else 1
    snapshot = parse_snapshot(prom(file), dp_size=dp_size)
    evidence = Evidence(replace(WARM, block_size=block_size, canonical_prefix_tokens={}), snapshot, snapshot)
    assert {f.code for f in diagnose(evidence)} <= {"SERVER_ASLEEP"}


def test_a_sleeping_real_server(prom: Prom) -> None:
    snapshot = parse_snapshot(prom("02"), dp_size=1)
    (finding,) = diagnose(Evidence(replace(WARM, block_size=32), None, snapshot))
    assert (finding.code, finding.message) == (
        "SERVER_ASLEEP",
        "the server was asleep when the after snapshot was taken; falling asleep empties the cache",
    )


def test_real_texts_without_counters(prom: Prom) -> None:
    (no_stats,) = diagnose(refused(prom("06"), vllm_text(engine(0, 0))))
    assert (no_stats.code, no_stats.severity) == ("NO_LOG_STATS", "error")
    (gauge,) = diagnose(refused(vllm_text(engine(0, 0)), prom("25")))
    assert gauge.code == "GAUGE_ONLY"
    assert gauge.message == (
        "m: only a momentary hit-rate gauge (vllm:*cache_hit_rate) is shown; no counters of queries and hits"
    )


def test_a_server_that_counts_blocks(prom: Prom) -> None:
    info = 'vllm:cache_config_info{block_size="16"} 1.0\n'
    late = prom("26").replace(" 1000.0", " 1060.0").replace(" 600.0", " 636.0")
    (finding,) = diagnose(between(prom("26") + info, late + info, WARM))
    # 60 blocks of ten prompts of 100 tokens (6 whole blocks each), 36 of them hit: 576 tokens.
    assert (finding.code, finding.message) == (
        "BLOCK_COUNTERS",
        "this server counts blocks of 16 tokens (vLLM 0.7.3 to 0.8.5); they were multiplied; each prompt's incomplete "
        "last block is not counted, so the rate is a little too high",
    )
    (without_size,) = diagnose(refused(prom("26"), late))
    assert without_size.code == "BLOCK_COUNTERS" and without_size.severity == "error"


def test_a_capacity_that_looks_parallel_is_no_finding_where_all_hits_came() -> None:
    assert diagnose(counted(1000, 576, config={"kv_cache_size_tokens": "320000"})) == []


def test_a_reset_that_was_not_asked_for_is_no_finding() -> None:
    assert diagnose(facts(EXACT, reset=ResetFact(accepted=False, attempts=0), assumed_empty=True)) == []


def test_a_refused_reset_of_an_empty_cache_is_a_note() -> None:
    (finding,) = diagnose(facts(EXACT, reset=ResetFact(accepted=False, status=404, hits_after={0: 0})))
    assert (finding.code, finding.severity) == ("RESET_REFUSED", "note")
    assert finding.message == "the server refused to reset its cache (1 try)"


def test_the_gravest_finding_comes_first() -> None:
    findings = diagnose(facts(counted(1010, 576, request_success=10, num_preemptions=1), dropped_blocks=1))
    assert [f.severity for f in findings] == sorted(
        (f.severity for f in findings), key=["error", "warning", "note"].index
    )
    assert {f.code for f in findings} == {"TOKENS_ADDED", "PREEMPTIONS", "SPECULATIVE_DECODING"}


def test_findings_are_json_ready() -> None:
    assert Finding(Code.NO_THEORY, "note", "m", {"n": 1}, "r").as_json() == {
        "code": "NO_THEORY",
        "severity": "note",
        "message": "m",
        "evidence": {"n": 1},
        "remedy": "r",
    }


def source_codes() -> set[str]:
    source = Path(diagnosis.__file__).read_text(encoding="utf-8")
    return set(re.findall(r"\bCode\.([A-Z][A-Z_]+)", source))


def test_every_code_is_tested_and_documented(project_root: Path) -> None:
    tested = {case[0] for case in CASES} | {"SERVER_ASLEEP", "NO_LOG_STATS", "GAUGE_ONLY", "BLOCK_COUNTERS"}
    codes = {code for code in source_codes() if not code.startswith("SNAPSHOT_")}
    assert codes == tested
    text = (project_root / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^### ([A-Z_]+)$", text, re.MULTILINE)) == tested


def test_what_the_documentation_says_was_seen_on_a_real_server_has_a_test_there(project_root: Path) -> None:
    text = (project_root / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    listed = re.search(r"brought about on a real vLLM .*?line: (.*?)\.\n", text, re.DOTALL)
    assert listed is not None
    claimed = set(re.findall(r"[A-Z_]{5,}", listed[1]))
    assert len(claimed) > 20
    tests = "".join(path.read_text(encoding="utf-8") for path in (project_root / "tests" / "real").glob("test_*.py"))
    assert {code for code in claimed if f'"{code}"' not in tests and f"[{code}]" not in tests} == set()
