"""Readings per engine from recorded metric texts; the expected numbers are read off the texts by eye."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.doubles.fake_service import service_config

from ais_bench_prefix_cache.counters.reader import EngineCounters
from ais_bench_prefix_cache.foundation.errors import ServiceError
from ais_bench_prefix_cache.service.readings import (
    EngineId,
    Reading,
    cache_configs,
    movement,
    read_metrics,
    reading_parser,
    total_queries,
)


@pytest.fixture
def text(project_root: Path) -> dict[str, str]:
    folder = project_root / "tests" / "data" / "prom"
    return {path.name[:2]: path.read_text(encoding="utf-8") for path in sorted(folder.glob("[0-9]*.prom"))}


def read(*texts: str, **changes: object) -> Reading:
    urls = tuple(f"http://service.test:{8000 + number}/metrics" for number in range(len(texts)))
    return reading_parser(service_config(metrics_urls=urls, **changes), 16)(texts)


def counted(reading: Reading) -> dict[EngineId, tuple[int, int]]:
    return {engine: (counters.queries, counters.hits) for engine, counters in reading.counters.items()}


def test_two_engines_of_one_port(text: dict[str, str]) -> None:
    reading = read(text["05"])
    assert reading.texts == (text["05"],)
    assert counted(reading) == {EngineId(0, "0"): (4160, 448), EngineId(0, "1"): (4423, 672)}
    told = cache_configs(read_metrics(service_config(), [text["05"]]))
    assert set(told) == {EngineId(0, "0"), EngineId(0, "1")}
    assert {(c.block_size, c.prefix_caching, c.kv_cache_size_tokens) for c in told.values()} == {(32, True, 524288)}


def test_one_port_for_each_rank(text: dict[str, str]) -> None:
    assert set(read(text["09"], text["10"]).counters) == {EngineId(0, "0"), EngineId(1, "1")}


def test_servers_that_count_blocks(text: dict[str, str]) -> None:
    with_prompt_tokens = text["26"] + 'vllm:prompt_tokens_total{model_name="m"} 16321.0\n'
    assert counted(read(with_prompt_tokens, dp_size=1)) == {EngineId(0, ""): (16321, 600 * 16)}
    assert counted(read(text["26"], dp_size=1)) == {EngineId(0, ""): (1000, 600)}


def test_no_log_stats_is_the_service_s_fault(text: dict[str, str]) -> None:
    with pytest.raises(ServiceError) as caught:
        read(text["06"])
    assert [problem.code for problem in caught.value.problems] == ["SNAPSHOT_NO_ENGINE_METRICS"]
    assert caught.value.problems[0].where == "http://service.test:8000/metrics"


def test_what_moved_is_the_difference_of_each_engine_and_an_unknown_one_began_at_0() -> None:
    one, two, three = EngineId(0, "0"), EngineId(0, "1"), EngineId(0, "2")
    before = Reading((), {one: EngineCounters(100, 10), two: EngineCounters(7, 0)})
    after = Reading((), {one: EngineCounters(164, 58), two: EngineCounters(7, 0), three: EngineCounters(5, 1)})
    moved = movement(before, after)
    assert moved == {one: EngineCounters(64, 48), three: EngineCounters(5, 1)}
    assert total_queries(moved) == 69
