"""Benchmark runs: done, read back, and analyzed again."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.analysis.request_record import RequestRecord
from ais_bench_prefix_cache.api.data_sets import DataSet
from ais_bench_prefix_cache.api.scenarios import ScenarioFile, file_and_options
from ais_bench_prefix_cache.datasets.format.paths import RunDirectory
from ais_bench_prefix_cache.datasets.format.writing import write_content
from ais_bench_prefix_cache.datasets.kinds import verify_data_set
from ais_bench_prefix_cache.foundation.telling import Note, no_note
from ais_bench_prefix_cache.reporting.finished_run import FinishedRun, read_finished_run
from ais_bench_prefix_cache.reporting.notebook import data_frame, html_tables, remarks_of
from ais_bench_prefix_cache.reporting.performance_tables import LATENCY_NAMES, shown, whole_run_rows
from ais_bench_prefix_cache.reporting.records_file import flat_record
from ais_bench_prefix_cache.reporting.report_document import report_document
from ais_bench_prefix_cache.reporting.report_page import render_report_page
from ais_bench_prefix_cache.reporting.summary_table import summary_rows
from ais_bench_prefix_cache.running.reanalysis import analyze_saved, texts_of_run
from ais_bench_prefix_cache.running.recounting import recount, with_analysis_of
from ais_bench_prefix_cache.running.scenario_run import run_scenario

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Analysis:
    """Theory beside counters. ``document`` is what ``analyze`` prints; rates are fractions of 1."""

    document: Mapping[str, Any] = field(repr=False)

    @property
    def theoretical_hit_rate(self) -> float | None:
        """None for images."""
        rate: float | None = self.document.get("theoretical_hit_rate")
        return rate

    @property
    def actual_hit_rate(self) -> float | None:
        """None where the server counted no queries."""
        rate: float | None = self.document["actual"]["global_hit_rate"]
        return rate

    @property
    def findings(self) -> tuple[Mapping[str, Any], ...]:
        """Why theory and counter differ: objects with ``code``, ``message`` and ``remedy``."""
        return tuple(self.document["findings"])

    @property
    def warnings(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self.document["warnings"])

    def to_pandas(self) -> pandas.DataFrame:
        """One row a data-parallel rank: ``dp_rank``, ``queries``, ``hits``, ``hit_rate``.

        Raises PrefixCacheError without pandas.
        """
        by_rank: Mapping[str, Mapping[str, Any]] = self.document["actual"]["by_dp"]
        keys = ("queries", "hits", "hit_rate")
        return data_frame(
            [{"dp_rank": int(rank), **{key: each[key] for key in keys}} for rank, each in by_rank.items()]
        )

    def _repr_html_(self) -> str:
        hits = ("Prefix cache", ("Metric", "Value"), summary_rows(self.document))
        return html_tables("Analysis", [hits], remarks_of((*self.findings, *self.warnings)))


@dataclass(frozen=True)
class Run:
    """A finished run, as its directory keeps it.

    ``records`` is one record a request, ``series`` the samples of the server's load, ``config`` the configuration
    that was run, without the API key.
    """

    directory: Path
    manifest_path: Path
    analysis: Analysis
    records: tuple[RequestRecord, ...] = field(repr=False)
    series: tuple[Mapping[str, Any], ...] = field(repr=False)
    config: Mapping[str, Any] = field(repr=False)
    _finished: FinishedRun = field(repr=False)

    @property
    def theoretical_hit_rate(self) -> float | None:
        """None for images."""
        return self.analysis.theoretical_hit_rate

    @property
    def actual_hit_rate(self) -> float | None:
        """What the server's counters say."""
        return self.analysis.actual_hit_rate

    @property
    def performance(self) -> Mapping[str, Any]:
        """Latencies (``performance["latency"]["ttft_ms"]["p99"]``), throughput, concurrency, rate, goodput.

        Empty where the sender kept no records.
        """
        return self._finished.performance or {}

    def report(self) -> dict[str, Any]:
        """What ``report --json`` prints: numbers, with units in the keys."""
        return report_document(self.analysis.document, self.config, self._finished.aisbench)

    def write_page(self, path: str | os.PathLike[str]) -> None:
        """The run as one self-contained web page. Raises ArtifactError without the extra ``report``."""
        finished = self._finished
        page = render_report_page(
            self.analysis.document,
            run_id=finished.name,
            config=self.config,
            records=self.records,
            series=self.series,
            aisbench_csv=None if finished.aisbench is None else finished.aisbench["csv"],
        )
        write_content(Path(path), page.encode())

    def to_pandas(self) -> pandas.DataFrame:
        """One row a request, with the columns of ``report --records FILE.csv``.

        Raises PrefixCacheError without pandas.
        """
        return data_frame([flat_record(record) for record in self.records])

    def _repr_html_(self) -> str:
        tables: list[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = [
            ("Prefix cache", ("Metric", "Value"), summary_rows(self.analysis.document))
        ]
        if self.performance:
            latency: Mapping[str, Mapping[str, float]] = self.performance["latency"]
            columns = [name for name in next(iter(latency.values()), {}) if name != "count"]
            rows = [
                (LATENCY_NAMES[name], *(shown(each[column]) for column in columns)) for name, each in latency.items()
            ]
            tables += [
                ("Latency, ms", ("", *columns), rows),
                ("Whole run", ("Metric", "Value"), whole_run_rows(self.performance)),
            ]
        entries = (*self.analysis.findings, *self.analysis.warnings)
        return html_tables(f"Run {self.directory.name} of {self._finished.name}", tables, remarks_of(entries))


def run(
    scenario: ScenarioFile,
    settings: Mapping[str, Any] | None = None,
    *,
    labels: Mapping[str, str] = MappingProxyType({}),
    template: str | os.PathLike[str] | None = None,
    note: Note = no_note,
) -> Run:
    """Send the newest data set that fits the Scenario (made where there is none) and count what the server hit.

    ``labels`` are kept with the run, ``template`` names an AISBench configuration in place of the Scenario's.
    AISBench runs in processes of its own, which end with the call, also on Ctrl-C.

    Raises:
        ScenarioError, GenerationError, ArtifactError, ServiceError, AISBenchError: what is wrong, where, what to do.
    """
    path, options = file_and_options(scenario, settings)
    outcome = run_scenario(
        path,
        settings=options,
        labels=labels,
        template_path=None if template is None else Path(template),
        note=note,
    )
    return load_run(outcome.directory.path)


def load_run(directory: str | os.PathLike[str]) -> Run:
    """A run by its directory, ``…/runs/<time stamp>``; its data set is verified.

    Raises:
        ArtifactError: there is no such run, it did not finish, or its files are damaged.
    """
    found = RunDirectory.named(Path(directory))
    manifest = found.data_set().manifest
    recount(with_analysis_of(verify_data_set(manifest), found), found)
    finished = read_finished_run(manifest, found)
    return Run(
        directory=found.path,
        manifest_path=manifest,
        analysis=Analysis(finished.analysis),
        records=tuple(finished.records),
        series=tuple(finished.series),
        config=finished.config,
        _finished=finished,
    )


def analyze(
    of: DataSet | Run | str | os.PathLike[str],
    *,
    baseline: Sequence[str | os.PathLike[str]] = (),
    after: Sequence[str | os.PathLike[str]] = (),
    note: Note = no_note,
) -> Analysis:
    """Compare theory with two saved texts of the server's ``/metrics``, one of each for every port.

    ``of`` is a data set, whose ``analysis.json`` is replaced, or its manifest; or a run, whose own texts are read where
    none are given and whose files stay as they are.

    Raises:
        ArtifactError, SnapshotError: the files do not belong together or cannot be compared.
    """
    run: RunDirectory | None = None
    if isinstance(of, Run):
        manifest, run = of.manifest_path, RunDirectory(of.directory)
    else:
        manifest = of.manifest_path if isinstance(of, DataSet) else Path(of)
    texts = [Path(file) for file in baseline], [Path(file) for file in after]
    if run is not None and not any(texts):
        texts = texts_of_run(run)
    return Analysis(analyze_saved(manifest, run=run, baseline=texts[0], after=texts[1], note=note))
