"""The prefix cache of one engine: look up, allocate, grow, free, reset, and count as vLLM counts.

The rules are those of vLLM 0.32's ``KVCacheManager`` for one group of full-attention layers, without KV connectors:

- a hit is a run of cached full blocks from the first token on, at most ``N - 1`` tokens long: the last token of a
  prompt is always computed, because its logits are needed;
- blocks are cached when the tokens that fill them are *scheduled*, not when they have been computed;
- generated tokens are cached like any others, as soon as the next step has scheduled them;
- a request is counted once, when it is admitted for the first time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ais_bench_prefix_cache.kvcache.block_hash import BlockHash, ExtraKeys, block_hashes
from ais_bench_prefix_cache.kvcache.block_pool import BlockPool


@dataclass(eq=False)
class CachedSequence:
    """A request as the cache sees it: its tokens so far, and the blocks that hold them."""

    token_ids: list[int]
    extra_keys: ExtraKeys | None = None
    num_computed_tokens: int = 0
    block_ids: list[int] = field(default_factory=list)
    num_cached_blocks: int = 0
    block_hashes: list[BlockHash] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


class PrefixCache:
    """``num_blocks`` usable blocks of ``block_size`` tokens.

    ``drops_last_hit_block`` is what speculative decoding with EAGLE or MTP does: one block less is hit.
    """

    def __init__(
        self, block_size: int, num_blocks: int, *, enabled: bool = True, drops_last_hit_block: bool = False
    ) -> None:
        if block_size < 1:
            raise ValueError("block_size must be at least 1")
        self.block_size = block_size
        self.enabled = enabled
        self.drops_last_hit_block = drops_last_hit_block
        self.pool = BlockPool(num_blocks)
        self.queries = 0
        """Tokens of all requests counted so far."""
        self.hits = 0
        """Those of them that were found in the cache."""

    @property
    def usage(self) -> float:
        """The share of blocks that requests hold, 0 … 1. Cached blocks that nobody holds do not count."""
        return 1.0 - self.pool.num_free / self.pool.num_blocks

    def sequence(self, token_ids: Sequence[int], extra_keys: ExtraKeys | None = None) -> CachedSequence:
        """A request that has not been scheduled yet."""
        sequence = CachedSequence(list(token_ids), extra_keys)
        if self.enabled:
            sequence.block_hashes = block_hashes(sequence.token_ids, self.block_size, extra_keys=extra_keys)
        return sequence

    def append(self, sequence: CachedSequence, token_id: int) -> None:
        """The model has produced one more token."""
        sequence.token_ids.append(token_id)
        if self.enabled and len(sequence.token_ids) % self.block_size == 0:
            sequence.block_hashes += block_hashes(
                sequence.token_ids,
                self.block_size,
                extra_keys=sequence.extra_keys,
                known=sequence.block_hashes,
            )

    def lookup(self, sequence: CachedSequence) -> list[int]:
        """The cached blocks with which ``sequence`` can start. Changes nothing."""
        if not self.enabled:
            return []
        reusable = max(sequence.num_tokens - 1, 0) // self.block_size
        blocks = self.pool.longest_cached_prefix(sequence.block_hashes[:reusable])
        if self.drops_last_hit_block and blocks:
            blocks.pop()
        return blocks

    def record(self, sequence: CachedSequence, hit_blocks: Sequence[int]) -> None:
        """Count an admitted request that was never preempted. Nothing is counted when caching is off."""
        if self.enabled:
            self.queries += sequence.num_tokens
            self.hits += len(hit_blocks) * self.block_size

    def allocate(
        self,
        sequence: CachedSequence,
        num_new_tokens: int,
        hit_blocks: Sequence[int] = (),
        *,
        whole_sequence_must_fit: bool = False,
    ) -> bool:
        """Find room for the next ``num_new_tokens`` tokens and cache the blocks that they fill.

        ``hit_blocks`` come from :meth:`lookup`, for a sequence that holds no blocks yet. With
        ``whole_sequence_must_fit`` a sequence is refused unless all its tokens fit, even if only a part of them is
        scheduled now. Returns ``False``, having changed nothing, where the free blocks do not suffice.
        """
        if hit_blocks and sequence.block_ids:
            raise ValueError("only a sequence without blocks can start with cached ones")
        # A hit block in the free queue leaves it, so it costs a free block just as a new one does.
        revived = sum(self.pool.ref_cnt(block) == 0 for block in hit_blocks)
        held = len(sequence.block_ids) + len(hit_blocks)
        if whole_sequence_must_fit:
            whole = max(self._blocks_for(sequence.num_tokens) - held, 0)
            if whole + revived > self.pool.num_free:
                return False
        end = sequence.num_computed_tokens + len(hit_blocks) * self.block_size + num_new_tokens
        wanted = max(self._blocks_for(end) - held, 0)
        if wanted + revived > self.pool.num_free:
            return False
        if hit_blocks:
            self.pool.touch(hit_blocks)
            sequence.block_ids.extend(hit_blocks)
            sequence.num_cached_blocks = len(hit_blocks)
            sequence.num_computed_tokens = len(hit_blocks) * self.block_size
        if wanted:
            sequence.block_ids += self.pool.allocate(wanted)
        if self.enabled:
            full = min(end, sequence.num_tokens) // self.block_size
            for index in range(sequence.num_cached_blocks, full):
                self.pool.cache(sequence.block_ids[index], sequence.block_hashes[index])
            sequence.num_cached_blocks = max(full, sequence.num_cached_blocks)
        return True

    def free(self, sequence: CachedSequence) -> None:
        """Let go of all blocks: the request has finished, was aborted, or is preempted and will start again."""
        self.pool.free(sequence.block_ids)
        sequence.block_ids = []
        sequence.num_cached_blocks = 0
        sequence.num_computed_tokens = 0

    def reset(self) -> bool:
        """Empty the cache; ``False``, and nothing happens, while a request holds blocks. Counters stay."""
        return self.pool.reset()

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)
