"""Probes against a service that is healthy, or wrong in one way."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.doubles.fake_service import URL, Clock, FakeService, connect, failures, service_config

from ais_bench_prefix_cache.counters.reader import EngineCounters
from ais_bench_prefix_cache.foundation.errors import ServiceError
from ais_bench_prefix_cache.foundation.names import NO_RANK, RANK_HEADER
from ais_bench_prefix_cache.service.block_inference import BlockRule
from ais_bench_prefix_cache.service.client import ServiceClient
from ais_bench_prefix_cache.service.probing import ProbedRanks, probe_ranks, probe_text
from ais_bench_prefix_cache.service.readings import EngineId, Reading
from ais_bench_prefix_cache.service.scraping import CounterReader


def probe(service: FakeService, block_size: int = 16, **changes: Any) -> ProbedRanks:
    client, reader, _ = connect(service, **changes)
    return probe_ranks(client, reader, block_size=block_size)


@pytest.mark.parametrize("dp_size", [1, 2, 4])
def test_each_rank_is_seen_to_move_its_engine(dp_size: int) -> None:
    probed = probe(FakeService(dp_size=dp_size))
    assert probed.rank_of_engine == {EngineId(0, str(rank)): rank for rank in range(dp_size)}
    assert probed.rule == BlockRule(16, 0)
    assert probed.notes == ()


def test_the_map_is_learned_where_labels_say_nothing() -> None:
    assert probe(FakeService(labels=("blue", "green"))).engine_labels == {"blue": 0, "green": 1}


def test_a_label_that_misleads_is_noted() -> None:
    probed = probe(FakeService(labels=("1", "0")))
    assert probed.engine_labels == {"1": 0, "0": 1}
    assert probed.notes == (
        "engine '1' is rank 0: learned from the probe, not from the label",
        "engine '0' is rank 1: learned from the probe, not from the label",
    )


def test_a_wrong_engine_label_map_is_an_error() -> None:
    assert failures(lambda: probe(FakeService(), engine_label_map={"0": 1, "1": 0})) == [
        "[ENGINE_LABEL_MAP] service.engine_label_map['0']: says rank 1, but a probe to rank 0 moved that engine"
    ]


def test_a_server_that_ignores_the_header() -> None:
    assert failures(lambda: probe(FakeService(honour_header=False))) == [
        f"[RANK_HEADER_IGNORED] {URL}/v1/completions: two probes to rank 0 were counted by different engines: "
        "engine '0', then engine '1'"
    ]


def test_fewer_engines_than_ranks() -> None:
    service = FakeService(dp_size=1, honour_header=False)
    assert failures(lambda: probe(service, dp_size=2)) == [
        f"[RANK_NOT_REACHED] {URL}/metrics: probes to rank 0 and to rank 1 both moved engine '0'"
    ]


def test_counters_that_do_not_move() -> None:
    (said,) = failures(lambda: probe(FakeService(counters_frozen=True)))
    assert said.startswith(f"[COUNTERS_DO_NOT_MOVE] {URL}/metrics: a probe of 47 tokens to rank 0 was answered, but no")


def test_foreign_traffic_is_noticed() -> None:
    assert failures(lambda: probe(FakeService(foreign_queries=7))) == [
        f"[FOREIGN_TRAFFIC] {URL}/metrics: a probe of 47 tokens to rank 0 moved engine '0' by 47, engine '1' by 7"
    ]


def test_a_cache_that_is_off() -> None:
    (said,) = failures(lambda: probe(FakeService(caching=False)))
    assert said.startswith(f"[CACHE_INEFFECTIVE] {URL}/metrics: a prompt of ")
    assert "hit 0 tokens the second time" in said


@pytest.mark.parametrize(("real", "assumed"), [(32, 16), (128, 16), (8, 16), (16, 32), (48, 16)])
def test_another_block_size_is_named(real: int, assumed: int) -> None:
    with pytest.raises(ServiceError) as caught:
        probe(FakeService(block_size=real), block_size=assumed)
    (problem,) = caught.value.problems
    assert problem.code == "WRONG_BLOCK_SIZE"
    assert problem.hint == f"Set tokenizer.block_size to {real} and prepare again."


def test_speculative_decoding_drops_a_block() -> None:
    assert probe(FakeService(dropped_blocks=1)).rule == BlockRule(16, 1)


def test_a_server_that_counts_blocks() -> None:
    service = FakeService(dp_size=1)
    client, _, clock = connect(service)
    blocks = CounterReader(client, lambda texts: in_blocks(service, texts), clock=clock, sleep=clock.sleep)
    (said,) = failures(lambda: probe_ranks(client, blocks, block_size=16))
    assert said == f"[COUNTER_UNIT] {URL}/metrics: a probe of 47 tokens to rank 0 moved engine '0' by 2"


def in_blocks(service: FakeService, texts: Any) -> Any:
    reading = service.read(texts)
    return Reading(
        reading.texts,
        {engine: EngineCounters(each.queries // 16, each.hits // 16) for engine, each in reading.counters.items()},
    )


def test_probe_texts_differ_from_their_first_characters_on() -> None:
    first, second = probe_text("0" * 32, 0, 400), probe_text("1" * 32, 0, 400)
    assert len(first) == len(second) == 400
    assert first[:16] != second[:16]
    assert probe_text("0" * 32, 0, 400) == first
    assert probe_text("0" * 32, 0, 800).startswith(first)


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "HTTP_STATUS"), (500, "SERVER_ERROR")],
)
def test_more_ranks_than_engines_are_named_with_what_to_set(status: int, code: str) -> None:
    def refuse(request: httpx.Request) -> httpx.Response | None:
        return httpx.Response(status, text="no such rank") if request.headers.get(RANK_HEADER) == "1" else None

    with pytest.raises(ServiceError) as caught:
        probe(FakeService(dp_size=1, override=refuse), dp_size=2)
    (problem,) = caught.value.problems
    assert (problem.code, problem.message) == (code, f"rank 1: answered {status}: no such rank")
    assert problem.hint == "The server has 1 engine: set service.dp_size to 1 (it is 2) and prepare again."


def test_one_engine_that_answers_for_two_ranks_says_how_many_there_are() -> None:
    with pytest.raises(ServiceError) as caught:
        probe(FakeService(dp_size=1, honour_header=False), dp_size=2)
    (problem,) = caught.value.problems
    assert problem.code == "RANK_NOT_REACHED"
    assert problem.hint == "The server has 1 engine: set service.dp_size to 1 (it is 2) and prepare again."


def test_a_rank_that_answers_500_is_named_with_what_it_may_mean() -> None:
    def fail(request: httpx.Request) -> httpx.Response | None:
        return httpx.Response(500, text="boom") if request.headers.get(RANK_HEADER) == "1" else None

    with pytest.raises(ServiceError) as caught:
        probe(FakeService(override=fail))
    (problem,) = caught.value.problems
    assert problem.message == "rank 1: answered 500: boom"
    assert problem.hint == (
        "Does the server have a rank 1 (service.dp_size), and is its engine alive? Look at the server's log."
    )


@pytest.mark.parametrize("step", [784, 4096, 16384])
def test_steps_that_are_larger_than_any_block_are_found(step: int) -> None:
    client, reader, _ = connect(FakeService(dp_size=1, block_size=step))
    (said,) = failures(lambda: probe_ranks(client, reader, block_size=16, most_tokens=40_000))
    assert said.startswith(f"[WRONG_BLOCK_SIZE] {URL}/metrics: a prompt of ")
    assert said.endswith(f" such prompts hit as with blocks of {step}")


def test_without_a_known_model_length_long_prompts_are_not_tried() -> None:
    service = FakeService(dp_size=1, block_size=16384)
    (said,) = failures(lambda: probe(service))
    assert said.startswith(f"[CACHE_INEFFECTIVE] {URL}/metrics: ")
    assert max(len(request.content) for request in service.requests) < 16384


class OneCounterForAll(FakeService):
    """SGLang before its counts per rank."""

    def read(self, texts: Any) -> Reading:
        ranks = super().read(texts).counters.values()
        all_ranks = EngineCounters(sum(rank.queries for rank in ranks), sum(rank.hits for rank in ranks))
        return Reading(tuple(texts), {EngineId(0, ""): all_ranks}, frozenset({"sglang"}))


def test_a_server_that_counts_for_all_its_ranks_together_is_noted() -> None:
    probed = probe(OneCounterForAll())
    assert probed.rank_of_engine == {EngineId(0, ""): NO_RANK}
    assert probed.notes == (
        f"{URL}/metrics counts for all ranks together: that requests reach their ranks cannot be seen, and only the "
        "global rate can be told",
    )


def probe_hybrid(servers: dict[int, FakeService]) -> ProbedRanks:
    """Hybrid load balancing: servers by port, each with ranks of its own that it counts from 0."""

    def answer(request: httpx.Request) -> httpx.Response:
        return servers[request.url.port or 80].handle(request)

    ports = tuple(f"http://service.test:{port}" for port in servers)
    config = service_config(
        inference_urls=tuple(f"{url}/v1/completions" for url in ports),
        metrics_urls=tuple(f"{url}/metrics" for url in ports),
        dp_size=4,
        timeout_seconds=5.0,
    )

    def read(texts: Any) -> Reading:
        counters = {
            EngineId(position, engine.label): counted
            for position, text in enumerate(texts)
            for engine, counted in servers[8000].read([text]).counters.items()
        }
        return Reading(tuple(texts), counters)

    clock = Clock()
    client = ServiceClient(config, transport=httpx.MockTransport(answer))
    return probe_ranks(client, CounterReader(client, read, clock=clock, sleep=clock.sleep), block_size=16)


def test_a_url_with_fewer_ranks_than_the_others_is_asked_for_a_rank_of_its_own() -> None:
    def out_of_range(request: httpx.Request) -> httpx.Response | None:
        return httpx.Response(400, text="out of range") if request.headers.get(RANK_HEADER) == "1" else None

    with pytest.raises(ServiceError) as caught:
        probe_hybrid({8000: FakeService(dp_size=3), 8001: FakeService(dp_size=1, override=out_of_range)})
    (problem,) = caught.value.problems
    assert problem.where == "http://service.test:8001/v1/completions"
    assert problem.message.startswith("rank 3: answered 400")
    assert problem.hint == (
        "service.dp_size 4 over 2 URLs is 2 ranks behind each; this one was asked for its rank 1. Does every URL have "
        "as many, and is the engine alive? Look at the server's log."
    )


def test_ranks_behind_several_urls_are_reached_by_url_and_header() -> None:
    servers = {8000: FakeService(), 8001: FakeService()}
    probed = probe_hybrid(servers)
    assert probed.rank_of_engine == {
        EngineId(0, "0"): 0,
        EngineId(0, "1"): 1,
        EngineId(1, "0"): 2,
        EngineId(1, "1"): 3,
    }
    assert {request.headers[RANK_HEADER] for request in servers[8001].requests if RANK_HEADER in request.headers} == {
        "0",
        "1",
    }


def test_on_a_chat_endpoint_probes_are_chats() -> None:
    service = FakeService(dp_size=1)
    probe(service, inference_urls=(f"{URL}/v1/chat/completions",))
    assert {request.url.path for request in service.requests} == {"/v1/chat/completions", "/metrics"}
