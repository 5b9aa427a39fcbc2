"""Probes, resets and warm-ups against a service that is healthy, or wrong in one way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tests.doubles.fake_service import URL, FakeService, service_config

from ais_bench_prefix_cache.counters.reader import EngineCounters
from ais_bench_prefix_cache.foundation.errors import ServiceError
from ais_bench_prefix_cache.service.block_inference import BlockRule, rules_that_explain
from ais_bench_prefix_cache.service.client import ServiceClient
from ais_bench_prefix_cache.service.probing import ProbedRanks, probe_ranks, probe_text
from ais_bench_prefix_cache.service.readings import EngineId, Reading
from ais_bench_prefix_cache.service.resetting import empty_the_caches
from ais_bench_prefix_cache.service.scraping import CounterReader
from ais_bench_prefix_cache.service.warming import WarmupEntry, warm_and_prove, warm_shorter_prefixes


class Clock:
    """Time that passes only while someone sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def connect(service: FakeService, **changes: Any) -> tuple[ServiceClient, CounterReader, Clock]:
    config = service_config(**{"dp_size": service.dp_size, "timeout_seconds": 5.0, **changes})
    client = ServiceClient(config, transport=service.transport())
    clock = Clock()
    return client, CounterReader(client, service.read, clock=clock, sleep=clock.sleep), clock


def probe(service: FakeService, block_size: int = 16, **changes: Any) -> ProbedRanks:
    client, reader, _ = connect(service, **changes)
    return probe_ranks(client, reader, block_size=block_size)


def failures(action: Callable[[], object]) -> list[str]:
    with pytest.raises(ServiceError) as caught:
        action()
    return [f"[{problem.code}] {problem.where}: {problem.message}" for problem in caught.value.problems]


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
    ("observations", "rule"),
    [
        ([(49, 48), (81, 80)], BlockRule(16, 0)),
        ([(49, 32), (81, 64), (97, 96)], BlockRule(32, 0)),
        ([(49, 32), (81, 64), (97, 80)], BlockRule(16, 1)),
    ],
)
def test_rules_are_told_apart_by_several_lengths(observations: list[tuple[int, int]], rule: BlockRule) -> None:
    explaining = rules_that_explain(observations, 16)
    assert rule in explaining
    assert {each for each in explaining if each.block_size >= 16} == {rule}


def test_nothing_explains_a_cache_that_never_hits() -> None:
    assert rules_that_explain([(49, 0), (81, 0)], 16) == []


def reset(service: FakeService, **changes: Any) -> Any:
    client, reader, clock = connect(service, **changes)
    probed = probe_ranks(client, reader, block_size=16)
    return empty_the_caches(client, reader, probed.probes, clock=clock, sleep=clock.sleep)


@pytest.mark.parametrize("body", ['{"success": true}', "", "Cache flushed."])
def test_a_reset_is_proven_by_probes(body: str) -> None:
    outcome = reset(FakeService(reset_bodies=[body]))
    assert (outcome.proven, outcome.attempts, outcome.warning) == (True, 1, None)


def test_a_busy_server_is_asked_again() -> None:
    service = FakeService(reset_bodies=['{"success": false}', '{"success": false}', '{"success": true}'])
    outcome = reset(service)
    assert (outcome.proven, outcome.attempts) == (True, 3)


def test_a_server_that_stays_busy() -> None:
    assert failures(lambda: reset(FakeService(reset_bodies=['{"success": false}']))) == [
        f'[RESET_REFUSED] {URL}/reset_prefix_cache: refused 11 times (status 200, {{"success": false}}): requests are '
        "running there"
    ]


def test_a_reset_that_does_nothing() -> None:
    assert failures(lambda: reset(FakeService(reset_ranks=()))) == [
        f"[RESET_INEFFECTIVE] {URL}/reset_prefix_cache: the reset was answered, but rank {rank} still hits "
        f"80 of {tokens} tokens of an earlier probe"
        for rank, tokens in ((0, 92), (1, 93))
    ]


