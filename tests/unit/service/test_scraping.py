"""Waiting for counters that come late, or not as planned."""

from __future__ import annotations

from typing import Any

import httpx
from tests.doubles.fake_service import URL, FakeService, connect, failures

from ais_bench_prefix_cache.service.readings import EngineId
from ais_bench_prefix_cache.service.scraping import CounterReader


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
