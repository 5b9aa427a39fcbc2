"""Replay prompts through unbounded caches of some data-parallel ranks, one request at a time on each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from ais_bench_prefix_cache.kvcache.block_hash import BlockHash, block_hashes

Prompt = Union[Sequence[int], "npt.NDArray[np.integer[Any]]"]


class SequentialReplay:
    """The caches of ``ranks`` ranks that never evict: only the hashes are kept, 16 bytes of content a block.

    Each rank finishes one request before it starts the next.
    """

    def __init__(self, *, block_size: int, ranks: int = 1) -> None:
        if block_size < 1 or ranks < 1:
            raise ValueError("block_size and ranks must be at least 1")
        self.block_size = block_size
        self.queries = [0] * ranks
        """Prompt tokens counted so far, by rank."""
        self.hits = [0] * ranks
        """Hit tokens counted so far, by rank."""
        self._seen: list[set[BlockHash]] = [set() for _ in range(ranks)]

    def run(self, rank: int, prompt: Prompt, *, output: Sequence[int] = (), counted: bool = True) -> int:
        """Send one request to ``rank`` and let it finish; returns how many of its tokens hit.

        The tokens of its ``output`` are cached, too, but for the last one: nothing is computed after it. With
        ``counted=False`` (a warm-up) queries and hits stay as they are.
        """
        seen = self._seen[rank]
        hashes = block_hashes([*prompt, *output[:-1]] if len(output) > 1 else prompt, self.block_size)
        hit_blocks = max(len(prompt) - 1, 0) // self.block_size
        # Nothing is ever forgotten, so a known block has known parents: all that is missing lies at the end.
        while hit_blocks and hashes[hit_blocks - 1] not in seen:
            hit_blocks -= 1
        seen.update(hashes[hit_blocks:])
        hits = hit_blocks * self.block_size
        if counted:
            self.queries[rank] += len(prompt)
            self.hits[rank] += hits
        return hits
