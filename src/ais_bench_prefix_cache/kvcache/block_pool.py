"""A fixed number of KV-cache blocks: who holds them, what they hold, and which of them goes next.

The rules are those of vLLM 0.32's ``BlockPool``:

- a block that nobody holds lies in the free queue, but keeps its content and can still be hit;
- allocation takes from the front of the queue and only then forgets what the block held (eviction);
- blocks with content return to the back of the queue, those without to its front;
- equal content may lie in several blocks: the one that was cached first is handed out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ais_bench_prefix_cache.kvcache.block_hash import BlockHash


class BlockPool:
    """Blocks ``0`` … ``num_blocks - 1``, all of them usable.

    vLLM never hands out one of the ``num_gpu_blocks`` it reports (its null block): pass one less.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError("a block pool needs at least one block")
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self.evictions = 0
        """Cached blocks that were overwritten."""
        self._ref_cnt = [0] * num_blocks
        self._block_hash: list[BlockHash | None] = [None] * num_blocks
        # Content -> the block that holds it, or all such blocks in the order in which they were cached.
        self._cached: dict[BlockHash, int | list[int]] = {}
        # The free queue is a doubly linked ring through ``_sentinel``: its successor goes first.
        self._sentinel = num_blocks
        self._next = [*range(1, num_blocks + 1), 0]
        self._previous = [num_blocks, *range(num_blocks)]

    def ref_cnt(self, block: int) -> int:
        """How many requests hold ``block``."""
        return self._ref_cnt[block]

    def longest_cached_prefix(self, block_hashes: Iterable[BlockHash]) -> list[int]:
        """The blocks of the longest run of cached content from the first hash on."""
        cached = self._cached
        blocks = []
        for block_hash in block_hashes:
            found = cached.get(block_hash)
            if found is None:
                break
            blocks.append(found[0] if isinstance(found, list) else found)
        return blocks

    def free_queue(self) -> list[int]:
        """The free blocks, the next one to be taken first."""
        blocks = []
        block = self._next[self._sentinel]
        while block != self._sentinel:
            blocks.append(block)
            block = self._next[block]
        return blocks

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks from the front of the free queue; what they held is forgotten."""
        if count > self.num_free:
            raise ValueError(f"cannot take {count} blocks: {self.num_free} are free")
        following = self._next
        block_hash = self._block_hash
        blocks = []
        block = following[self._sentinel]
        for _ in range(count):
            blocks.append(block)
            if block_hash[block] is not None:
                self._forget(block)
                self.evictions += 1
            self._ref_cnt[block] = 1
            block = following[block]
        following[self._sentinel] = block
        self._previous[block] = self._sentinel
        self.num_free -= count
        return blocks

    def touch(self, blocks: Iterable[int]) -> None:
        """Hold cached blocks once more; those in the free queue leave it."""
        for block in blocks:
            if self._ref_cnt[block] == 0:
                before, after = self._previous[block], self._next[block]
                self._next[before] = after
                self._previous[after] = before
                self.num_free -= 1
            self._ref_cnt[block] += 1

    def cache(self, block: int, block_hash: BlockHash) -> None:
        """Say what a held block that has just become full contains."""
        if self._block_hash[block] is not None:
            raise ValueError(f"block {block} is cached already")
        self._block_hash[block] = block_hash
        found = self._cached.get(block_hash)
        if found is None:
            self._cached[block_hash] = block
        elif isinstance(found, list):
            found.append(block)
        else:
            self._cached[block_hash] = [found, block]

    def free(self, blocks: Sequence[int]) -> None:
        """Let go of a request's blocks, given from its first to its last.

        The last one is the first to be taken again: the end of a sequence is of less use to others than its start.
        """
        cached: list[int] = []
        uncached: list[int] = []
        for block in reversed(blocks):
            self._ref_cnt[block] -= 1
            if self._ref_cnt[block] == 0:
                (uncached if self._block_hash[block] is None else cached).append(block)
        self._link(uncached, self._sentinel, self._next[self._sentinel])
        self._link(cached, self._previous[self._sentinel], self._sentinel)

    def reset(self) -> bool:
        """Forget all content, unless a block is held: then nothing happens and the answer is ``False``."""
        if self.num_free != self.num_blocks:
            return False
        self._cached.clear()
        self._block_hash = [None] * self.num_blocks
        return True

    def _link(self, blocks: list[int], before: int, after: int) -> None:
        for block in blocks:
            self._next[before] = block
            self._previous[block] = before
            before = block
        self._next[before] = after
        self._previous[after] = before
        self.num_free += len(blocks)

    def _forget(self, block: int) -> None:
        block_hash = self._block_hash[block]
        assert block_hash is not None
        self._block_hash[block] = None
        found = self._cached[block_hash]
        if isinstance(found, list):
            found.remove(block)
            if not found:
                del self._cached[block_hash]
        else:
            del self._cached[block_hash]
