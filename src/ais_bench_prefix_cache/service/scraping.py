"""Reading the counters when they are complete: a counter is recorded shortly after the answer has been sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ais_bench_prefix_cache.counters.reader import EngineCounters
from ais_bench_prefix_cache.foundation.errors import ServiceError
from ais_bench_prefix_cache.service.client import ServiceClient
from ais_bench_prefix_cache.service.readings import EngineId, Reading, movement, total_queries

_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.5
_SETTLE_SECONDS = 0.3
"""Two equal readings this far apart count as stable."""


@dataclass(frozen=True)
class StableReading:
    """A reading whose counters stood still. ``as_planned`` is None where no plan was given."""

    reading: Reading
    stable: bool
    as_planned: bool | None


class CounterReader:
    """Scrapes the service's metrics and waits for them; ``parse`` turns the texts into counters."""

    def __init__(
        self,
        client: ServiceClient,
        parse: Callable[[Sequence[str]], Reading],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._parse = parse
        self._clock = clock
        self._sleep = sleep

    def read(self) -> Reading:
        """One scrape of all metrics URLs, now."""
        return self._parse(self._client.scrape())

    def wait_for_queries(
        self, before: Reading, tokens: int | None, timeout: float
    ) -> tuple[Reading, dict[EngineId, EngineCounters]]:
        """Read until the queries of all engines together have risen by ``tokens`` (None: by anything).

        Returns the last reading and the movement since ``before``; after ``timeout`` seconds whatever has moved.
        """
        deadline = self._clock() + timeout
        pause = _FIRST_PAUSE_SECONDS
        while True:
            reading = self.read()
            moved = movement(before, reading)
            if total_queries(moved) >= (tokens or 1) or self._clock() >= deadline:
                return reading, moved
            self._sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def stable(
        self, *, timeout: float, since: Reading | None = None, planned_queries: int | None = None
    ) -> StableReading:
        """Read until two consecutive readings are equal and, where a plan is given, the rise since ``since`` equals it.

        Counters that stand still at another value than planned are given half of ``timeout`` before they are returned
        as they are: ``as_planned`` is then False. A scrape that fails is repeated until ``timeout`` has passed.
        """
        start = self._clock()
        previous: Reading | None = None
        while True:
            waited = self._clock() - start
            try:
                reading = self.read()
            except ServiceError:
                if waited >= timeout:
                    raise
                self._sleep(_LONGEST_PAUSE_SECONDS)
                continue
            still = previous is not None and (previous.counters, previous.server_hits) == (
                reading.counters,
                reading.server_hits,
            )
            if planned_queries is None or since is None:
                as_planned = None
            else:
                as_planned = total_queries(movement(since, reading)) == planned_queries
            if (still and (as_planned is not False or waited >= timeout / 2)) or waited >= timeout:
                return StableReading(reading, still, as_planned)
            previous = reading
            self._sleep(_SETTLE_SECONDS)
