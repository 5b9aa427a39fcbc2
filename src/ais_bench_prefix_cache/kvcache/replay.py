"""Replay prompts through the caches of some data-parallel ranks, one request at a time on each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from ais_bench_prefix_cache.kvcache.block_hash import MAX_TOKEN_ID, BlockHash, block_hashes
from ais_bench_prefix_cache.kvcache.prefix_cache import PrefixCache

Prompt = Union[Sequence[int], "npt.NDArray[np.integer[Any]]"]


class SequentialReplay:
    """The caches of ``ranks`` ranks, each of which finishes one request before it starts the next.

    ``num_blocks`` usable blocks on each rank (vLLM's ``num_gpu_blocks`` less one), or ``None`` for a cache that never
    evicts: then only the hashes are kept, 16 bytes of content a block.
    """

    def __init__(self, *, block_size: int, num_blocks: int | None = None, ranks: int = 1) -> None:
        if block_size < 1 or ranks < 1:
            raise ValueError("block_size and ranks must be at least 1")
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.queries = [0] * ranks
        """Prompt tokens counted so far, by rank."""
        self.hits = [0] * ranks
        """Hit tokens counted so far, by rank."""
        self._seen: list[set[BlockHash]] = [set() for _ in range(ranks)]
        self._caches = [] if num_blocks is None else [PrefixCache(block_size, num_blocks) for _ in range(ranks)]
        self._generated = 0

    @property
    def evictions(self) -> list[int]:
        """Cached blocks overwritten so far, by rank."""
        return [cache.pool.evictions for cache in self._caches] or [0] * len(self._seen)

    def run(self, rank: int, prompt: Prompt, *, output_tokens: int = 1, counted: bool = True) -> int:
        """Send one request to ``rank`` and let it finish; returns how many of its tokens hit.

        The generated tokens (``output_tokens`` of them) take room like prompt tokens, and are taken to be ones that
        no prompt contains. With ``counted=False`` (a warm-up) queries and hits stay as they are. Raises
        :class:`ValueError` where the request does not fit into the whole cache: vLLM would never run it.
        """
        hits = self._run_unbounded(rank, prompt) if not self._caches else self._run_bounded(rank, prompt, output_tokens)
        if counted:
            self.queries[rank] += len(prompt)
            self.hits[rank] += hits
        return hits

    def _run_unbounded(self, rank: int, prompt: Prompt) -> int:
        seen = self._seen[rank]
        hashes = block_hashes(prompt, self.block_size)
        reusable = max(len(prompt) - 1, 0) // self.block_size
        hit_blocks = reusable
        # Nothing is ever forgotten, so a known block has known parents: all that is missing lies at the end.
        while hit_blocks and hashes[hit_blocks - 1] not in seen:
            hit_blocks -= 1
        seen.update(hashes[hit_blocks:])
        return hit_blocks * self.block_size

    def _run_bounded(self, rank: int, prompt: Prompt, output_tokens: int) -> int:
        cache = self._caches[rank]
        sequence = cache.sequence(np.asarray(prompt).tolist())
        hit_blocks = cache.lookup(sequence)
        fits = cache.allocate(sequence, sequence.num_tokens - len(hit_blocks) * self.block_size, hit_blocks)
        if fits and output_tokens > 1:
            sequence.num_computed_tokens = sequence.num_tokens
            # The last token that is generated is never computed, so it needs no slot.
            for _ in range(output_tokens - 1):
                cache.append(sequence, MAX_TOKEN_ID - self._generated % 2**31)
                self._generated += 1
            fits = cache.allocate(sequence, output_tokens - 1)
        cache.free(sequence)
        if not fits:
            raise ValueError(
                f"a request of {len(prompt)} prompt and {output_tokens} output tokens does not fit into "
                f"{self.num_blocks} blocks of {self.block_size} tokens"
            )
        return len(hit_blocks) * self.block_size


def replay_prompts(
    prompts: Iterable[Prompt],
    ranks: Iterable[int] | None = None,
    *,
    block_size: int,
    num_ranks: int = 1,
    num_blocks: int | None = None,
    warmup: Iterable[tuple[int, Prompt]] = (),
    output_tokens: Iterable[int] | None = None,
) -> list[int]:
    """Hit tokens of each prompt, in order, on caches that start empty.

    ``ranks`` names each prompt's rank (0 … ``num_ranks - 1``; all on rank 0 where it is left out), ``warmup`` what is
    sent before, to which rank, and is not part of the answer. All iterables are consumed as a stream;
    :class:`ValueError` where their lengths differ.
    """
    replay = SequentialReplay(block_size=block_size, num_blocks=num_blocks, ranks=num_ranks)
    for rank, prompt in warmup:
        replay.run(rank, prompt, counted=False)
    routed = zip(prompts, repeat(0)) if ranks is None else zip(prompts, ranks, strict=True)
    requests = zip(routed, repeat(1)) if output_tokens is None else zip(routed, output_tokens, strict=True)
    return [replay.run(rank, prompt, output_tokens=generated) for (prompt, rank), generated in requests]
