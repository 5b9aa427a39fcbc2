"""Resets against a service that is healthy, or wrong in one way, and their proof."""

from __future__ import annotations

from typing import Any

import pytest
from tests.doubles.fake_service import URL, FakeService, connect, failures

from ais_bench_prefix_cache.service.probing import probe_ranks
from ais_bench_prefix_cache.service.resetting import empty_the_caches


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
