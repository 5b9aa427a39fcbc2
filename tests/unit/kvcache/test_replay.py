"""Replays whose hits are plain to see."""

from __future__ import annotations

import numpy as np
import pytest

from ais_bench_prefix_cache.kvcache.replay import SequentialReplay, replay_prompts

TRUNK = list(range(40))


def test_hits_are_whole_blocks_of_what_came_before() -> None:
    prompts = [TRUNK[:40], [*TRUNK[:10], 99, 99, 99], [*TRUNK[:20], 98], [*TRUNK[:20], 98], TRUNK]
    assert replay_prompts(prompts, block_size=4) == [0, 8, 20, 20, 36]


def test_ranks_share_nothing_and_a_warm_up_is_not_reported() -> None:
    prompts = [TRUNK] * 4
    assert replay_prompts(prompts, [0, 1, 1, 0], num_ranks=2, block_size=4, warmup=[(1, TRUNK[:9])]) == [0, 8, 36, 36]


@pytest.mark.parametrize("num_blocks", [None, 100])
def test_totals_are_kept_by_rank(num_blocks: int | None) -> None:
    replay = SequentialReplay(block_size=4, ranks=2, num_blocks=num_blocks)
    replay.run(1, np.array(TRUNK), counted=False)
    assert [replay.run(1, np.array(TRUNK)), replay.run(0, TRUNK[:6])] == [36, 0]
    assert (replay.queries, replay.hits, replay.evictions) == ([6, 40], [0, 36], [0, 0])


def test_a_small_cache_forgets_what_was_used_longest_ago() -> None:
    prompts = [[base + position for position in range(8)] for base in (0, 100, 200)]
    # Three prompts of two blocks through five: the third evicts the tail of the first.
    assert replay_prompts([*prompts, [*prompts[0], 7]], block_size=4, num_blocks=5) == [0, 0, 0, 4]
    assert replay_prompts([*prompts, [*prompts[0], 7]], block_size=4, num_blocks=6) == [0, 0, 0, 8]


def test_generated_tokens_take_room() -> None:
    prompts = [[base + position for position in range(8)] for base in (0, 100)] + [[*range(8), 7]]
    assert replay_prompts(prompts, block_size=4, num_blocks=6, output_tokens=[1, 1, 1]) == [0, 0, 8]
    assert replay_prompts(prompts, block_size=4, num_blocks=6, output_tokens=[1, 17, 1]) == [0, 0, 0]


def test_a_request_larger_than_the_cache_is_refused() -> None:
    with pytest.raises(ValueError) as caught:
        replay_prompts([TRUNK], block_size=4, num_blocks=9, output_tokens=[3])
    assert str(caught.value) == ("a request of 40 prompt and 3 output tokens does not fit into 9 blocks of 4 tokens")


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"zip\(\) argument 2 is shorter"):
        replay_prompts([TRUNK, TRUNK], [0], block_size=4)
    with pytest.raises(ValueError, match=r"^block_size and ranks must be at least 1$"):
        SequentialReplay(block_size=4, ranks=0)
