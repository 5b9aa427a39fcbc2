"""What a benchmark run leaves in its own directory, where nothing is overwritten."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from shutil import copy2, copytree
from typing import Any

from ais_bench_prefix_cache.analysis.request_record import RequestRecord
from ais_bench_prefix_cache.datasets.format.paths import RunDirectory, RunPaths
from ais_bench_prefix_cache.datasets.format.writing import FileSet, write_document
from ais_bench_prefix_cache.foundation.log_files import also_logged
from ais_bench_prefix_cache.running.phases import Phases
from ais_bench_prefix_cache.scenario.model import Scenario
from ais_bench_prefix_cache.service.load_sampling import LoadSample
from ais_bench_prefix_cache.service.readings import Reading


@contextmanager
def recorded_run(
    scenario: Scenario, data_set: RunPaths, phases: Phases, labels: Mapping[str, str]
) -> Iterator[RunDirectory]:
    """A directory of its own for the run in the block; however that ends, ``run.json`` says how.

    ``status`` is ``complete``, or ``failed`` or ``interrupted`` with the ``phase`` where that happened.
    """
    started = phases.now()
    directory = RunDirectory.create(data_set, datetime.now())
    write_document(directory.config, dict(scenario.effective))

    def record(status: str) -> None:
        document = {
            "run": directory.name,
            "data_set": data_set.run_id,
            "scenario": str(scenario.path),
            "labels": dict(labels),
            "status": status,
            "phase": None if status == "complete" else phases.current,
            "started_at": started.isoformat(timespec="milliseconds"),
            "finished_at": phases.now().isoformat(timespec="milliseconds"),
        }
        write_document(directory.record, document)

    try:
        with also_logged(directory.log("run")):
            yield directory
    except Exception:
        record("failed")
        raise
    except BaseException:
        record("interrupted")
        raise
    record("complete")


def write_run_files(
    directory: RunDirectory,
    *,
    analysis: Mapping[str, Any],
    records: Iterable[RequestRecord],
    series: Iterable[LoadSample],
    begin: float | None,
    baseline: Reading,
    after: Reading,
) -> None:
    """The analysis, both looks at ``/metrics``, a line a request and a line a sample of the server's load.

    Samples are told in seconds after ``begin``, a moment of the machine's monotonic clock.
    """
    with FileSet(replace=False) as files:
        write_lines(files, directory.requests, map(asdict, records))
        write_lines(files, directory.series, (sample.as_json(begin or 0.0) for sample in series))
        for look, reading in (("baseline", baseline), ("after", after)):
            for port, text in enumerate(reading.texts):
                files.open(directory.metrics(look, port)).write(text.encode())
        files.write_document(directory.analysis, analysis)
        files.commit()


def keep_aisbench(directory: RunDirectory, exp_dir: Path, log: Path | None, generator_logs: Sequence[Path]) -> None:
    """AISBench's results and its logs, so that the run is whole when ``aisbench.work_dir`` is cleared.

    A file has a second name, and takes no second place, where the file system can do that. Logs are copied: the next
    run writes to the same files.
    """
    copytree(exp_dir, directory.aisbench, copy_function=_second_name)
    if log is not None:
        copy2(log, directory.log("aisbench"))
    for number, path in enumerate(generator_logs, start=1):
        copy2(path, directory.log(f"aisbench.{number}"))


def _second_name(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        copy2(source, target)


def write_lines(files: FileSet, path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """JSON Lines."""
    file = files.open(path)
    for row in rows:
        file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
