"""Warm-ups against a service that is healthy, or wrong in one way, and their proof."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.doubles.fake_service import URL, FakeService, connect, failures

from ais_bench_prefix_cache.foundation.errors import ServiceError
from ais_bench_prefix_cache.service.probing import probe_ranks
from ais_bench_prefix_cache.service.warming import WarmupEntry, warm_and_prove, warm_shorter_prefixes


def entry(group: int, rank: int, tokens: int = 160) -> WarmupEntry:
    text = (f"group {group} " * tokens)[: tokens * 4]
    return WarmupEntry(f"warmup:group-{group}:{rank}", f"group-{group}", rank, text, tokens, tokens - 16, 1)


def warm(service: FakeService, plan: list[WarmupEntry]) -> Any:
    client, reader, _ = connect(service)
    probed = probe_ranks(client, reader, block_size=16)
    service.requests.clear()
    done: list[int] = []
    result = warm_and_prove(client, reader, plan, probed.rank_of_engine, probed.rule, on_progress=done.append)
    assert done == list(range(1, 2 * len(plan) + 1))
    return result


def sharer(group: int, rank: int, tokens: int, end: str) -> WarmupEntry:
    text = (f"group {group} " * 160)[: tokens * 4] + end * 16
    name = f"warmup:group-{group}:{rank}:{tokens}:{end}"
    return WarmupEntry(name, f"group-{group}", rank, text, tokens + 16, tokens, 1)


@pytest.mark.parametrize("hybrid", [True, False])
def test_shorter_prefixes_of_a_hybrid_model_are_warmed_and_proven(hybrid: bool) -> None:
    service = FakeService(hybrid=hybrid)
    client, reader, _ = connect(service)
    probed = probe_ranks(client, reader, block_size=16)
    warm_and_prove(client, reader, PLAN, probed.rank_of_engine, probed.rule)
    pairs = [
        (sharer(group, rank, tokens, "one "), sharer(group, rank, tokens, "two "))
        for group in range(2)
        for rank in range(2)
        for tokens in (112, 64, 32)
    ]
    warmed = warm_shorter_prefixes(client, reader, pairs, probed.rank_of_engine)
    assert [each.cached_tokens for each in warmed] == [each.expected_hits for each in warmed] == [112, 64, 32] * 4
    formal = sharer(1, 1, 64, "formal ")
    assert client.complete(formal.prompt, dp_rank=1).cached_tokens == 64


def test_without_it_the_first_sharer_of_a_shorter_prefix_misses() -> None:
    service = FakeService(hybrid=True)
    client, reader, _ = connect(service)
    probed = probe_ranks(client, reader, block_size=16)
    warm_and_prove(client, reader, PLAN, probed.rank_of_engine, probed.rule)
    first, second = (client.complete(sharer(1, 1, 64, end).prompt, dp_rank=1) for end in ("one ", "two "))
    assert (first.cached_tokens, second.cached_tokens) == (0, 64)


PLAN = [entry(group, rank) for group in range(5) for rank in range(2)]


@pytest.mark.parametrize("dropped_blocks", [0, 1])
@pytest.mark.parametrize("details", [True, False])
def test_warm_up_reaches_every_rank_and_is_proven(details: bool, dropped_blocks: int) -> None:
    service = FakeService(tokens_details=details, dropped_blocks=dropped_blocks)
    warmed = warm(service, PLAN)
    assert [each.entry for each in warmed] == PLAN
    assert {each.cached_tokens for each in warmed} == ({144 - 16 * dropped_blocks} if details else {None})
    posted = [request for request in service.requests if request.method == "POST"]
    assert sorted(request.headers["x-data-parallel-rank"] for request in posted) == ["0"] * 10 + ["1"] * 10


def test_a_cache_that_cannot_hold_all_groups() -> None:
    service = FakeService(capacity_blocks=22)
    (first, second) = failures(lambda: warm(service, PLAN))
    assert first.startswith(
        f"[NOT_WARM] {URL}/metrics: rank 0 does not hold the canonical prefixes of 5 groups: sent again, they hit "
    )
    assert "group-0 hit 0 of 144" in first
    assert second.startswith(f"[NOT_WARM] {URL}/metrics: rank 1 does not hold")


def test_a_server_that_counts_one_token_more() -> None:
    assert failures(lambda: warm(FakeService(extra_prompt_tokens=1), PLAN[:4])) == [
        f"[TOKEN_COUNT_DIFFERS] {URL}/v1/completions: the server counts 161 tokens in the warm-up prompt of "
        f"group-{group}, tokenizer.path counts 160 (+1)"
        for group in (0, 1)
    ]


def test_an_error_while_warming_names_group_and_rank() -> None:
    service = FakeService()
    client, reader, _ = connect(service)
    probed = probe_ranks(client, reader, block_size=16)
    service.override = lambda request: httpx.Response(500, text="boom") if request.method == "POST" else None
    plan = PLAN[3:4]
    assert failures(lambda: warm_and_prove(client, reader, plan, probed.rank_of_engine, probed.rule)) == [
        f"[SERVER_ERROR] {URL}/v1/completions: warm-up of group-1: rank 1: answered 500: boom"
    ]


def test_somebody_else_s_requests_meanwhile_are_named() -> None:
    service = FakeService()
    client, reader, _ = connect(service)
    probed = probe_ranks(client, reader, block_size=16)
    service.foreign_queries = 3
    with pytest.raises(
        ServiceError, match="the warm-up's second pass sent 800 tokens to rank 0, whose counter rose by 815"
    ) as caught:
        warm_and_prove(client, reader, PLAN, probed.rank_of_engine, probed.rule)
    assert {problem.code for problem in caught.value.problems} == {"WARMUP_NOT_COUNTED"}
