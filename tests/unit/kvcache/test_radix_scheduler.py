"""SGLang's batches: what was seen on a real server when requests come together, and room that never runs out."""

from __future__ import annotations

import random

import pytest

from ais_bench_prefix_cache.kvcache.radix_cache import RadixCache
from ais_bench_prefix_cache.kvcache.radix_scheduler import RadixRequest, RadixScheduler


def scheduler_of(page: int = 1, pages: int | None = None, *, seqs: int = 64, chunk: int = 4096) -> RadixScheduler:
    return RadixScheduler(RadixCache(page, pages), max_num_seqs=seqs, max_num_batched_tokens=chunk)


def add(scheduler: RadixScheduler, prompt: list[int], max_tokens: int = 1) -> RadixRequest:
    request: RadixRequest = RadixRequest(scheduler.cache.sequence(prompt), max_tokens)
    scheduler.add(request)
    return request


def step(scheduler: RadixScheduler) -> list[RadixRequest]:
    """Run one step; returns the requests that got a token."""
    scheduled = scheduler.schedule()
    return [request for request, _ in scheduler.finish_step(scheduled, lambda request: -1 - request.num_output_tokens)]


def run_all(scheduler: RadixScheduler) -> None:
    while scheduler.waiting or scheduler.running:
        assert step(scheduler) or scheduler.running


@pytest.mark.parametrize(("count", "length", "common"), [(2, 2000, 2000), (4, 700, 500)])
def test_prompts_that_come_together_do_not_hit_each_other(count: int, length: int, common: int) -> None:
    scheduler = scheduler_of()
    together = [
        add(scheduler, [*range(common), *range(9000 + n * length, 9000 + (n + 1) * length - common)])
        for n in range(count)
    ]
    run_all(scheduler)
    assert [request.hit_tokens for request in together] == [0] * count
    after = add(scheduler, [*range(common), 7, 7])
    run_all(scheduler)
    assert after.hit_tokens == common


def test_who_comes_after_the_first_token_hits_the_whole_prompt() -> None:
    scheduler = scheduler_of(16)
    first = add(scheduler, list(range(100)), 50)
    assert step(scheduler) == [first]
    second = add(scheduler, list(range(100)), 2)
    assert step(scheduler) == [second]
    assert (first.finished, second.hit_tokens) == (False, 96)


def test_prompts_go_before_answers_and_long_ones_in_chunks() -> None:
    scheduler = scheduler_of(chunk=50)
    first = add(scheduler, list(range(40)), 5)
    assert step(scheduler) == [first]
    second = add(scheduler, list(range(1000, 1120)), 5)
    assert [step(scheduler) for _ in range(4)] == [[], [], [second], [first, second]]
    # What chunks have computed can be hit before the prompt is whole.
    third = add(scheduler, list(range(2000, 2120)), 1)
    step(scheduler)
    fourth = add(scheduler, list(range(2000, 2120)), 1)
    run_all(scheduler)
    assert (third.hit_tokens, fourth.hit_tokens) == (0, 100)


def test_a_flush_is_refused_while_requests_run_or_wait() -> None:
    scheduler = scheduler_of(seqs=1)
    first, second = add(scheduler, [1, 2, 3], 2), add(scheduler, [1, 2, 3], 1)
    assert not scheduler.reset_cache()
    step(scheduler)
    assert not scheduler.reset_cache()
    scheduler.abort(first)
    assert not scheduler.reset_cache()
    scheduler.abort(second)
    assert scheduler.reset_cache() and scheduler.cache.num_tree_tokens == 0


@pytest.mark.parametrize(("page", "seed"), [(1, 1), (4, 2), (16, 3)])
def test_room_never_runs_out_and_every_request_ends(page: int, seed: int) -> None:
    random_numbers = random.Random(seed)
    scheduler = scheduler_of(page, 320 // page, seqs=6, chunk=32)
    requests: list[RadixRequest] = []
    for _ in range(400):
        if len(requests) < 150 and random_numbers.random() < 0.5:
            prompt = [random_numbers.randrange(2) for _ in range(random_numbers.randint(1, 120))]
            requests.append(add(scheduler, prompt, random_numbers.randint(1, 60)))
        if requests and random_numbers.random() < 0.03:
            scheduler.abort(random_numbers.choice(requests))
        step(scheduler)
        free = scheduler.cache.num_free_tokens
        assert free is not None and 0 <= free <= 320 // page * page
    run_all(scheduler)
    assert all(request.finished for request in requests)
    assert (scheduler.cache.num_locked_tokens, scheduler.cache.usage) == (0, 0)
    assert scheduler.cache.evicted_tokens > 1000
