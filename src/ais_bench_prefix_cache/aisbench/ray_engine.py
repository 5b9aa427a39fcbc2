"""Load generators on the machines of a Ray cluster: one actor each, which starts the same process as everywhere else.

Ray carries the generators' lines, between this process and the actors' own; nothing of them goes through its object
store. An actor that dies takes its generator with it, whose stdin ends; and Ray ends the actors of a driver that dies.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.aisbench.engines import Generator, Inbox, LocalEngine
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import AISBenchError
from ais_bench_prefix_cache.foundation.ray_cluster import ray_cluster

_SECONDS_FOR_ROOM = 60.0
_SECONDS_TO_END = 40.0


class RayEngine:
    """``generators`` of them, spread over the cluster at ``address``, with ``cores`` each."""

    def __init__(self, address: str, generators: int, cores: int) -> None:
        self._address = address
        self._generators = generators
        self._cores = cores
        self._connection = ExitStack()
        self._ray: Any = None
        self._group: Any = None

    def open(self) -> None:
        ray = self._ray = self._connection.enter_context(ray_cluster(self._address))
        self._group = ray.util.placement_group([{"CPU": self._cores}] * self._generators, strategy="SPREAD")
        self._connection.callback(ray.util.remove_placement_group, self._group)
        if not self._group.wait(_SECONDS_FOR_ROOM):
            raise AISBenchError.of(
                Code.RAY_UNUSABLE,
                self._address,
                f"the Ray cluster has no {self._generators} x {self._cores} free cores",
                hint="Lower aisbench.load.generators or senders, or add machines.",
            )

    def start(self, number: int, log: Path, inbox: Inbox) -> Generator:
        ray = self._ray
        place = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(self._group, number - 1)
        # Reading waits for the next line, so other calls must run beside it.
        options = {"num_cpus": self._cores, "max_restarts": 0, "max_concurrency": 8, "scheduling_strategy": place}
        actor = ray.remote(_Actor).options(**options).remote(number, str(log))
        return _RayGenerator(ray, actor, number, inbox)

    def close(self) -> None:
        self._connection.close()


class _RayGenerator:
    def __init__(self, ray: Any, actor: Any, number: int, inbox: Inbox) -> None:
        self._ray = ray
        self._actor = actor
        threading.Thread(target=self._read, args=(number, inbox), daemon=True).start()

    def _read(self, number: int, inbox: Inbox) -> None:
        line: str | None = ""
        while line is not None:
            try:
                line = self._ray.get(self._actor.read.remote())
            except Exception:  # whatever Ray says when the actor, its node or the connection is lost
                line = None
            inbox.put((number, line))

    def write(self, line: str) -> None:
        self._actor.write.remote(line)

    def end(self) -> None:
        self._actor.end.remote()

    def wait(self) -> None:
        try:
            self._ray.get(self._actor.wait.remote(), timeout=_SECONDS_TO_END)
        except self._ray.exceptions.RayError:
            return
        finally:
            self._ray.kill(self._actor)


class _Actor:
    """On a machine of the cluster: a load generator there."""

    def __init__(self, number: int, log: str) -> None:
        self._inbox = Inbox()
        self._generator = LocalEngine().start(number, Path(log), self._inbox)

    def read(self) -> str | None:
        return self._inbox.get()[1]

    def write(self, line: str) -> None:
        self._generator.write(line)

    def end(self) -> None:
        self._generator.end()

    def wait(self) -> None:
        self._generator.wait()
