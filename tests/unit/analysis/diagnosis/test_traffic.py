"""What the number of counted prompt tokens brings up, with the whole sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.doubles.metric_texts import engine, vllm_text
from tests.doubles.run_evidence import COLD, COLUMNS, FREE, SPREAD, WARM, between, counted, facts, seen

from ais_bench_prefix_cache.analysis.diagnosis.diagnose import diagnose
from ais_bench_prefix_cache.analysis.diagnosis.evidence import Evidence
from ais_bench_prefix_cache.analysis.request_comparison import compare_requests
from ais_bench_prefix_cache.analysis.run_facts import ResetFact, RunFacts
from ais_bench_prefix_cache.analysis.seen_request import SeenRequest
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.token_share import TokenShare

Prom = Callable[[str], str]


CASES: list[tuple[Code, Evidence, str, str]] = [
    (
        Code.TOKENIZER_DIFFERS,
        counted(1007, 576, request_success=10),
        "error",
        "the server finished as many requests as were planned and counted other numbers of tokens in them, which is "
        "consistent with another tokenizer, and with other prompts than planned",
    ),
    (
        Code.TOKENIZER_DIFFERS,
        seen(counted(1007, 576), [0] + [64] * 9, prompt_tokens=101, last_prompt_tokens=98),
        "error",
        "the server counts other numbers of tokens in the same prompts: it uses another tokenizer",
    ),
    (
        Code.TOKENS_ADDED,
        counted(1010, 576, request_success=10),
        "error",
        "the sum is 1 token more for each request, which is consistent with a special token (BOS) or a template in "
        "every "
        "prompt, and with other traffic of that size",
    ),
    (
        Code.TOKENS_ADDED,
        counted(1020, 576),
        "error",
        "the sum is 2 tokens more for each request, which is consistent with a special token (BOS) or a template in "
        "every "
        "prompt, and with other traffic of that size",
    ),
    (
        Code.TOKENS_ADDED,
        seen(counted(1010, 576), [0] + [64] * 9, prompt_tokens=101),
        "error",
        "the server counts 1 token more in every prompt than the data set: a special token (BOS) or a template",
    ),
    (
        Code.TOKENS_MISSING,
        counted(990, 576, request_success=10),
        "error",
        "the sum is 1 token fewer for each request, which is consistent with a special token (BOS) or a template in "
        "every "
        "prompt, and with missing requests of that size",
    ),
    (
        Code.AISBENCH_WARMUPS,
        facts(counted(1145, 672, SPREAD, request_success=11), aisbench_warmups=1),
        "error",
        "the 100 tokens too many are those of the first rows sent 1 more time: AISBench's own warm-ups",
    ),
    (
        Code.AISBENCH_WARMUPS,
        counted(1246, 768, SPREAD),
        "error",
        "the 201 tokens too many are those of the first rows sent 2 more times, which is consistent with AISBench's "
        "own "
        "warm-ups, and with retries of these rows",
    ),
    (
        Code.RETRIES,
        facts(counted(1100, 576, request_success=11), retried_requests=1, aisbench_warmups=0),
        "error",
        "1 request was sent more than once",
    ),
    (
        Code.RETRIES,
        facts(counted(1149, 576, SPREAD, request_success=11), retried_requests=1),
        "error",
        "1 request was sent more than once",
    ),
    (
        Code.FOREIGN_TRAFFIC,
        counted(1053, 576, SPREAD, request_success=12),
        "error",
        "the server counted 8 prompt tokens more than this run planned (2 requests)",
    ),
    (
        # As many tokens as the first row has, but nothing of them hit: a repeated prompt would.
        Code.FOREIGN_TRAFFIC,
        counted(1145, 576, SPREAD, request_success=11),
        "error",
        "the server counted 100 prompt tokens more than this run planned (1 requests)",
    ),
    (
        Code.REQUESTS_MISSING,
        facts(counted(845, 448, SPREAD, request_success=8), failed_requests=2),
        "error",
        "the server counted 200 prompt tokens fewer than planned: requests were not sent, were refused, failed or "
        "bypassed the cache",
    ),
    (
        Code.RANK_HEADER_IGNORED,
        between(vllm_text(engine(0, 0), engine(0, 0)), vllm_text(engine(500, 288), engine(500, 288)), COLD, 2),
        "error",
        "all planned tokens were counted, but on other ranks than planned: the server, or a router before it, did not "
        "follow X-data-parallel-rank",
    ),
    (
        Code.FREE_ROUTING,
        between(vllm_text(engine(0, 0), engine(0, 0)), vllm_text(engine(700, 400), engine(300, 80)), FREE, 2),
        "note",
        "480 tokens were hit by the server's or router's own choice of ranks, 96 fewer than by conversations that stay "
        "on their rank; the worst choice hits 320, the best 640, and this one stands at 50.0% between them",
    ),
    (
        Code.ENGINE_MAP_WRONG,
        between(vllm_text(engine(0, 0), engine(0, 0)), vllm_text(engine(400, 256), engine(600, 320)), COLD, 2),
        "error",
        "the ranks counted each other's numbers of tokens, which is consistent with engine labels that belong to other "
        "ranks, and with a router that exchanges whole ranks",
    ),
    (
        Code.LOAD_GENERATOR_LIMIT,
        facts(counted(1000, 576), senders=1, busiest_sender=0.93),
        "warning",
        "a process that sends used 93% of a core while it sent: it may have been the limit of the load, not the server",
    ),
    (
        Code.REQUESTS_NOT_COMPARED,
        facts(counted(1000, 576), senders=4, busiest_sender=0.84),
        "warning",
        "4 processes shared the requests, and the server did not say of each how many tokens it hit: sums that are "
        "right do not prove that each request hit what was planned",
    ),
    (
        Code.CACHE_BYPASSED,
        counted(1000, 576, prompt_tokens=1512),
        "warning",
        "512 prompt tokens were processed without asking the prefix cache, as requests with prompt_logprobs are",
    ),
    (
        Code.CACHE_BYPASSED,
        counted(900, 512, prompt_tokens=1000, request_success=10),
        "error",
        "100 prompt tokens were processed without asking the prefix cache, as requests with prompt_logprobs are",
    ),
]


@pytest.mark.parametrize(("code", "evidence", "severity", "message"), CASES, ids=[case[0] for case in CASES])
def test_the_evidence_brings_up_its_finding_alone(code: Code, evidence: Evidence, severity: str, message: str) -> None:
    findings = diagnose(evidence)
    assert [(f.code, f.severity, f.message) for f in findings] == [(code, severity, message)]
    assert findings[0].evidence and findings[0].remedy.endswith(".")


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
        "the server counted 2000 prompt tokens more than this run planned (20 requests): as many as the whole data set "
        "has, 2 times"
    )


def test_a_request_with_n_2_counts_its_prompt_twice() -> None:
    """As a real vLLM counted 20 rows sent with n=2: it is no warm-up of AISBench, which would send the first rows."""
    (finding,) = diagnose(counted(2090, 576, SPREAD, request_success=20))
    assert (finding.code, finding.evidence["whole_repetitions"]) == ("FOREIGN_TRAFFIC", 1)
    assert "n or best_of above 1" in finding.remedy


@pytest.mark.parametrize(("hits_after", "code"), [({0: 0, 1: 0}, "RANK_HEADER_IGNORED"), ({0: 64, 1: 0}, None)])
def test_a_first_request_of_a_lane_that_hits_was_answered_elsewhere(hits_after: dict[int, int], code: str) -> None:
    """As behind a real cache-aware router: every rank counts as many tokens as planned, and more hits."""
    lanes = replace(COLUMNS, dp_ranks=[0] * 6 + [1] * 4, lane_sequences=[*range(6), *range(4)])
    lanes = replace(lanes, hit_tokens=[0, *[64] * 5, 0, *[64] * 3])
    rows = [SeenRequest(index, "reported", cached_tokens=64 * (index > 0), prompt_tokens=100) for index in range(10)]
    counted = between(vllm_text(engine(0, 0), engine(0, 0)), vllm_text(engine(600, 320), engine(400, 256)), COLD, 2)
    planned = replace(COLD, tokens=TokenShare(1000, 512))
    evidence = replace(
        counted,
        planned=planned,
        requests=compare_requests(lanes, rows),
        facts=RunFacts(reset=ResetFact(accepted=True, hits_after=hits_after)),
    )
    findings = [finding for finding in diagnose(evidence) if finding.code == "RANK_HEADER_IGNORED"]
    assert [finding.code for finding in findings] == ([code] if code else [])
    for finding in findings:
        assert finding.message == (
            "1 requests hit although they were the first of their group on their rank, and the caches had been "
            "emptied: requests were answered by other ranks than planned, as by a cache-aware router"
        )
        assert finding.evidence == {"lane_starts_hit": 1, "hits_beyond_plan": 64}
