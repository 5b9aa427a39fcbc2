"""Readings per engine from recorded metric texts; the expected numbers are read off the texts by eye."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.doubles.fake_service import service_config

from ais_bench_prefix_cache.foundation.errors import ServiceError
from ais_bench_prefix_cache.service.counters import Counter, EngineId, Reading
from ais_bench_prefix_cache.service.engine_readings import engine_facts, reading_parser
from ais_bench_prefix_cache.service.preflight import EngineFacts


@pytest.fixture
def text(project_root: Path) -> dict[str, str]:
    folder = project_root / "tests" / "data" / "prom"
    return {path.name[:2]: path.read_text(encoding="utf-8") for path in sorted(folder.glob("[0-9]*.prom"))}


def read(*texts: str, **changes: object) -> Reading:
    urls = tuple(f"http://service.test:{8000 + number}/metrics" for number in range(len(texts)))
    return reading_parser(service_config(metrics_urls=urls, **changes), 16)(texts)


def test_two_engines_of_one_port(text: dict[str, str]) -> None:
    reading = read(text["05"])
    assert reading.texts == (text["05"],)
    assert reading.counters == {EngineId(0, "0"): Counter(4160, 448), EngineId(0, "1"): Counter(4423, 672)}
    facts = EngineFacts(block_size=32, prefix_caching=True, capacity_tokens=524288)
    assert engine_facts(service_config(), [text["05"]]) == {EngineId(0, "0"): facts, EngineId(0, "1"): facts}


def test_one_port_for_each_rank(text: dict[str, str]) -> None:
    assert set(read(text["09"], text["10"]).counters) == {EngineId(0, "0"), EngineId(1, "1")}


def test_servers_that_count_blocks(text: dict[str, str]) -> None:
    with_prompt_tokens = text["26"] + 'vllm:prompt_tokens_total{model_name="m"} 16321.0\n'
    assert read(with_prompt_tokens, dp_size=1).counters == {EngineId(0, ""): Counter(16321, 600 * 16)}
    assert read(text["26"], dp_size=1).counters == {EngineId(0, ""): Counter(1000, 600)}


def test_no_log_stats_is_the_service_s_fault(text: dict[str, str]) -> None:
    with pytest.raises(ServiceError) as caught:
        read(text["06"])
    assert [problem.code for problem in caught.value.problems] == ["SNAPSHOT_NO_ENGINE_METRICS"]
    assert caught.value.problems[0].where == "http://service.test:8000/metrics"
