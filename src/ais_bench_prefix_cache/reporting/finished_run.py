"""A finished run as it lies on disk: its analysis, its configuration and its request records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.aisbench.results import RUN_KEY, performance_report
from ais_bench_prefix_cache.analysis.performance import PERFORMANCE_KEY, latency_section
from ais_bench_prefix_cache.analysis.request_record import RequestRecord
from ais_bench_prefix_cache.datasets.format.documents import read_document, read_json_lines
from ais_bench_prefix_cache.datasets.format.paths import RunDirectory, RunPaths
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import AISBenchError, ArtifactError
from ais_bench_prefix_cache.reporting.records_file import read_records


@dataclass(frozen=True)
class FinishedRun:
    """``config`` is what was run, without the API key; ``records`` and ``series`` are empty where a run left none.

    ``aisbench`` is what AISBench wrote, None where its files are gone.
    """

    name: str
    analysis: Mapping[str, Any]
    config: Mapping[str, Any]
    records: Sequence[RequestRecord]
    series: Sequence[Mapping[str, Any]]
    aisbench: Mapping[str, Any] | None

    @property
    def performance(self) -> Mapping[str, Any] | None:
        """``analysis.performance``."""
        performance: Mapping[str, Any] | None = self.analysis.get(PERFORMANCE_KEY)
        return performance

    @property
    def task(self) -> str:
        """How AISBench calls it: model and data set."""
        run = self.analysis["runtime"][RUN_KEY]
        return f"{run['model_abbr']}/{run['dataset_abbr']}"


def read_finished_run(
    manifest_path: Path, run: RunDirectory | None = None, *, percentiles: Sequence[float] | None = None
) -> FinishedRun:
    """A run of a data set, by default the newest; with ``percentiles`` its latencies have these instead of its own.

    Raises ArtifactError where the data set has not been run, or its run left nothing to take percentiles of.
    """
    manifest, _ = read_document(manifest_path, what="manifest")
    paths = RunPaths.of_manifest(manifest_path)
    analysis, _ = read_document(paths.analysis if run is None else run.analysis, what="analysis")
    runtime = analysis.get("runtime") or {}
    if RUN_KEY not in runtime:
        raise ArtifactError.of(
            Code.NO_RUN,
            str(paths.analysis),
            "records no run of AISBench",
            hint="Send the data set first: ais-bench-prefix-cache run --scenario …",
        )
    config, records, series = manifest["effective_config"], [], []
    directory = run or RunDirectory.recorded(paths, analysis)
    if directory is not None:
        config, _ = read_document(directory.config, what="configuration of this run")
        records = read_records(directory.requests)
        series = read_json_lines(directory.series, what="series of this run")
    if percentiles is not None:
        if not records:
            raise ArtifactError.of(
                Code.MISSING_FILE, str(paths.runs_dir), "this run left no records of its requests to compute with"
            )
        done = [record for record in records if record.success]
        performance = {**analysis[PERFORMANCE_KEY], "latency": latency_section(done, percentiles)}
        analysis = {**analysis, PERFORMANCE_KEY: performance}
    try:
        kept = None if directory is None else directory.aisbench
        aisbench = performance_report(analysis, analysis_path=paths.analysis, kept=kept)
    except AISBenchError:
        aisbench = None
    return FinishedRun(manifest["run_id"], analysis, config, records, series, aisbench)
