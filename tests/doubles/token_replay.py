"""A slow replay of token ids through :class:`PrefixCache`, which vLLM's own cache manager is held against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from ais_bench_prefix_cache.kvcache.block_hash import MAX_TOKEN_ID
from ais_bench_prefix_cache.kvcache.prefix_cache import PrefixCache

Prompt = Union[Sequence[int], "npt.NDArray[np.integer[Any]]"]


class BoundedReplay:
    """``ranks`` caches of ``num_blocks`` usable blocks, each of which finishes one request before the next.

    The generated tokens take room like prompt tokens, and are taken to be ones that no prompt contains.
    """

    def __init__(self, block_size: int, num_blocks: int, ranks: int = 1) -> None:
        self.caches = [PrefixCache(block_size, num_blocks) for _ in range(ranks)]
        self._generated = 0

    @property
    def evictions(self) -> list[int]:
        return [cache.pool.evictions for cache in self.caches]

    def run(self, rank: int, prompt: Prompt, output_tokens: int = 1) -> int:
        """How many tokens of the prompt hit."""
        cache = self.caches[rank]
        sequence = cache.sequence(np.asarray(prompt).tolist())
        hits = cache.lookup(sequence)
        fits = cache.allocate(sequence, sequence.num_tokens - len(hits) * cache.block_size, hits)
        # The last token that is generated is never computed, so it needs no slot.
        if fits and output_tokens > 1:
            sequence.num_computed_tokens = sequence.num_tokens
            for _ in range(output_tokens - 1):
                cache.append(sequence, MAX_TOKEN_ID - self._generated)
                self._generated += 1
            fits = cache.allocate(sequence, output_tokens - 1)
        assert fits, "a test's request does not fit into its cache"
        cache.free(sequence)
        return len(hits) * cache.block_size


def replay_prompts(
    prompts: Iterable[Prompt],
    ranks: Iterable[int] = repeat(0),
    *,
    block_size: int,
    num_blocks: int,
    num_ranks: int = 1,
    warmup: Iterable[tuple[int, Prompt]] = (),
    output_tokens: Iterable[int] = repeat(1),
) -> list[int]:
    """Hit tokens of each prompt, in order, on caches that start empty; the warm-up is sent before and not reported."""
    replay = BoundedReplay(block_size, num_blocks, num_ranks)
    for rank, prompt in warmup:
        replay.run(rank, prompt)
    return [
        replay.run(rank, prompt, generated)
        for prompt, rank, generated in zip(prompts, ranks, output_tokens, strict=False)
    ]
