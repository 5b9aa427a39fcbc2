"""The block table of one request: which physical block holds which of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ais_bench_prefix_cache.calculators.number_checks import require_at_least_one, require_not_negative
from ais_bench_prefix_cache.calculators.sizing import blocks_for
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import CalculationError


@dataclass(frozen=True)
class PageTableEntry:
    """One logical block of a request: where its tokens lie."""

    logical: int
    physical: int
    token_start: int
    used: int


@dataclass(frozen=True)
class PageTable:
    """The block table of one request."""

    block_size: int
    entries: tuple[PageTableEntry, ...]

    @property
    def allocated_tokens(self) -> int:
        return len(self.entries) * self.block_size

    @property
    def tail_waste_tokens(self) -> int:
        return self.allocated_tokens - sum(entry.used for entry in self.entries)

    def locate(self, token: int) -> tuple[int, int]:
        """The physical block of a token position and its offset in it.

        Raises:
            CalculationError: the request has no such token.
        """
        logical, offset = divmod(token, self.block_size)
        if token < 0 or logical >= len(self.entries) or offset >= self.entries[logical].used:
            raise CalculationError.of(Code.NO_SUCH_TOKEN, "token", f"the request has no token {token}")
        return self.entries[logical].physical, offset


def page_table(length: int, block_size: int, free_blocks: Sequence[int]) -> PageTable:
    """Map a request of ``length`` tokens onto the first of ``free_blocks``.

    Raises:
        CalculationError: there are not enough free blocks, or they are no blocks.
    """
    require_not_negative(length=length)
    require_at_least_one(block_size=block_size)
    require_not_negative(free_blocks=min(free_blocks, default=0))
    if len(set(free_blocks)) < len(free_blocks):
        raise CalculationError.of(
            Code.IMPOSSIBLE_VALUE, "free_blocks", "names a block twice", allowed="each block once"
        )
    needed = blocks_for(length, block_size)
    if needed > len(free_blocks):
        raise CalculationError.of(
            Code.NO_FREE_BLOCK,
            "free_blocks",
            f"{length} tokens need {needed} blocks of {block_size}, but only {len(free_blocks)} are free",
        )
    return PageTable(
        block_size,
        tuple(
            PageTableEntry(index, free_blocks[index], index * block_size, min(block_size, length - index * block_size))
            for index in range(needed)
        ),
    )
