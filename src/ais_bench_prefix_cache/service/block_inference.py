"""What a server's hits on repeated prompts say about its blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_CANDIDATES = tuple(1 << power for power in range(16))


@dataclass(frozen=True)
class BlockRule:
    """A repeated prompt of n tokens hits ``max(0, floor((n - 1) / block_size) - dropped_blocks) * block_size``.

    ``dropped_blocks`` is 1 on servers with EAGLE or MTP speculative decoding, else 0.
    """

    block_size: int
    dropped_blocks: int

    def repeat_hits(self, prompt_tokens: int) -> int:
        """What a prompt hits when it is sent again to a cache that still holds all of it."""
        return max(0, (prompt_tokens - 1) // self.block_size - self.dropped_blocks) * self.block_size


def rules_that_explain(observations: Sequence[tuple[int, int]], block_size: int) -> list[BlockRule]:
    """All rules under which every (prompt tokens, hits of its repetition) comes out as observed.

    Tried are the powers of two up to 32768 and the multiples of ``block_size`` up to 64-fold. A cache that never
    hit is explained by no rule.
    """
    if not any(hits for _, hits in observations):
        return []
    sizes = sorted({*_CANDIDATES, *(block_size * factor for factor in range(1, 65))})
    return [
        rule
        for size in sizes
        for rule in (BlockRule(size, 0), BlockRule(size, 1))
        if all(rule.repeat_hits(tokens) == hits for tokens, hits in observations)
    ]
