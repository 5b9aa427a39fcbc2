"""Refuses numbers that no model, cache or batch can have; names of arguments are names in the message."""

from __future__ import annotations

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import CalculationError


def require_at_least_one(**numbers: int) -> None:
    """Raises :class:`CalculationError` naming the first number below 1."""
    _require(1, numbers)


def require_not_negative(**numbers: int) -> None:
    """Raises :class:`CalculationError` naming the first number below 0."""
    _require(0, numbers)


def _require(smallest: int, numbers: dict[str, int]) -> None:
    for name, number in numbers.items():
        if number < smallest:
            raise CalculationError.of(Code.IMPOSSIBLE_VALUE, name, f"is {number}", allowed=f"{smallest} or more")
