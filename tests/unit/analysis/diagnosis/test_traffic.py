"""What the number of counted prompt tokens brings up, with the whole sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

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
        "the server counts other numbers of tokens in the prompts than the data set, and not by the same number in "
        "each, which is consistent with another tokenizer, and with prompts that were cut or changed on the way",
    ),
    (
        Code.TOKENS_ADDED,
        counted(1010, 576, request_success=10),
        "error",
        "the sum is 1 token more for each request, which is consistent with a special token (BOS) or a template in "
        "every "
        "prompt, and with another tokenizer or other prompts than planned",
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
        "the server counts 1 token more in every prompt than the data set, as with a special token (BOS) or a template",
    ),
    (
        Code.TOKENS_MISSING,
        counted(990, 576, request_success=10),
        "error",
        "the sum is 1 token fewer for each request, which is consistent with a special token (BOS) or a template in "
        "every "
        "prompt, and with another tokenizer or other prompts than planned",
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
        "1 request was sent more than once, and the server counted 100 prompt tokens more than this run planned",
    ),
    (
        Code.RETRIES,
        facts(counted(1149, 576, SPREAD, request_success=11), retried_requests=1),
        "error",
        "1 request was sent more than once, and the server counted 104 prompt tokens more than this run planned",
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
        "the server counted 100 prompt tokens more than this run planned (1 request)",
    ),
    (
        Code.REQUESTS_MISSING,
        facts(counted(845, 448, SPREAD, request_success=8), failed_requests=2),
        "error",
        "the server counted 200 prompt tokens fewer than planned, and 2 requests failed",
    ),
    (
        Code.RANK_HEADER_IGNORED,
        between(vllm_text(engine(0, 0), engine(0, 0)), vllm_text(engine(500, 288), engine(500, 288)), COLD, 2),
        "error",
        "all planned tokens were counted, but on other ranks than planned, which is consistent with a server, or a "
        "router before it, that does not follow X-data-parallel-rank, and with requests that are missing on one rank "
        "beside foreign ones on another",
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
        "the ranks counted each other's queries and hits, which is consistent with engine labels that belong to other "
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
        "512 prompt tokens were processed and not counted as queries of the prefix cache, as those of requests with "
        "prompt_logprobs are",
    ),
    (
        Code.CACHE_BYPASSED,
        counted(900, 512, prompt_tokens=1000, request_success=10),
        "error",
        "100 prompt tokens were processed and not counted as queries of the prefix cache, as those of requests with "
        "prompt_logprobs are",
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
            "1 request hit although they were the first of their group on their rank, and the caches had been "
            "emptied, which is consistent with requests that other ranks than planned answered, as behind a "
            "cache-aware router, and with another order than planned"
        )
        assert finding.evidence == {"lane_starts_hit": 1, "hits_beyond_plan": 64}


def of(evidence: Evidence) -> list[tuple[str, str]]:
    """Code and severity of each finding."""
    return [(finding.code, finding.severity) for finding in diagnose(evidence)]


def message(evidence: Evidence) -> str:
    (finding,) = diagnose(evidence)
    return finding.message


# Rival causes with the same sums: what a finding says must be shown by its own evidence.


@pytest.mark.parametrize(
    ("counts", "more", "code"),
    [
        # Ten tokens for each request: no special token that our side adds alone is so long.
        (900, {"request_success": 10}, "TOKENIZER_DIFFERS"),
        # One whole request is missing, or ten tokens of each: nobody counted the requests.
        (900, {}, "REQUESTS_MISSING"),
        # Two tokens of each are less than one request.
        (980, {}, "TOKENS_MISSING"),
        (980, {"request_success": 9}, "REQUESTS_MISSING"),
    ],
)
def test_missing_tokens_are_a_special_token_only_where_nothing_shorter_explains_them(
    counts: int, more: dict[str, Any], code: str
) -> None:
    evidence = counted(counts, 576, **more)
    assert of(evidence) == [(code, "error")]
    assert "consistent with" in message(evidence) or more == {"request_success": 9}


def test_missing_tokens_of_as_many_requests_as_one_has_tokens_are_no_special_token() -> None:
    """A hundred requests of 100 tokens, and 100 tokens too few: a token of each, or the one that never came."""
    many = replace(WARM, requests=100, tokens=TokenShare(10_000, 576))
    evidence = counted(9900, 576, many)
    assert of(evidence) == [("REQUESTS_MISSING", "error")]
    assert "special tokens that the server does not add" in message(evidence)
    # The server finished all of them: then it is not a request that is missing.
    assert of(counted(9900, 576, many, request_success=100)) == [("TOKENS_MISSING", "error")]


def test_missing_tokens_beside_failed_requests_are_the_requests() -> None:
    for evidence in (counted(990, 576), counted(990, 576, request_success=10)):
        assert of(facts(evidence, failed_requests=1)) == [("REQUESTS_MISSING", "error")]


def test_a_long_template_is_as_many_tokens_more_where_the_server_counts_the_requests() -> None:
    assert of(counted(1350, 576, request_success=10)) == [("TOKENS_ADDED", "error")]
    assert of(counted(1350, 576)) == [("FOREIGN_TRAFFIC", "error")]


def test_one_prompt_that_was_told_of_says_nothing_of_the_others() -> None:
    rows = [SeenRequest(0, "reported", cached_tokens=0, prompt_tokens=101)]
    rows += [SeenRequest(index, "reported", cached_tokens=64) for index in range(1, 10)]
    evidence = replace(counted(1010, 576), requests=compare_requests(COLUMNS, rows))
    assert message(evidence) == (
        "the server counts 1 token more in each of the 1 prompts that it told of than the data set, as with a special "
        "token (BOS) or a template"
    )


def test_retries_explain_their_own_tokens_and_no_more() -> None:
    rows = [
        SeenRequest(index, "reported", cached_tokens=64 * (index > 0), prompt_tokens=100, attempts=1 + (index == 4))
        for index in range(10)
    ]
    for queries, code in ((1100, "RETRIES"), (1060, "RETRIES"), (1101, "FOREIGN_TRAFFIC"), (9000, "FOREIGN_TRAFFIC")):
        evidence = replace(counted(queries, 576), requests=compare_requests(COLUMNS, rows), facts=RunFacts())
        assert of(evidence) == [(code, "error")]
    assert "; requests that were sent again explain 100 of them at most" in message(evidence)


def two_ranks(*counts: tuple[int, int]) -> Evidence:
    return between(vllm_text(engine(0, 0), engine(0, 0)), vllm_text(*(engine(*pair) for pair in counts)), COLD, 2)


def test_ranks_are_exchanged_only_where_their_hits_are_too() -> None:
    """COLD plans 600 tokens with 320 hits and 400 with 256."""
    assert of(two_ranks((400, 256), (600, 320))) == [("ENGINE_MAP_WRONG", "error")]
    assert of(two_ranks((400, 240), (600, 336))) == [("RANK_HEADER_IGNORED", "error")]


def test_hits_on_other_ranks_are_found_where_queries_and_all_sums_are_right() -> None:
    evidence = two_ranks((600, 336), (400, 240))
    assert not evidence.as_planned
    assert of(evidence) == [("RANK_HEADER_IGNORED", "error")]
    assert message(evidence).startswith("each rank counted as many tokens as planned, but other hits")
    alike = replace(COLD, by_rank={0: TokenShare(500, 320), 1: TokenShare(500, 256)})
    swapped = replace(two_ranks((500, 256), (500, 320)), planned=alike)
    assert of(swapped) == [("ENGINE_MAP_WRONG", "error")]


def test_prompts_that_were_sent_twice_are_no_router() -> None:
    """A retried request hits what its first sending left; so do AISBench's warm-ups, whose tokens are too many."""
    lanes = replace(COLUMNS, dp_ranks=[0] * 6 + [1] * 4, lane_sequences=[*range(6), *range(4)])
    lanes = replace(lanes, hit_tokens=[0, *[64] * 5, 0, *[64] * 3])
    reset = RunFacts(reset=ResetFact(accepted=True, hits_after={0: 0, 1: 0}), aisbench_warmups=1)
    planned = replace(COLD, by_rank={0: TokenShare(600, 320), 1: TokenShare(400, 192)}, tokens=TokenShare(1000, 512))
    again = [
        SeenRequest(index, "reported", 96 if index == 6 else lanes.hit_tokens[index], 100, attempts)
        for index, attempts in enumerate([1] * 6 + [2] + [1] * 3)
    ]
    retried = replace(two_ranks((600, 320), (400, 288)), planned=planned, facts=reset)
    assert compare_requests(lanes, again).lane_starts_hit == 0
    codes = {code for code, _ in of(replace(retried, requests=compare_requests(lanes, again)))}
    assert "RANK_HEADER_IGNORED" not in codes
    warmed = [replace(row, attempts=1) for row in again]
    with_warm_up = replace(two_ranks((600, 320), (500, 384)), planned=planned, facts=reset)
    codes = {code for code, _ in of(replace(with_warm_up, requests=compare_requests(lanes, warmed)))}
    assert "AISBENCH_WARMUPS" in codes and "RANK_HEADER_IGNORED" not in codes


def test_requests_under_way_at_the_first_look_did_not_pass_the_cache_by() -> None:
    quiet, busy = (
        between(
            vllm_text(engine(0, 0, prompt_tokens=0, num_requests_running=running)),
            vllm_text(engine(1000, 576, prompt_tokens=1100, num_requests_running=0)),
            WARM,
        )
        for running in (0, 1)
    )
    rival = ", and with requests that were under way at the first snapshot"
    assert rival not in message(quiet)
    assert any(finding.message.endswith(rival) for finding in diagnose(busy))
