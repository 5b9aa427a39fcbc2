"""Who sends the formal requests: AISBench in one process here, or whatever else obeys the protocol."""

from __future__ import annotations

from typing import Protocol

from ais_bench_prefix_cache.aisbench.job import AISBenchJob, AISBenchResult
from ais_bench_prefix_cache.aisbench.launch import check_job, run_aisbench


class Sender(Protocol):
    """Sends every request of a job once, each lane by one process and in its order, and proves that it did.

    A sender of many processes gives each an :meth:`~ais_bench_prefix_cache.aisbench.request_index.RequestIndex.part` of
    the index; verification, probes, warm-up, counters and analysis stay with the run.
    """

    def check(self, job: AISBenchJob) -> None:
        """Raises AISBenchError where :meth:`send` could not begin. Sends nothing."""

    def send(self, job: AISBenchJob) -> AISBenchResult:
        """Returns when every request has succeeded. Raises AISBenchError; nothing is sent any more on any way out."""


class AISBenchSender:
    """One AISBench on this machine."""

    def check(self, job: AISBenchJob) -> None:
        check_job(job)

    def send(self, job: AISBenchJob) -> AISBenchResult:
        return run_aisbench(job)
