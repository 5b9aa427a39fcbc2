"""From metrics texts to readings per engine, through the same parser that analyses a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ais_bench_prefix_cache.counters.snapshot import EngineCounters, read_engines
from ais_bench_prefix_cache.foundation.errors import ServiceError, SnapshotError
from ais_bench_prefix_cache.scenario.model import ServiceConfig
from ais_bench_prefix_cache.service.counters import Counter, EngineId, Reading
from ais_bench_prefix_cache.service.preflight import EngineFacts


def engine_id(counters: EngineCounters) -> EngineId:
    """How this room names an engine."""
    return EngineId(counters.source, counters.engine or "")


def reading_parser(config: ServiceConfig, block_size: int) -> Callable[[Sequence[str]], Reading]:
    """The parser for a :class:`~ais_bench_prefix_cache.service.scraping.CounterReader` of this service.

    vLLM 0.7.3 to 0.8.5 counts blocks: there hits are blocks of ``block_size`` tokens, and queries are taken from the
    counter of prompt tokens, which knows each prompt's incomplete last block, too.
    """

    def parse(texts: Sequence[str]) -> Reading:
        engines = engines_of(config, texts)
        return Reading(tuple(texts), {engine_id(each): _in_tokens(each, block_size) for each in engines})

    return parse


def _in_tokens(counters: EngineCounters, block_size: int) -> Counter:
    if counters.unit == "blocks" and counters.prompt_tokens is not None:
        return Counter(counters.prompt_tokens, counters.hits * block_size)
    return Counter(counters.queries, counters.hits)


def engines_of(config: ServiceConfig, texts: Sequence[str]) -> list[EngineCounters]:
    """All engines in the texts of ``config.metrics_urls``; what is wrong with a text is the service's fault here."""
    try:
        return read_engines(texts, model=config.model, engine=config.engine, where=config.metrics_urls)
    except SnapshotError as error:
        raise ServiceError(error.problems) from error


def engine_facts(config: ServiceConfig, texts: Sequence[str]) -> Mapping[EngineId, EngineFacts]:
    """What each engine tells about its cache."""
    facts = {}
    for each in engines_of(config, texts):
        told = each.config
        facts[engine_id(each)] = (
            EngineFacts()
            if told is None
            else EngineFacts(told.block_size, told.prefix_caching, told.kv_cache_size_tokens)
        )
    return facts
