"""What is compared: a run or a sweep, read from its directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.analysis.request_record import RequestRecord
from ais_bench_prefix_cache.datasets.format.documents import read_document
from ais_bench_prefix_cache.datasets.format.paths import RunDirectory
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.reporting.records_file import read_records
from ais_bench_prefix_cache.reporting.report_document import imitation_answered
from ais_bench_prefix_cache.scenario.identity import FIELDS, data_fields
from ais_bench_prefix_cache.sweeps.sweep_directory import PLAN_NAME, SweepDirectory

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class MeasuredRun:
    """One complete run; ``rows`` are the digests of its data set's files, None where an older version ran it."""

    name: str
    config: Mapping[str, Any]
    done: Sequence[RequestRecord]
    requests: int
    rows: Mapping[str, str] | None
    batch_size: int
    counted_hits: int | None
    counted_tokens: int | None
    imitation: bool

    def same_data_set(self, other: MeasuredRun) -> bool:
        """By the files, or, where one side does not know them, by all that shapes data sets of any kind."""
        if self.rows is None or other.rows is None:
            return all(data_fields(self.config, rules) == data_fields(other.config, rules) for rules in FIELDS)
        return self.rows == other.rows


@dataclass(frozen=True)
class Measured:
    """A run, or the points of a sweep: settings of the Scenario with the complete runs made there."""

    path: Path
    points: Sequence[tuple[Settings, Sequence[MeasuredRun]]]

    @property
    def name(self) -> str:
        return self.path.name


def read_measured(path: Path | str) -> Measured:
    """A run's or a sweep's directory, or a file in it. Raises ArtifactError where it is neither, or not complete."""
    place = Path(path).absolute()
    for directory in (place, place.parent):
        if (directory / PLAN_NAME).is_file():
            return _measured_sweep(SweepDirectory(directory))
    for directory in (place, place.parent):
        run = RunDirectory(directory)
        if run.record.is_file():
            return Measured(directory, (({}, (_measured_run(run),)),))
    raise ArtifactError.of(
        Code.MISSING_FILE,
        str(path),
        "this is no directory of a run or a sweep",
        allowed="…/runs/<YYYYMMDD_HHMMSS>, or a directory that `sweep` made",
        hint="`runs` lists the runs of a Scenario.",
    )


def _measured_sweep(files: SweepDirectory) -> Measured:
    plan = files.read_plan()
    complete = sorted((row["point"], row["repeat"]) for row in files.read_table() if row["status"] == "complete")
    points = [
        (settings, [_measured_run(files.run(*each)) for each in complete if each[0] == index])
        for index, settings in enumerate(plan.points)
    ]
    measured = [(settings, runs) for settings, runs in points if runs]
    if not measured:
        raise ArtifactError.of(Code.NO_RUN, str(files.path), "no run of this sweep is complete")
    return Measured(files.path, measured)


def _measured_run(run: RunDirectory) -> MeasuredRun:
    if not run.analysis.is_file():
        raise ArtifactError.of(Code.NO_RUN, str(run.path), "this run is not complete")
    analysis, _ = read_document(run.analysis, what="analysis of the run")
    config, _ = read_document(run.config, what="configuration of the run")
    records = read_records(run.requests)
    if not records:
        raise ArtifactError.of(Code.NO_RUN, str(run.path), "this run left no records of its requests to compare")
    runtime, actual = analysis.get("runtime") or {}, analysis.get("actual") or {}
    return MeasuredRun(
        name=run.name,
        config=config,
        done=[record for record in records if record.success],
        requests=len(records),
        rows=runtime.get("rows_sha256"),
        batch_size=int(runtime["aisbench"]["batch_size"]),
        counted_hits=actual.get("global_hits"),
        counted_tokens=actual.get("global_queries"),
        imitation=imitation_answered(analysis),
    )
