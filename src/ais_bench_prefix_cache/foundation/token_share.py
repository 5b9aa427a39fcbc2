"""How many of some tokens are shared: the count behind every hit rate."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenShare:
    """``shared`` of ``total`` tokens; counts of tokens to the very end."""

    total: int = 0
    shared: int = 0

    def __add__(self, other: TokenShare) -> TokenShare:
        return TokenShare(self.total + other.total, self.shared + other.shared)

    @property
    def rate(self) -> float:
        """The division that is made last; 0.0 where there is nothing to divide."""
        return self.shared / self.total if self.total else 0.0

    def section(self) -> dict[str, int | float]:
        """Of tokens of prompts that hit, as the theory of an analysis has it."""
        return {"input_tokens": self.total, "hit_tokens": self.shared, "hit_rate": self.rate}
