"""Counter readings per engine, and what moved between two of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class EngineId:
    """One engine as ``/metrics`` names it: the position of its metrics URL in the Scenario, and its label there.

    Servers without an ``engine`` label have the empty label.
    """

    position: int
    label: str

    def __str__(self) -> str:
        name = f"engine {self.label!r}" if self.label else "the engine without a label"
        return f"{name} of metrics URL {self.position + 1}" if self.position else name


@dataclass(frozen=True)
class Counter:
    """Cumulative prefix-cache counters of one engine, in the server's unit (tokens, or blocks in old versions)."""

    queries: int
    hits: int


@dataclass(frozen=True)
class Reading:
    """One scrape of all metrics URLs: the texts as they came and the counters found in them."""

    texts: tuple[str, ...]
    counters: Mapping[EngineId, Counter]


def movement(before: Reading, after: Reading) -> dict[EngineId, Counter]:
    """What each engine's counters rose by; engines that stood still are left out.

    An engine that ``before`` does not show counts from 0: some servers publish a series only with its first sample.
    """
    moved = {}
    for engine, now in after.counters.items():
        start = before.counters.get(engine, Counter(0, 0))
        rise = Counter(now.queries - start.queries, now.hits - start.hits)
        if rise != Counter(0, 0):
            moved[engine] = rise
    return moved


def total_queries(moved: Mapping[EngineId, Counter]) -> int:
    """Queries over all engines."""
    return sum(rise.queries for rise in moved.values())
