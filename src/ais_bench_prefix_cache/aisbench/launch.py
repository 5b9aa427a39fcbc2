"""Run the real AISBench, watch it, stop it, and judge it by its files."""

from __future__ import annotations

from ais_bench_prefix_cache.aisbench.job import AISBenchJob, AISBenchResult


def run_aisbench(job: AISBenchJob) -> AISBenchResult:
    """Send all formal requests through AISBench; returns only when every one of them is proven to have succeeded."""
    raise NotImplementedError