def test_a_reset_of_one_rank_only() -> None:
    assert failures(lambda: reset(FakeService(reset_ranks=(1,)))) == [
        f"[RESET_INEFFECTIVE] {URL}/reset_prefix_cache: the reset was answered, but rank 0 still hits "
        "80 of 92 tokens of an earlier probe; emptied were only the ranks [1]"
    ]


@pytest.mark.parametrize("status", [404, 405])
def test_a_server_without_reset(status: int) -> None:
    assert failures(lambda: reset(FakeService(reset_status=status))) == [
        f"[RESET_NOT_OFFERED] {URL}/reset_prefix_cache: answered {status}: the server does not offer a reset there"
    ]


def test_no_reset_url() -> None:
    assert failures(lambda: reset(FakeService(), reset_urls=())) == [
        "[NO_RESET_URL] service.reset_url: is empty, so the caches cannot be emptied before the run"
    ]


@pytest.mark.parametrize("changes", [{"reset_urls": ()}, {}])
def test_assumed_emptiness_is_a_warning(changes: dict[str, Any]) -> None:
    outcome = reset(FakeService(reset_status=404), assume_empty_cache=True, **changes)
    assert outcome.proven is False
    assert outcome.warning["code"] == "ASSUME_EMPTY_CACHE"
    assert outcome.warning["message"].startswith(
        "the caches are assumed to be empty, as service.assume_empty_cache says ("
    )


def test_after_a_refused_reset_the_probes_tell_which_ranks_are_empty() -> None:
    service = FakeService(reset_bodies=['{"success": false}'], reset_ranks=(0,))
    outcome = reset(service, assume_empty_cache=True)
    assert (outcome.accepted, outcome.proven, outcome.hits_after) == (False, False, {0: 0, 1: 80})
    assert "requests are running there" in outcome.warning["reason"]


def entry(group: int, rank: int, tokens: int = 160) -> WarmupEntry:
    text = (f"group {group} " * tokens)[: tokens * 4]
    return WarmupEntry(f"warmup:group-{group}:{rank}", f"group-{group}", rank, text, tokens, tokens - 16, 1)


def warm(service: FakeService, plan: list[WarmupEntry]) -> Any:
    client, reader, _ = connect(service)
    probed = probe_ranks(client, reader, block_size=16)
    service.requests.clear()
    done: list[int] = []
    result = warm_and_prove(client, reader, plan, probed.rank_of_engine, probed.rule, on_progress=done.append)
    assert done == list(range(1, 2 * len(plan) + 1))
    return result


def sharer(group: int, rank: int, tokens: int, end: str) -> WarmupEntry:
    text = (f"group {group} " * 160)[: tokens * 4] + end * 16
    name = f"warmup:group-{group}:{rank}:{tokens}:{end}"
    return WarmupEntry(name, f"group-{group}", rank, text, tokens + 16, tokens, 1)


@pytest.mark.parametrize("hybrid", [True, False])
def test_shorter_prefixes_of_a_hybrid_model_are_warmed_and_proven(hybrid: bool) -> None:
    service = FakeService(hybrid=hybrid)
    client, reader, _ = connect(service)
    probed = probe_ranks(client, reader, block_size=16)
    warm_and_prove(client, reader, PLAN, probed.rank_of_engine, probed.rule)
    pairs = [
        (sharer(group, rank, tokens, "one "), sharer(group, rank, tokens, "two "))
        for group in range(2)
        for rank in range(2)
        for tokens in (112, 64, 32)
    ]
    warmed = warm_shorter_prefixes(client, reader, pairs, probed.rank_of_engine)
    assert [each.cached_tokens for each in warmed] == [each.expected_hits for each in warmed] == [112, 64, 32] * 4
    formal = sharer(1, 1, 64, "formal ")
    assert client.complete(formal.prompt, dp_rank=1).cached_tokens == 64


def test_without_it_the_first_sharer_of_a_shorter_prefix_misses() -> None:
    service = FakeService(hybrid=True)
    client, reader, _ = connect(service)
    probed = probe_ranks(client, reader, block_size=16)
    warm_and_prove(client, reader, PLAN, probed.rank_of_engine, probed.rule)
    first, second = (client.complete(sharer(1, 1, 64, end).prompt, dp_rank=1) for end in ("one ", "two "))
    assert (first.cached_tokens, second.cached_tokens) == (0, 64)


