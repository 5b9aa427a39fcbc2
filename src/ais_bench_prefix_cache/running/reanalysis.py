"""Theory against two saved ``/metrics`` texts, without a server."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.analysis.analysis_document import SnapshotTexts
from ais_bench_prefix_cache.analysis.data_set_analysis import analyze_data_set
from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
from ais_bench_prefix_cache.counters.exposition import decode_exposition
from ais_bench_prefix_cache.datasets.format.documents import read_document
from ais_bench_prefix_cache.datasets.format.paths import RunDirectory, RunPaths
from ais_bench_prefix_cache.datasets.format.rows import read_rows
from ais_bench_prefix_cache.datasets.format.writing import claimed, update_analysis
from ais_bench_prefix_cache.datasets.kinds import verify_data_set
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError, Problem, SnapshotError
from ais_bench_prefix_cache.foundation.log_files import run_log
from ais_bench_prefix_cache.foundation.strict_json import read_file
from ais_bench_prefix_cache.foundation.telling import Note, no_note
from ais_bench_prefix_cache.running.recounting import recount, with_analysis_of
from ais_bench_prefix_cache.scenario.effective import service_from_effective, validation_from_effective


def analyze_saved(
    manifest: Path,
    *,
    baseline: Sequence[Path],
    after: Sequence[Path],
    run: RunDirectory | None = None,
    note: Note = no_note,
) -> dict[str, Any]:
    """Verify the data set and compare two looks at the counters with its theory; one file for each port.

    The data set's ``analysis.json`` is replaced; with ``run``, whose configuration is taken, nothing is written.
    ``note`` hears what explains why two looks cannot be compared.

    Raises:
        ArtifactError, SnapshotError: the files are damaged, in use, or cannot be compared.
    """
    looks = _read_both(baseline, after)
    data_set = with_analysis_of(verify_data_set(manifest), run)
    lacking = recount(data_set, run)
    if lacking:
        note("not proven of what an earlier run left: " + "; ".join(lacking))
    with claimed(data_set.paths.directory) as mine, run_log(RunPaths.of_manifest(manifest).log("validate")) as log:
        if not mine:
            raise ArtifactError.of(
                Code.DIRECTORY_IN_USE,
                str(data_set.paths.directory),
                "another command is working with this data set",
                hint="Wait until it has finished.",
            )
        log.info("analyze: %s rows verified; baseline %s, after %s", data_set.rows, looks[0].names, looks[1].names)
        effective = _effective_config(run, data_set.manifest)
        theory = data_set.kind.hits_are_known
        document = analyze_data_set(
            data_set,
            RequestColumns.from_rows(read_rows(data_set.paths.full)) if theory else None,
            *looks,
            service=service_from_effective(effective),
            validation=validation_from_effective(effective),
            status="analyzed",
            note=note,
        )
        if run is None:
            document = update_analysis(data_set.paths.analysis, document)
        actual = document["actual"]
        log.info(
            "analyze: %s hits of %s queries counted, %s of %s expected; warnings %s, findings %s",
            actual["global_hits"],
            actual["global_queries"],
            actual.get("expected_hits"),
            actual.get("expected_queries"),
            [warning["code"] for warning in document["warnings"]],
            [finding["code"] for finding in document["findings"]],
        )
    return document


def texts_of_run(run: RunDirectory) -> tuple[list[Path], list[Path]]:
    """The texts of both looks that a run left. Raises ArtifactError where they are not there."""
    baseline, after = (sorted(run.path.glob(f"metrics.{look}.*.txt")) for look in ("baseline", "after"))
    if not baseline or not after:
        raise ArtifactError.of(Code.MISSING_FILE, str(run.path), "the run left no texts of both looks")
    return baseline, after


def _effective_config(run: RunDirectory | None, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was sent: a run's own configuration, else what the data set was prepared with."""
    if run is None:
        config: Mapping[str, Any] = manifest["effective_config"]
        return config
    return read_document(run.config, what="configuration of the run")[0]


def _read_both(baseline: Sequence[Path], after: Sequence[Path]) -> tuple[SnapshotTexts, SnapshotTexts]:
    """The texts of both looks. Raises SnapshotError with every file that is missing, unreadable or not text."""
    problems: list[Problem] = []

    def read(paths: Sequence[Path]) -> SnapshotTexts:
        texts = []
        for path in paths:
            try:
                texts.append(decode_exposition(read_file(path, "the metrics text", SnapshotError), str(path)))
            except SnapshotError as error:
                problems.extend(error.problems)
        return SnapshotTexts(tuple(texts), tuple(str(path) for path in paths))

    for option, paths in (("--baseline", baseline), ("--after", after)):
        seen: set[str] = set()
        for path in paths:
            if os.path.realpath(path) in seen:
                problems.append(
                    Problem(
                        Code.DUPLICATE_KEY,
                        option,
                        f"{path} is given twice, so that its engines would count twice",
                        allowed="one text of each port",
                    )
                )
            seen.add(os.path.realpath(path))
    both = read(baseline), read(after)
    if len(baseline) != len(after):
        problems.append(
            Problem(
                Code.SNAPSHOT_COUNT,
                "--baseline, --after",
                f"{len(baseline)} and {len(after)} files were given",
                allowed="the same number for both: one, or one for each port",
            )
        )
    if problems:
        raise SnapshotError(problems)
    return both
