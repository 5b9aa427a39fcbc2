"""Replays whose hits are plain to see."""

from __future__ import annotations

import numpy as np
import pytest

from ais_bench_prefix_cache.kvcache.replay import SequentialReplay

TRUNK = list(range(40))


def test_hits_are_whole_blocks_of_what_came_before() -> None:
    replay = SequentialReplay(block_size=4)
    prompts = [TRUNK[:40], [*TRUNK[:10], 99, 99, 99], [*TRUNK[:20], 98], [*TRUNK[:20], 98], TRUNK]
    assert [replay.run(0, prompt) for prompt in prompts] == [0, 8, 20, 20, 36]


def test_ranks_share_nothing_and_a_warm_up_is_not_counted() -> None:
    replay = SequentialReplay(block_size=4, ranks=2)
    replay.run(1, np.array(TRUNK[:9]), counted=False)
    assert [replay.run(rank, np.array(TRUNK)) for rank in (0, 1, 1, 0)] == [0, 8, 36, 36]
    assert (replay.queries, replay.hits) == ([80, 80], [36, 44])


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^block_size and ranks must be at least 1$"):
        SequentialReplay(block_size=4, ranks=0)


def test_an_output_is_cached_but_for_its_last_token() -> None:
    for output, hits in (([], 4), ([7], 4), ([7, 7], 4), ([7] * 3, 4), ([7] * 4, 8)):
        replay = SequentialReplay(block_size=4)
        replay.run(0, TRUNK[:5], output=output)
        assert replay.run(0, [*TRUNK[:5], *output, *TRUNK]) == hits
