"""One AISBench from its start to its results."""

from __future__ import annotations

from ais_bench_prefix_cache.aisbench.job import AISBenchJob, AISBenchResult
from ais_bench_prefix_cache.aisbench.launch import Progress, started_aisbench


def run_aisbench(job: AISBenchJob, on_progress: Progress = lambda _: None) -> AISBenchResult:
    """Everything that a run does in its formal phase."""
    with started_aisbench(job) as aisbench:
        return aisbench.send(on_progress)
