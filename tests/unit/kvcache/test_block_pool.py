"""The free queue, eviction and duplicates of the block pool; the expected orders follow from vLLM's rules by hand."""

from __future__ import annotations

import pytest

from ais_bench_prefix_cache.kvcache.block_pool import BlockPool


def name(number: int) -> bytes:
    return bytes([number]) * 16


def hit(pool: BlockPool, number: int) -> list[int]:
    return pool.longest_cached_prefix([name(number)])


def test_blocks_leave_in_order_at_first() -> None:
    pool = BlockPool(5)
    assert pool.allocate(3) == [0, 1, 2]
    assert pool.free_queue() == [3, 4]
    assert pool.num_free == 2


def test_cached_blocks_return_to_the_back_the_last_one_first() -> None:
    pool = BlockPool(5)
    blocks = pool.allocate(3)
    for block in blocks:
        pool.cache(block, name(block))
    pool.free(blocks)
    assert pool.free_queue() == [3, 4, 2, 1, 0]


def test_blocks_without_content_return_to_the_front() -> None:
    pool = BlockPool(5)
    blocks = pool.allocate(3)
    pool.cache(blocks[0], name(0))
    pool.free(blocks)
    assert pool.free_queue() == [2, 1, 3, 4, 0]


def test_a_freed_block_is_hit_until_it_is_allocated_again() -> None:
    pool = BlockPool(2)
    [block] = pool.allocate(1)
    pool.cache(block, name(7))
    pool.free([block])
    assert hit(pool, 7) == [block]
    pool.allocate(1)
    assert (hit(pool, 7), pool.evictions) == ([block], 0)
    pool.allocate(1)
    assert (hit(pool, 7), pool.evictions) == ([], 1)


def test_touching_takes_a_block_out_of_the_queue_once() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(2)
    for block in blocks:
        pool.cache(block, name(block))
    pool.free(blocks)
    pool.touch([0])
    pool.touch([0])
    assert (pool.free_queue(), pool.ref_cnt(0), pool.num_free) == ([2, 1], 2, 2)
    pool.free([0])
    assert pool.free_queue() == [2, 1]
    pool.free([0])
    assert pool.free_queue() == [2, 1, 0]


def test_of_equal_blocks_the_first_is_handed_out_until_it_is_evicted() -> None:
    pool = BlockPool(3)
    first, second, third = pool.allocate(3)
    for block in (second, first, third):
        pool.cache(block, name(1))
    assert hit(pool, 1) == [second]
    pool.free([second])
    pool.allocate(1)
    assert hit(pool, 1) == [first]
    pool.free([first])
    pool.allocate(1)
    assert hit(pool, 1) == [third]
    pool.free([third])
    pool.allocate(1)
    assert hit(pool, 1) == []


def test_the_longest_run_ends_at_the_first_gap() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    for block, content in zip(blocks, (1, 2, 4), strict=True):
        pool.cache(block, name(content))
    assert pool.longest_cached_prefix([name(1), name(2), name(3), name(4)]) == blocks[:2]


def test_reset_waits_until_nobody_holds_a_block() -> None:
    pool = BlockPool(2)
    [block] = pool.allocate(1)
    pool.cache(block, name(1))
    assert pool.reset() is False
    assert hit(pool, 1) == [block]
    pool.free([block])
    assert pool.reset() is True
    assert hit(pool, 1) == []
    pool.cache(pool.allocate(2)[0], name(1))
    assert pool.evictions == 0


def test_impossible_requests_are_refused() -> None:
    pool = BlockPool(2)
    with pytest.raises(ValueError, match=r"^cannot take 3 blocks: 2 are free$"):
        pool.allocate(3)
    [block] = pool.allocate(1)
    pool.cache(block, name(1))
    with pytest.raises(ValueError, match=r"^block 0 is cached already$"):
        pool.cache(block, name(2))
    with pytest.raises(ValueError, match=r"^a block pool needs at least one block$"):
        BlockPool(0)
