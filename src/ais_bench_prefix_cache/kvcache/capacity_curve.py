"""Hit rate against the number of blocks of a rank, for all numbers from one replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class CapacityCurve:
    """``hit_blocks[n]``: block references of all ranks that hit when each rank has ``n`` usable blocks.

    ``smallest_num_blocks`` is what the largest request needs; below it the curve says nothing. From
    ``largest_num_blocks`` on nothing is gained.
    """

    hit_blocks: npt.NDArray[np.int64]
    smallest_num_blocks: int
    block_size: int
    queries: int

    @property
    def largest_num_blocks(self) -> int:
        return max(self.smallest_num_blocks, len(self.hit_blocks) - 1)

    def hit_tokens(self, num_blocks: int) -> int:
        """Tokens that hit with ``num_blocks`` blocks a rank."""
        return int(self.hit_blocks[min(num_blocks, len(self.hit_blocks) - 1)]) * self.block_size

    def hit_rate(self, num_blocks: int) -> float:
        return self.hit_tokens(num_blocks) / self.queries if self.queries else 0.0

    def blocks_for(self, hit_tokens: int) -> int:
        """The smallest number of blocks with at least so many hits; the largest useful one where none has."""
        found = int(np.searchsorted(self.hit_blocks, -(-hit_tokens // self.block_size)))
        return min(max(found, self.smallest_num_blocks), self.largest_num_blocks)

    def sizes(self, count: int) -> list[int]:
        """Up to ``count`` numbers of blocks from the smallest to the largest, each about the same factor apart."""
        low, high = self.smallest_num_blocks, self.largest_num_blocks
        return sorted({*np.geomspace(low, high, count).round().astype(int).tolist(), low, high})


def capacity_curve(
    hits_by_rank: Sequence[npt.NDArray[np.int64]], *, smallest_num_blocks: int, block_size: int, queries: int
) -> CapacityCurve:
    """Add up what :meth:`StackDistances.hits` says of each rank."""
    length = max(len(hits) for hits in hits_by_rank)
    total = np.zeros(length, dtype=np.int64)
    for hits in hits_by_rank:
        total += np.pad(hits, (0, length - len(hits)), mode="edge")
    return CapacityCurve(total, smallest_num_blocks, block_size, queries)
