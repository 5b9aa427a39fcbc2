"""Who sends the formal requests: one AISBench here, several load generators, or whatever else obeys the protocol."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from ais_bench_prefix_cache.aisbench.engines import LocalEngine
from ais_bench_prefix_cache.aisbench.job import AISBenchJob, AISBenchResult
from ais_bench_prefix_cache.aisbench.launch import Progress, check_job, started_aisbench
from ais_bench_prefix_cache.aisbench.ray_engine import RayEngine
from ais_bench_prefix_cache.running.generators import GeneratorsSender
from ais_bench_prefix_cache.scenario.model import LoadConfig


class Sending(Protocol):
    """A sender that has begun whatever sends nothing."""

    def send(self, on_progress: Progress) -> AISBenchResult:
        """Returns when every request has succeeded. Raises AISBenchError; nothing is sent any more on any way out."""


class Sender(Protocol):
    """Sends every request of a job once, each lane by one process and in its order, and proves that it did.

    A sender of many processes gives each an :meth:`~ais_bench_prefix_cache.aisbench.request_index.RequestIndex.part` of
    the index; verification, probes, warm-up, counters and analysis stay with the run.
    """

    def check(self, job: AISBenchJob) -> None:
        """Raises AISBenchError where :meth:`started` could not begin. Sends nothing."""

    def started(self, job: AISBenchJob) -> AbstractContextManager[Sending]:
        """What takes time and sends nothing begins; it is ended on any way out of the block."""


class AISBenchSender:
    """One AISBench on this machine; it starts while the server is checked and warmed."""

    def check(self, job: AISBenchJob) -> None:
        check_job(job)

    def started(self, job: AISBenchJob) -> AbstractContextManager[Sending]:
        return started_aisbench(job)


def sender_for(load: LoadConfig) -> Sender:
    """The sender that a Scenario asks for."""
    if load.engine == "ray":
        cores = load.senders if isinstance(load.senders, int) else 1
        return GeneratorsSender(RayEngine(load.address, load.generators, cores))
    if load.engine == "local" and load.generators == 1 and not load.command:
        return AISBenchSender()
    return GeneratorsSender(LocalEngine(load.command))
