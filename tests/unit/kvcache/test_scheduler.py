"""Continuous batching in cases small enough to follow by hand."""

from __future__ import annotations

from ais_bench_prefix_cache.kvcache.prefix_cache import CachedSequence, PrefixCache
from ais_bench_prefix_cache.kvcache.scheduler import BatchedRequest, BatchScheduler, BatchStep


def make_scheduler(num_blocks: int = 100, max_num_seqs: int = 8, max_num_batched_tokens: int = 64) -> BatchScheduler:
    return BatchScheduler(
        PrefixCache(4, num_blocks), max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
    )


def add(scheduler: BatchScheduler, token_ids: list[int], max_tokens: int = 1) -> BatchedRequest[CachedSequence]:
    request = BatchedRequest(scheduler.cache.sequence(token_ids), max_tokens)
    scheduler.add(request)
    return request


def run_step(scheduler: BatchScheduler) -> BatchStep[CachedSequence]:
    step = scheduler.schedule()
    scheduler.finish_step(step, lambda _request: 7)
    return step


def sizes(step: BatchStep[CachedSequence]) -> list[int]:
    return [chunk.num_tokens for chunk in step.chunks]


def test_identical_new_prompts_hit_each_other_in_one_step() -> None:
    scheduler = make_scheduler()
    requests = [add(scheduler, list(range(10))) for _ in range(2)]
    assert sizes(run_step(scheduler)) == [10, 2]
    assert [request.hit_tokens for request in requests] == [0, 8]
    assert (scheduler.cache.queries, scheduler.cache.hits) == (20, 8)


def test_a_long_prompt_is_computed_in_chunks_beside_running_requests() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=8)
    add(scheduler, [1, 2, 3], max_tokens=3)
    long = add(scheduler, list(range(100, 112)))
    first = run_step(scheduler)
    assert (sizes(first), first.num_prefill_tokens, first.num_decodes) == ([3, 5], 8, 0)
    second = run_step(scheduler)
    assert (sizes(second), second.num_prefill_tokens, second.num_decodes) == ([1, 7], 7, 1)
    assert long.finished


def test_requests_wait_for_a_seat() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    first, second = add(scheduler, [1], max_tokens=2), add(scheduler, [2])
    run_step(scheduler)
    assert second.hit_tokens is None
    run_step(scheduler)
    assert first.finished
    run_step(scheduler)
    assert second.finished
    assert sizes(run_step(scheduler)) == []


def test_the_youngest_request_gives_way_and_is_counted_once() -> None:
    scheduler = make_scheduler(num_blocks=4)
    old, young = add(scheduler, list(range(8)), max_tokens=6), add(scheduler, list(range(100, 108)), max_tokens=2)
    run_step(scheduler)
    step = run_step(scheduler)
    assert step.preempted == [young]
    assert (young.num_preemptions, scheduler.waiting[0]) == (1, young)
    while not young.finished:
        run_step(scheduler)
    assert old.finished
    assert scheduler.cache.queries == 16
    assert young.sequence.token_ids[8:] == [7, 7]


def test_aborted_requests_give_their_blocks_back() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    running, waiting = add(scheduler, list(range(8)), max_tokens=5), add(scheduler, [1])
    step = scheduler.schedule()
    scheduler.abort(running)
    scheduler.abort(waiting)
    scheduler.abort(waiting)
    assert scheduler.finish_step(step, lambda _request: 7) == []
    assert (scheduler.running, list(scheduler.waiting), scheduler.cache.usage) == ([], [], 0.0)


def test_a_reset_that_preempts_lets_everything_start_again() -> None:
    scheduler = make_scheduler()
    requests = [add(scheduler, list(range(base, base + 8)), max_tokens=2) for base in (0, 100)]
    step = scheduler.schedule()
    assert scheduler.reset_cache() is False
    assert scheduler.reset_cache(preempt_running=True) is True
    assert scheduler.finish_step(step, lambda _request: 7) == []
    assert list(scheduler.waiting) == requests
    assert sizes(run_step(scheduler)) == [8, 8]
    assert scheduler.cache.queries == 16
