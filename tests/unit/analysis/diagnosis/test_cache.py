"""What the hits bring up, with the whole sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.doubles.metric_texts import snapshot
from tests.doubles.run_evidence import EXACT, WARM, between, counted, facts, seen

from ais_bench_prefix_cache.analysis.diagnosis.diagnose import diagnose
from ais_bench_prefix_cache.analysis.diagnosis.evidence import Evidence
from ais_bench_prefix_cache.analysis.run_facts import CachePrediction, HistoryFact, ResetFact, RunFacts
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.token_share import TokenShare

Prom = Callable[[str], str]


def lossy(differs_from: int, before: int) -> RunFacts:
    """Histories that lost all of the 64 hits that are missing, the first within a block from ``differs_from`` on."""
    first = {
        "sequence_index": 5,
        "turn": 2,
        "input_tokens": 150,
        "history_tokens": 130,
        "prompt_tokens_before": before,
        "differs_from": differs_from,
        "differs_before": differs_from + 16,
    }
    return RunFacts(history=HistoryFact({"0": [1000, 720]}, 9, 3, 64, first))


LOSS = (
    "3 of 9 turns that continue others hit 64 tokens fewer than the server had computed of their histories, which were "
    "sent as messages; the first is request 5, turn 2, whose history differs between tokens "
)


@pytest.mark.parametrize(
    ("facts", "where"),
    [
        (lossy(96, 120), "96 and 111 of 130, within what was sent before: the template writes a history otherwise"),
        (lossy(112, 120), "112 and 127 of 130, about where the answer begins"),
        (lossy(112, 100), "112 and 127 of 130, within the answer: its text is encoded otherwise"),
    ],
)
def test_the_first_place_where_a_history_differs_is_named(facts: RunFacts, where: str) -> None:
    evidence = replace(counted(1000, 656, replace(WARM, tokens=TokenShare(1000, 720))), facts=facts)
    (finding,) = diagnose(evidence)
    assert (finding.code, finding.severity) == (Code.HISTORY_REENCODED, "warning")
    assert finding.message.startswith(LOSS + where)
    assert finding.evidence["lost_tokens"] == 64 and finding.evidence["sequence_index"] == 5


CASES: list[tuple[Code, Evidence, str, str]] = [
    (
        Code.WRONG_BLOCK_SIZE,
        counted(1000, 432, config={"block_size": "24", "kv_cache_size_tokens": "240000"}),
        "error",
        "the server says that it caches in blocks of 24 tokens, tokenizer.block_size is 16, and what was hit is "
        "consistent "
        "with that",
    ),
    (
        Code.SERVER_BLOCK_SIZE_MULTIPLE,
        counted(1000, 0, config={"block_size": "128", "kv_cache_size_tokens": "1280000"}),
        "error",
        "the server says that it caches in blocks of 128 tokens, tokenizer.block_size is 16, and what was hit is "
        "consistent with that",
    ),
    (
        # Decode context parallelism of 2: the cache holds twice the tokens of its blocks.
        Code.SERVER_BLOCK_SIZE_MULTIPLE,
        counted(1000, 576, replace(WARM, tokens=TokenShare(1000, 720)), config={"kv_cache_size_tokens": "320000"}),
        "error",
        "by the server's own words hits come in steps of 32 tokens, as with decode context parallelism, where a block "
        "spans several devices; tokenizer.block_size is 16, and what was hit is consistent with that",
    ),
    (
        Code.SERVER_BLOCK_SIZE_MULTIPLE,
        seen(counted(1000, 448), [0, *[64, 32] * 4, 64], expected=[0, 64, 48, 64, 48, 80, 32, 64, 48, 64]),
        "error",
        "each of the cached_tokens that responses reported is the planned hit cut down to a multiple of 32, as with "
        "blocks of so many tokens; tokenizer.block_size is 16",
    ),
    (
        Code.WRONG_BLOCK_SIZE,
        seen(counted(1000, 528), [0, 48, 72, 48, 72, 48, 72, 48, 72, 48]),
        "error",
        "the cached_tokens that responses reported are multiples of 24 but not of tokenizer.block_size, 16",
    ),
    (
        Code.CACHE_TOO_SMALL,
        facts(counted(1000, 192), cache_prediction=CachePrediction(320, 192, 40)),
        "error",
        "by replay a cache of 320 tokens for each engine, the server's, evicts blocks that the plan counts on: the "
        "requests, sent one after another, hit 0.1920 of their tokens, not 0.5760; several at once evict in another "
        "order and hit a little more or less",
    ),
    (
        Code.CACHE_TOO_SMALL,
        counted(1000, 0, config={"kv_cache_size_tokens": "48", "num_gpu_blocks": "3"}),
        "error",
        "the canonical prefixes of 1 groups need 64 tokens, an engine's cache holds 48",
    ),
    (
        Code.HYBRID_MODEL,
        counted(1000, 448, config={"kv_cache_size_tokens": "104000"}),
        "warning",
        "the cache holds no whole multiple of its blocks' tokens, as where layers of two kinds share it: with such a "
        "hybrid the first request that shares a shorter part of a warmed prefix hits 0, the second hits in full; the "
        "128 tokens that were not hit are consistent with that",
    ),
    (
        Code.SPECULATIVE_DECODING,
        counted(1000, 432, spec_decode_num_drafts=77),
        "warning",
        "the sum lacks one block of 16 tokens for each request with hits, and the server drafts tokens, which is "
        "consistent with EAGLE or MTP speculative decoding, which drops the last matched block, and with evictions or "
        "a reset in between",
    ),
    (
        Code.SPECULATIVE_DECODING,
        facts(EXACT, dropped_blocks=1),
        "warning",
        "the probes hit one block less than the cache holds, as with EAGLE or MTP speculative decoding",
    ),
    (
        Code.PREEMPTIONS,
        counted(1000, 512, num_preemptions=3),
        "warning",
        "the server preempted running requests 3 times, as it does when its KV cache is full; the 64 tokens that were "
        "not hit are consistent with that",
    ),
    (
        Code.EXTERNAL_KV_TIER,
        counted(1000, 512, external_prefix_cache_queries=488, external_prefix_cache_hits=64),
        "warning",
        "a tier outside of the device's cache served 64 prompt tokens; they are no local hits",
    ),
    (
        Code.CACHE_NOT_EMPTY,
        counted(1000, 640),
        "warning",
        "64 tokens more were hit than theory says, which is consistent with a cache that held blocks of an earlier "
        "run or "
        "of others, and with prompts that were sent in another order than planned",
    ),
    (
        Code.HITS_MISSING,
        counted(1000, 560),
        "warning",
        "16 tokens fewer were hit than theory says, and nothing else shows why",
    ),
]


@pytest.mark.parametrize(("code", "evidence", "severity", "message"), CASES, ids=[case[0] for case in CASES])
def test_the_evidence_brings_up_its_finding_alone(code: Code, evidence: Evidence, severity: str, message: str) -> None:
    findings = diagnose(evidence)
    assert [(f.code, f.severity, f.message) for f in findings] == [(code, severity, message)]
    assert findings[0].evidence and findings[0].remedy.endswith(".")


def test_repeats_that_hit_more_are_no_larger_blocks() -> None:
    # Seen with retries on a real vLLM: 192 and, for a repeated request, 288 tokens in blocks of 32.
    requests = seen(counted(1000, 768), [96, 48, 48, 48, 96, 96, 96, 96, 96, 96])
    assert requests.requests is not None and requests.requests.seen_step == 48
    assert "SERVER_BLOCK_SIZE_MULTIPLE" not in {finding.code for finding in diagnose(requests)}


def test_a_sum_that_lacks_as_many_blocks_as_requests_hit_is_no_speculative_decoding() -> None:
    """As a real vLLM counted around a reset between two requests: 17 requests with hits, 17 blocks too few."""
    assert [finding.code for finding in diagnose(counted(1000, 432))] == ["HITS_MISSING"]


def test_real_hybrid_server(prom: Prom) -> None:
    """Gemma 3 with sliding-window layers: 340654 tokens, 16384 blocks of 32 (grep)."""
    after = prom("11")
    baseline = re.sub(r"(?m)^(vllm:\w+_total\{.*\}) \S+$", r"\1 0.0", after)
    planned = replace(WARM, block_size=32, tokens=TokenShare(13984, 9000), requests=25, requests_with_hits=20)
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
    look = snapshot(prom(file), dp_size=dp_size)
    evidence = Evidence(replace(WARM, block_size=block_size, canonical_prefix_tokens={}), look, look)
    assert {f.code for f in diagnose(evidence)} <= {"SERVER_ASLEEP"}


def test_a_capacity_that_looks_parallel_is_no_finding_where_all_hits_came() -> None:
    assert diagnose(counted(1000, 576, config={"kv_cache_size_tokens": "320000"})) == []


# Rival causes with the same sums: what a finding says must be shown by its own evidence.


def of(evidence: Evidence) -> list[tuple[str, str]]:
    """Code and severity of each finding."""
    return [(finding.code, finding.severity) for finding in diagnose(evidence)]


def test_hits_that_a_reset_took_are_no_larger_blocks_although_all_values_have_a_step_in_common() -> None:
    planned = [0, 64, 128, 64, 128, 64, 128, 64, 128, 64]
    lost = seen(counted(1000, 640), [*planned[:8], 0, 0], expected=planned)
    assert lost.requests is not None and (lost.requests.seen_step, lost.requests.beside_step) == (64, 2)
    assert of(replace(lost, planned=replace(WARM, tokens=TokenShare(1000, 832)))) == [("HITS_MISSING", "warning")]


def test_a_told_block_size_is_no_reason_for_more_than_a_block_of_each_hit() -> None:
    """Every prompt salted: nothing is hit, and 0 is a multiple of every size."""
    long = replace(WARM, tokens=TokenShare(1000, 720), requests_with_hits=9)
    told = {"block_size": "32", "kv_cache_size_tokens": "320000"}
    assert of(counted(1000, 0, long, config=told)) == [
        ("HITS_MISSING", "warning"),
        ("SERVER_BLOCK_SIZE_MULTIPLE", "note"),
    ]
    assert of(counted(1000, 576, long, config=told)) == [("SERVER_BLOCK_SIZE_MULTIPLE", "error")]


def test_told_blocks_that_ours_are_made_of_take_no_hits_away() -> None:
    """As the label 4 beside blocks of 16 and 16 tokens too few, which 4 divides."""
    assert of(counted(1000, 560, config={"block_size": "4", "kv_cache_size_tokens": "40000"})) == [
        ("HITS_MISSING", "warning"),
        ("WRONG_BLOCK_SIZE", "note"),
    ]


def test_steps_that_the_server_tells_are_no_reason_for_hits_beside_them() -> None:
    parallel = {"kv_cache_size_tokens": "320000"}
    assert of(counted(1000, 432, config=parallel)) == [
        ("HITS_MISSING", "warning"),
        ("SERVER_BLOCK_SIZE_MULTIPLE", "note"),
    ]


def test_a_prediction_is_no_finding_where_the_hits_came_and_not_the_whole_of_it_where_far_fewer_did() -> None:
    small = CachePrediction(320, 400, 40)
    assert of(facts(counted(1000, 576), cache_prediction=small)) == []
    for hits, beyond in ((384, False), (64, True)):
        (finding,) = diagnose(facts(counted(1000, hits), cache_prediction=small))
        assert finding.code == "CACHE_TOO_SMALL"
        assert finding.message.endswith(f"; counted was {hits / 1000:.4f}, so there may be another reason") is beyond


def test_what_the_probes_measured_outweighs_what_sums_and_steps_could_mean() -> None:
    probed = RunFacts(probed_block_size=16)
    drafting = counted(1000, 432, spec_decode_num_drafts=77)
    lacking = seen(counted(1000, 432), [0] + [48] * 9)
    halved = seen(counted(1000, 448), [0, *[64, 32] * 4, 64], expected=[0, 64, 48, 64, 48, 80, 32, 64, 48, 64])
    for evidence, code in (
        (drafting, "SPECULATIVE_DECODING"),
        (lacking, "SPECULATIVE_DECODING"),
        (halved, "SERVER_BLOCK_SIZE_MULTIPLE"),
    ):
        assert [found for found, _ in of(evidence)] == [code]
        assert of(replace(evidence, facts=probed)) == [("HITS_MISSING", "warning")]
    dropping = replace(drafting, facts=replace(probed, dropped_blocks=1))
    assert [found for found, _ in of(dropping)] == ["SPECULATIVE_DECODING"]


def test_a_whole_hit_of_one_block_that_is_missing_is_no_dropped_block() -> None:
    """Every prompt salted: each request lacks the one block that it should hit."""
    one_block = replace(WARM, tokens=TokenShare(1000, 144), canonical_prefix_tokens={"group-0": 16})
    salted = seen(counted(1000, 0, one_block), [0] * 10, expected=[0] + [16] * 9)
    assert of(salted) == [("HITS_MISSING", "warning")]
    lacking = seen(counted(1000, 432), [0] + [48] * 9)
    (finding,) = diagnose(lacking)
    assert finding.message == (
        "every request with hits lacks one block of 16 tokens, which is consistent with EAGLE or MTP speculative "
        "decoding, which drops the last matched block, and with evictions or a reset in between"
    )
    (proven,) = diagnose(replace(lacking, facts=RunFacts(probed_block_size=16, dropped_blocks=1)))
    assert proven.message == (
        "the probes and every request with hits lack one block of 16 tokens, as with EAGLE or MTP speculative "
        "decoding: it drops the last matched block"
    )


def test_preemptions_lose_nothing_where_all_hits_came() -> None:
    (finding,) = diagnose(counted(1000, 576, num_preemptions=1))
    assert finding.message == "the server preempted running requests 1 time, as it does when its KV cache is full"


def test_a_cache_that_was_seen_to_be_empty_held_nothing_of_an_earlier_run() -> None:
    empty = RunFacts(reset=ResetFact(accepted=True, hits_after={0: 0}))
    (finding,) = diagnose(replace(counted(1000, 640), facts=empty))
    assert "an earlier run" not in finding.message
    assert "others who sent the same prompts since the cache was seen to be empty" in finding.message


def test_a_server_that_names_its_kinds_of_layers() -> None:
    (finding,) = diagnose(counted(1000, 576, config={"sliding_window": "128"}))
    assert (finding.code, finding.severity) == ("HYBRID_MODEL", "note")
    assert finding.message.startswith("the server names sliding-window or Mamba layers: with such a hybrid")
