"""The counters of each engine at one moment, and what moved since: from the same reader that analyses a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ais_bench_prefix_cache.counters.names import ServerFamily
from ais_bench_prefix_cache.counters.ranks import read_texts
from ais_bench_prefix_cache.counters.reader import CacheConfig, EngineCounters, ReadText, in_tokens
from ais_bench_prefix_cache.foundation.errors import ServiceError, SnapshotError
from ais_bench_prefix_cache.scenario.model import ServiceConfig


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
class Reading:
    """One scrape of all metrics URLs: the texts as they came and the counters found in them, in tokens.

    ``families`` are the kinds of servers that the texts are of; ``server_hits`` is SGLang's count of hits for all ranks
    together beside theirs, which comes at another moment.
    """

    texts: tuple[str, ...]
    counters: Mapping[EngineId, EngineCounters]
    families: frozenset[ServerFamily] = frozenset()
    server_hits: tuple[int | None, ...] = ()


def movement(before: Reading, after: Reading) -> dict[EngineId, EngineCounters]:
    """What each engine's counters rose by; engines whose queries and hits stood still are left out.

    An engine that ``before`` does not show counts from 0: some servers publish a series only with its first sample.
    """
    rises = {engine: now - before.counters.get(engine, EngineCounters()) for engine, now in after.counters.items()}
    return {engine: rise for engine, rise in rises.items() if rise.queries or rise.hits}


def total_queries(moved: Mapping[EngineId, EngineCounters]) -> int:
    """Queries over all engines."""
    return sum(rise.queries for rise in moved.values())


def reading_parser(config: ServiceConfig, block_size: int) -> Callable[[Sequence[str]], Reading]:
    """The parser for a :class:`~ais_bench_prefix_cache.service.scraping.CounterReader` of this service.

    ``block_size`` is for servers that count blocks.
    """

    def parse(texts: Sequence[str]) -> Reading:
        read = read_metrics(config, texts)
        counters = {
            EngineId(engine.source, engine.label or ""): in_tokens(engine, text.unit, block_size).counters
            for text in read
            for engine in text.engines
        }
        return Reading(
            tuple(texts),
            counters,
            frozenset(text.family for text in read),
            tuple(text.server_hits for text in read),
        )

    return parse


def read_metrics(config: ServiceConfig, texts: Sequence[str]) -> list[ReadText]:
    """The texts of ``config.metrics_urls``.

    Raises:
        ServiceError: what is wrong with a text is the service's fault here.
    """
    try:
        return read_texts(
            texts, dp_size=config.dp_size, model=config.model, engine=config.engine, where=config.metrics_urls
        )
    except SnapshotError as error:
        raise ServiceError(error.problems) from error


def cache_configs(read: Sequence[ReadText]) -> dict[EngineId, CacheConfig]:
    """What each engine tells about its cache."""
    return {
        EngineId(engine.source, engine.label or ""): engine.config or CacheConfig()
        for text in read
        for engine in text.engines
    }
