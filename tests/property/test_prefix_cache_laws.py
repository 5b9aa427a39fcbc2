"""Laws of the cache that hold for any traffic, against a brute force that knows nothing of hashes or blocks."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doubles.token_replay import BoundedReplay, replay_prompts

from ais_bench_prefix_cache.kvcache.prefix_cache import PrefixCache
from ais_bench_prefix_cache.kvcache.replay import SequentialReplay
from ais_bench_prefix_cache.kvcache.scheduler import BatchedRequest, BatchScheduler

# Few distinct tokens, so that prompts share prefixes of all lengths.
PROMPTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=24), min_size=1, max_size=12)
BLOCK_SIZES = st.integers(1, 5)


def common_prefix(first: list[int], second: list[int]) -> int:
    length = 0
    while length < min(len(first), len(second)) and first[length] == second[length]:
        length += 1
    return length


def brute_force_hits(prompts: list[list[int]], ranks: list[int], block_size: int) -> list[int]:
    """What an unbounded cache hits: whole blocks of the longest common prefix with any earlier prompt of the rank."""
    hits = []
    for index, prompt in enumerate(prompts):
        earlier = [prompts[before] for before in range(index) if ranks[before] == ranks[index]]
        reusable = max(
            (common_prefix(prompt, other[: len(other) // block_size * block_size]) for other in earlier), default=0
        )
        hits.append(min(reusable, len(prompt) - 1) // block_size * block_size)
    return hits


@given(PROMPTS, BLOCK_SIZES, st.data())
def test_an_unbounded_replay_hits_the_longest_common_prefix(
    prompts: list[list[int]], block_size: int, data: st.DataObject
) -> None:
    ranks = data.draw(st.lists(st.integers(0, 2), min_size=len(prompts), max_size=len(prompts)))
    expected = brute_force_hits(prompts, ranks, block_size)
    replay = SequentialReplay(block_size=block_size, ranks=3)
    assert [replay.run(rank, prompt) for rank, prompt in zip(ranks, prompts, strict=True)] == expected
    # Blocks for all prompts at once: nothing is ever evicted.
    ample = sum(len(prompt) for prompt in prompts) + 1
    assert replay_prompts(prompts, ranks, num_ranks=3, block_size=block_size, num_blocks=ample) == expected


@given(PROMPTS, BLOCK_SIZES, st.integers(0, 20))
def test_a_bounded_cache_never_hits_more(prompts: list[list[int]], block_size: int, spare: int) -> None:
    num_blocks = max(-(-len(prompt) // block_size) for prompt in prompts) + spare
    bounded = BoundedReplay(block_size, num_blocks)
    unbounded = SequentialReplay(block_size=block_size)
    for prompt in prompts:
        assert bounded.run(0, prompt) <= unbounded.run(0, prompt)
    assert unbounded.queries == [sum(len(prompt) for prompt in prompts)]


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=12), st.integers(1, 4)), max_size=12),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 10),
    st.integers(0, 10),
)
def test_every_request_is_served_whatever_the_pressure(
    requests: list[tuple[list[int], int]], block_size: int, max_num_seqs: int, max_num_batched_tokens: int, spare: int
) -> None:
    # The largest request just fits: others have to wait, or give way and start again.
    num_blocks = -(-16 // block_size) + spare
    cache = PrefixCache(block_size, num_blocks)
    scheduler = BatchScheduler(cache, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
    batch = [BatchedRequest(cache.sequence(prompt), max_tokens) for prompt, max_tokens in requests]
    for request in batch:
        scheduler.add(request)
    steps = 0
    while scheduler.running or scheduler.waiting:
        step = scheduler.schedule()
        assert sum(chunk.num_tokens for chunk in step.chunks) <= max_num_batched_tokens
        assert len(scheduler.running) <= max_num_seqs
        held = {block for request in scheduler.running for block in request.sequence.block_ids}
        assert cache.pool.num_free == num_blocks - len(held)
        assert held.isdisjoint(cache.pool.free_queue())
        scheduler.finish_step(step, lambda request: request.num_output_tokens % 2)
        steps += 1
        assert steps < 5000
    assert [request.num_output_tokens for request in batch] == [max_tokens for _, max_tokens in requests]
    assert cache.queries == sum(len(prompt) for prompt, _ in requests)
    assert cache.hits == sum(request.hit_tokens or 0 for request in batch)
    assert cache.pool.num_free == num_blocks
    assert cache.reset()
