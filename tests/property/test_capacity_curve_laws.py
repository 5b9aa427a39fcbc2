"""One pass for all capacities against a replay for each; the replay of hashes against the replay of tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doubles.token_replay import BoundedReplay

from ais_bench_prefix_cache.kvcache.block_hash import block_hashes
from ais_bench_prefix_cache.kvcache.trace_replay import TraceReplay, TraceRequest

# Prompts are beginnings of three trunks with a few tokens of their own: they share, branch and repeat a lot.
TRUNKS = [[(7 * trunk + position * position) % 3 for position in range(30)] for trunk in range(3)]
PROMPT = st.builds(
    lambda trunk, length, own: TRUNKS[trunk][:length] + own,
    st.integers(0, 2),
    st.integers(1, 30),
    st.lists(st.integers(0, 1), max_size=5),
)
REQUESTS = st.lists(st.tuples(PROMPT, st.sampled_from([1, 1, 2, 5])), min_size=1, max_size=30)
Requests = list[tuple[list[int], int]]


def hashed(requests: Requests, block_size: int) -> list[TraceRequest]:
    return [TraceRequest(block_hashes(prompt, block_size), len(prompt), output) for prompt, output in requests]


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.integers(1, 4), st.one_of(st.none(), st.integers(0, 30)))
def test_hashes_replay_as_tokens_do(requests: Requests, block_size: int, spare: int | None) -> None:
    needed = max(-(-(len(prompt) + output - 1) // block_size) for prompt, output in requests)
    num_blocks = None if spare is None else needed + spare
    tokens = BoundedReplay(block_size, 10_000 if num_blocks is None else num_blocks)
    hashes = TraceReplay(block_size=block_size, num_blocks=num_blocks)
    expected = [tokens.run(0, prompt, output) for prompt, output in requests]
    assert [hashes.send(request).hit_tokens for request in hashed(requests, block_size)] == expected
    assert hashes.totals[0].queries == sum(len(prompt) for prompt, _ in requests)
    assert hashes.totals[0].hits == sum(expected)
    assert hashes.evictions == tokens.evictions


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.integers(2, 4), st.integers(1, 2))
def test_every_capacity_is_what_a_replay_of_it_gives(requests: Requests, block_size: int, ranks: int) -> None:
    # A prompt of whole blocks leaves copies of its last one behind: see the test below.
    uneven = [(prompt if len(prompt) % block_size else [*prompt, 2], output) for prompt, output in requests]
    sent = hashed(uneven, block_size)
    unbounded = TraceReplay(block_size=block_size, ranks=ranks)
    for request in sent:
        unbounded.send(request)
    curve = unbounded.capacity_curve()
    for num_blocks in range(curve.smallest_num_blocks, curve.largest_num_blocks + 3):
        replay = TraceReplay(block_size=block_size, num_blocks=num_blocks, ranks=ranks)
        for request in sent:
            replay.send(request)
        assert curve.hit_tokens(num_blocks) == sum(totals.hits for totals in replay.totals)


@settings(max_examples=40, deadline=None)
@given(REQUESTS, st.integers(1, 4))
def test_copies_of_last_blocks_move_the_curve_by_no_more_than_their_number(requests: Requests, block_size: int) -> None:
    sent = hashed(requests, block_size)
    unbounded = TraceReplay(block_size=block_size)
    copies = sum(unbounded.send(request).hit_tokens == request.prompt_tokens - block_size for request in sent)
    curve = unbounded.capacity_curve()
    for num_blocks in range(curve.smallest_num_blocks, curve.largest_num_blocks + 3):
        replay = TraceReplay(block_size=block_size, num_blocks=num_blocks)
        for request in sent:
            replay.send(request)
        low = curve.hit_tokens(max(num_blocks - copies, 0))
        assert low <= replay.totals[0].hits <= curve.hit_tokens(num_blocks + copies)


def test_a_curve_by_hand() -> None:
    # Two prompts of two blocks, in turn: a third block lets the first block of each survive, a fourth both.
    prompts = [[1, 2, 3, 4, 9], [5, 6, 7, 8, 9]] * 3
    replay = TraceReplay(block_size=2)
    for prompt in prompts:
        replay.send(TraceRequest(block_hashes(prompt, 2), 5))
    curve = replay.capacity_curve()
    # Each prompt also holds an unfinished block while it runs.
    assert curve.smallest_num_blocks == 3
    assert [curve.hit_tokens(num_blocks) for num_blocks in (3, 4, 5, 6, 100)] == [0, 8, 16, 16, 16]
    assert (curve.largest_num_blocks, curve.blocks_for(16), curve.blocks_for(1), curve.blocks_for(17)) == (5, 5, 4, 5)
    assert curve.hit_rate(4) == 8 / 30
    assert curve.sizes(10) == [3, 4, 5]


@pytest.mark.parametrize("num_blocks", [3, 4, 5])
def test_the_curve_by_hand_is_what_the_pool_gives(num_blocks: int) -> None:
    replay = BoundedReplay(2, num_blocks)
    hits = sum(replay.run(0, prompt) for prompt in [[1, 2, 3, 4, 9], [5, 6, 7, 8, 9]] * 3)
    assert hits == {3: 0, 4: 8, 5: 16}[num_blocks]