PLAN = [entry(group, rank) for group in range(5) for rank in range(2)]


@pytest.mark.parametrize("dropped_blocks", [0, 1])
@pytest.mark.parametrize("details", [True, False])
def test_warm_up_reaches_every_rank_and_is_proven(details: bool, dropped_blocks: int) -> None:
    service = FakeService(tokens_details=details, dropped_blocks=dropped_blocks)
    warmed = warm(service, PLAN)
    assert [each.entry for each in warmed] == PLAN
    assert {each.cached_tokens for each in warmed} == ({144 - 16 * dropped_blocks} if details else {None})
    posted = [request for request in service.requests if request.method == "POST"]
    assert sorted(request.headers["x-data-parallel-rank"] for request in posted) == ["0"] * 10 + ["1"] * 10


def test_a_cache_that_cannot_hold_all_groups() -> None:
    service = FakeService(capacity_blocks=22)
    (first, second) = failures(lambda: warm(service, PLAN))
    assert first.startswith(
        f"[NOT_WARM] {URL}/metrics: rank 0 does not hold the canonical prefixes of 5 groups: sent again, they hit "
    )
    assert "group-0 hit 0 of 144" in first
    assert second.startswith(f"[NOT_WARM] {URL}/metrics: rank 1 does not hold")


def test_a_server_that_counts_one_token_more() -> None:
    assert failures(lambda: warm(FakeService(extra_prompt_tokens=1), PLAN[:4])) == [
        f"[TOKEN_COUNT_DIFFERS] {URL}/v1/completions: the server counts 161 tokens in the warm-up prompt of "
        f"group-{group}, tokenizer.path counts 160 (+1)"
        for group in (0, 1)
    ]


def test_an_error_while_warming_names_group_and_rank() -> None:
    service = FakeService()
    client, reader, _ = connect(service)
    probed = probe_ranks(client, reader, block_size=16)
    service.override = lambda request: httpx.Response(500, text="boom") if request.method == "POST" else None
    plan = PLAN[3:4]
    assert failures(lambda: warm_and_prove(client, reader, plan, probed.rank_of_engine, probed.rule)) == [
        f"[SERVER_ERROR] {URL}/v1/completions: warm-up of group-1 on rank 1: answered 500: boom"
    ]


def test_stable_waits_for_late_counters() -> None:
    service = FakeService(dp_size=1)
    client, _, clock = connect(service)
    readings = iter([(10, 0), (10, 0), (30, 0), (40, 16), (40, 16)])

    def read(texts: Any) -> Any:
        service.queries[0], service.hits[0] = next(readings)
        return service.read(client.scrape())

    reader = CounterReader(client, read, clock=clock, sleep=clock.sleep)
    since = reader.read()
    stable = reader.stable(timeout=10, since=since, planned_queries=30)
    assert (stable.stable, stable.as_planned) == (True, True)
    assert stable.reading.counters[EngineId(0, "0")].hits == 16


def test_stable_gives_up_on_a_plan_that_is_not_met() -> None:
    service = FakeService(dp_size=1)
    _client, reader, clock = connect(service)
    stable = reader.stable(timeout=10, since=reader.read(), planned_queries=30)
    assert (stable.stable, stable.as_planned) == (True, False)
    assert 5 <= clock.now <= 6


def test_stable_survives_a_metrics_outage_shorter_than_its_timeout() -> None:
    service = FakeService(dp_size=1)
    _client, reader, _ = connect(service)
    outage = [httpx.Response(502, html="<html>Bad Gateway</html>")] * 3
    service.override = lambda _request: outage.pop() if outage else None
    assert reader.stable(timeout=10).stable is True


def test_stable_reports_a_metrics_outage_that_lasts() -> None:
    service = FakeService(dp_size=1)
    _client, reader, _ = connect(service)
    service.override = lambda _request: httpx.Response(502, html="<html>Bad Gateway</html>")
    assert failures(lambda: reader.stable(timeout=3)) == [
        f"[SERVER_ERROR] {URL}/metrics: answered 502: <html>Bad Gateway</html>"
    ]
