"""Preflight, probes, reset and warm-up over real HTTP against the embedded server, healthy and misbehaving."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.fake_service import service_config

from ais_bench_prefix_cache.counters.reader import CacheConfig
from ais_bench_prefix_cache.foundation.errors import ServiceError
from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.running import running_server
from ais_bench_prefix_cache.service.block_inference import BlockRule
from ais_bench_prefix_cache.service.client import ServiceClient
from ais_bench_prefix_cache.service.preflight import SamplePrompt, Workload, check_engines, check_inference
from ais_bench_prefix_cache.service.probing import ProbedRanks, probe_ranks
from ais_bench_prefix_cache.service.readings import EngineId, cache_configs, read_metrics, reading_parser
from ais_bench_prefix_cache.service.resetting import ResetOutcome, empty_the_caches
from ais_bench_prefix_cache.service.scraping import CounterReader
from ais_bench_prefix_cache.service.warming import WarmedEntry, WarmupEntry, warm_and_prove

BLOCK_SIZE = 16
SENTENCE = "Natalia sold clips to {} of her friends in April, and then she sold half as many clips in May. "


@dataclass
class Connected:
    client: ServiceClient
    reader: CounterReader

    def probe(self, block_size: int = BLOCK_SIZE) -> ProbedRanks:
        return probe_ranks(self.client, self.reader, block_size=block_size)

    def reset(self, probed: ProbedRanks) -> ResetOutcome:
        return empty_the_caches(self.client, self.reader, probed.probes)

    def warm(self, probed: ProbedRanks, plan: list[WarmupEntry]) -> list[WarmedEntry]:
        return warm_and_prove(self.client, self.reader, plan, probed.rank_of_engine, probed.rule)


@pytest.fixture
def connect(deepseek_tokenizer_dir: Path) -> Callable[..., Any]:
    @contextmanager
    def connected(dp_size: int = 2, service: dict[str, Any] | None = None, **options: Any) -> Iterator[Connected]:
        configuration = ServerConfiguration(
            tokenizer=deepseek_tokenizer_dir,
            model="tiny",
            data_parallel_size=dp_size,
            prefill_tokens_per_second=None,
            decode_tokens_per_second=None,
            **options,
        )
        with running_server(configuration) as url:
            changes = {
                "inference_urls": (f"{url}/v1/completions",),
                "metrics_urls": (f"{url}/metrics",),
                "reset_urls": (f"{url}/reset_prefix_cache",),
                "dp_size": dp_size,
                "timeout_seconds": 5.0,
            }
            config = service_config(**{**changes, **(service or {})})
            with ServiceClient(config) as client:
                yield Connected(client, CounterReader(client, reading_parser(config, BLOCK_SIZE)))

    return connected


@pytest.fixture(scope="module")
def encode(deepseek_tokenizer_dir: Path) -> Callable[[str], list[int]]:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(deepseek_tokenizer_dir)).encode  # type: ignore[no-any-return]


def plan_of(encode: Callable[[str], list[int]], groups: int, dp_size: int = 2) -> list[WarmupEntry]:
    plan = []
    for group in range(groups):
        prompt = f"Group number {group}. " + "".join(SENTENCE.format(number) for number in range(12))
        tokens = len(encode(prompt))
        for rank in range(dp_size):
            shared = tokens // BLOCK_SIZE * BLOCK_SIZE
            plan.append(WarmupEntry(f"warmup:group-{group}:{rank}", f"group-{group}", rank, prompt, tokens, shared, 1))
    return plan


def failures(action: Callable[[], object]) -> list[str]:
    with pytest.raises(ServiceError) as caught:
        action()
    return [problem.code for problem in caught.value.problems]


def test_healthy_server_from_probe_to_proven_warm_up(
    connect: Callable[..., Any], encode: Callable[[str], list[int]]
) -> None:
    plan = plan_of(encode, groups=5)
    with connect() as service:
        probed = service.probe()
        assert probed.engine_labels == {"0": 0, "1": 1}
        assert probed.rule == BlockRule(BLOCK_SIZE, 0)
        outcome = service.reset(probed)
        assert (outcome.proven, outcome.warning) == (True, None)
        warmed = service.warm(probed, plan)
        expected = [(entry.input_tokens - 1) // BLOCK_SIZE * BLOCK_SIZE for entry in plan]
        assert [each.cached_tokens for each in warmed] == expected


def test_warm_up_without_per_request_details(connect: Callable[..., Any], encode: Callable[[str], list[int]]) -> None:
    with connect(enable_prompt_tokens_details=False) as service:
        warmed = service.warm(service.probe(), plan_of(encode, groups=2))
        assert {each.cached_tokens for each in warmed} == {None}


def test_header_ignored(connect: Callable[..., Any]) -> None:
    with connect(ignore_rank_header=True) as service:
        assert failures(service.probe) in (["RANK_HEADER_IGNORED"], ["RANK_NOT_REACHED"])


def test_reset_that_does_nothing(connect: Callable[..., Any]) -> None:
    with connect(reset_mode="noop") as service:
        probed = service.probe()
        assert failures(lambda: service.reset(probed)) == ["RESET_INEFFECTIVE", "RESET_INEFFECTIVE"]


def test_reset_that_is_refused_for_ever(connect: Callable[..., Any]) -> None:
    with connect(reset_mode="refuse", service={"timeout_seconds": 1.0}) as service:
        probed = service.probe()
        assert failures(lambda: service.reset(probed)) == ["RESET_REFUSED"]


def test_reset_that_is_not_offered(connect: Callable[..., Any]) -> None:
    with connect(reset_mode="missing") as service:
        probed = service.probe()
        assert failures(lambda: service.reset(probed)) == ["RESET_NOT_OFFERED"]


def test_another_block_size_shows_in_the_hits(connect: Callable[..., Any]) -> None:
    with connect(block_size=32) as service:
        with pytest.raises(ServiceError) as caught:
            service.probe()
        assert caught.value.problems[0].hint == "Set tokenizer.block_size to 32 and prepare again."


def test_a_cache_that_cannot_hold_the_groups(connect: Callable[..., Any], encode: Callable[[str], list[int]]) -> None:
    with connect(num_blocks=70, max_model_len=1024) as service:
        assert failures(lambda: service.warm(service.probe(), plan_of(encode, groups=5))) == ["NOT_WARM", "NOT_WARM"]


def workload(encode: Callable[[str], list[int]], **changes: Any) -> Workload:
    prompt = SENTENCE.format(7)
    values: dict[str, Any] = {
        "mode": "warmup",
        "block_size": BLOCK_SIZE,
        "longest_request_tokens": 600,
        "canonical_prefix_tokens": {"group-0": 320},
        "samples": (SamplePrompt("group-0", prompt, len(encode(prompt))),),
    }
    return Workload(**{**values, **changes})


def told(client: ServiceClient) -> dict[EngineId, CacheConfig]:
    return cache_configs(read_metrics(client.config, client.scrape()))


def preflight(service: Connected, asked: Workload, encode: Callable[[str], list[int]]) -> list[str]:
    codes = []
    for check in (
        lambda: check_inference(service.client, asked, encode),
        lambda: check_engines(service.client, asked, told(service.client)),
    ):
        try:
            check()
        except ServiceError as error:
            codes += [problem.code.name for problem in error.problems]
    return codes


@pytest.mark.parametrize(
    ("options", "changes", "service", "expected"),
    [
        ({}, {}, {}, []),
        ({}, {}, {"model": "other"}, ["MODEL_NOT_SERVED"]),
        ({"max_model_len": 512}, {}, {}, ["MODEL_LENGTH"]),
        ({"block_size": 32}, {}, {}, []),
        ({"enable_prefix_caching": False}, {}, {}, ["PREFIX_CACHING_OFF", "PREFIX_CACHING_OFF"]),
        ({"disable_log_stats": True}, {}, {}, ["SNAPSHOT_NO_ENGINE_METRICS"]),
        ({"num_blocks": 40, "max_model_len": 620}, {}, {}, ["CACHE_TOO_SMALL", "CACHE_TOO_SMALL"]),
        ({"num_blocks": 40, "max_model_len": 620}, {"mode": "cold"}, {}, []),
    ],
)
def test_preflight(
    connect: Callable[..., Any],
    encode: Callable[[str], list[int]],
    options: dict[str, Any],
    changes: dict[str, Any],
    service: dict[str, Any],
    expected: list[str],
) -> None:
    with connect(service=service, **options) as connected:
        assert preflight(connected, workload(encode, **changes), encode) == expected


def test_preflight_finds_more_engines_than_ranks(
    connect: Callable[..., Any], encode: Callable[[str], list[int]]
) -> None:
    with connect(dp_size=2, service={"dp_size": 1}) as service:
        assert preflight(service, workload(encode), encode) == ["ENGINE_COUNT"]


def test_preflight_finds_another_tokenizer(connect: Callable[..., Any], encode: Callable[[str], list[int]]) -> None:
    def with_bos(text: str) -> list[int]:
        return [0, *encode(text)]

    def other(text: str) -> list[int]:
        ids = encode(text)
        ids[5] += 1
        return ids

    with connect() as service:
        assert preflight(service, workload(encode), with_bos) == ["TOKENIZER_BOS"]
        assert preflight(service, workload(encode), other) == ["TOKENIZER_DIFFERS"]
