"""The replay of traces by SGLang's rules, against requests sent token by token."""

from __future__ import annotations

import random

import pytest
from tests.doubles.radix_requests import run_alone

from ais_bench_prefix_cache.foundation.errors import CalculationError
from ais_bench_prefix_cache.kvcache.block_hash import block_hashes
from ais_bench_prefix_cache.kvcache.radix_cache import RadixCache
from ais_bench_prefix_cache.kvcache.radix_replay import RadixReplay, replay_of
from ais_bench_prefix_cache.kvcache.trace_replay import TraceReplay, TraceRequest


def request_of(prompt: list[int], page: int, output_tokens: int = 1) -> TraceRequest:
    return TraceRequest(block_hashes(prompt, page), len(prompt), output_tokens)


@pytest.mark.parametrize(("page", "pages"), [(1, 300), (1, None), (4, 75), (16, 20)])
@pytest.mark.parametrize("seed", range(3))
def test_hits_and_evictions_are_those_of_tokens(page: int, pages: int | None, seed: int) -> None:
    random_numbers = random.Random(seed)
    tokens, replay = RadixCache(page, pages), RadixReplay(block_size=page, num_blocks=pages)
    past: list[list[int]] = [[1]]
    output = 10**6
    for _ in range(250):
        base = random_numbers.choice(past[-15:])
        prompt = base[: random_numbers.randint(1, len(base))]
        prompt += [random_numbers.randrange(4) for _ in range(random_numbers.randint(0, 40))]
        prompt = prompt[:150]
        past.append(prompt)
        length = random_numbers.choice([1, 1, 2, 5, 30])
        expected = run_alone(tokens, prompt, list(range(output, output + length)))
        output += length
        replayed = replay.send(request_of(prompt, page, length))
        assert replayed.hit_tokens == expected
    replay.send(request_of([9], page))  # Ends the last one.
    run_alone(tokens, [9], [output])
    assert replay.evictions[0] * page == tokens.evicted_tokens
    assert not pages or tokens.evicted_tokens > 1000
    assert replay.totals[0].requests == 251


def test_requests_that_run_together_hold_their_room_and_share_prompts() -> None:
    replay = RadixReplay(block_size=1, num_blocks=100, concurrency=3)
    prompts = [[*range(20), 100 + number] for number in range(3)]
    assert [replay.send(request_of(prompt, 1, 10)).hit_tokens for prompt in prompts] == [0, 20, 20]
    # A fourth has to wait for the first to end; a fifth, too large for the rest, for all of them.
    assert replay.send(request_of(list(range(500, 540)), 1)).hit_tokens == 0
    assert replay.send(request_of([*range(20), *range(1000, 1070)], 1)).hit_tokens == 20
    with pytest.raises(CalculationError, match="a rank has 100"):
        replay.send(request_of(list(range(101)), 1))


def test_requests_find_the_rank_that_has_their_prefix() -> None:
    replay = RadixReplay(block_size=4, ranks=2, routing="prefix-aware")
    first, second = list(range(40)), list(range(100, 140))
    assert [replay.send(request_of(prompt, 4)).rank for prompt in (first, second, second, first)] == [0, 1, 1, 0]


def test_there_is_no_capacity_curve() -> None:
    with pytest.raises(CalculationError, match="--blocks"):
        RadixReplay(block_size=1).capacity_curve()


def test_the_rules_have_names() -> None:
    assert (replay_of("vllm"), replay_of("sglang")) == (TraceReplay, RadixReplay)
