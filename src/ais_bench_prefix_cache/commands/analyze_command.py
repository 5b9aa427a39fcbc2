"""``analyze``: theory against two saved ``/metrics`` texts, without a server."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ais_bench_prefix_cache.foundation.codes import Code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ais_bench_prefix_cache.analysis.analysis_document import SnapshotTexts

DESCRIPTION = (
    "Verify a data set, take the difference of two Prometheus texts of the server's /metrics, compare it with the "
    "theory, say why they differ, and write the result into the data set's analysis.json. Sends nothing."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``analyze``."""
    parser.add_argument("--manifest", type=Path, required=True, metavar="FILE", help="manifest of a prepared data set")
    parser.add_argument(
        "--baseline",
        type=Path,
        required=True,
        action="append",
        metavar="FILE",
        help="text of /metrics from before the first request; once for each port, in the order of the ranks",
    )
    parser.add_argument(
        "--after",
        type=Path,
        required=True,
        action="append",
        metavar="FILE",
        help="text of /metrics from after the last request; once for each port, in the order of the ranks",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Run ``analyze``; returns the exit code."""
    from ais_bench_prefix_cache.analysis.analysis_document import analyze_run, explain_unusable
    from ais_bench_prefix_cache.analysis.image_analysis import analyze_image_run
    from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
    from ais_bench_prefix_cache.commands.console import note, print_json, run_log, warn
    from ais_bench_prefix_cache.datasets.format.paths import RunPaths
    from ais_bench_prefix_cache.datasets.format.rows import read_rows
    from ais_bench_prefix_cache.datasets.format.writing import claimed, update_analysis
    from ais_bench_prefix_cache.datasets.kinds import verify_data_set
    from ais_bench_prefix_cache.foundation.errors import ArtifactError, SnapshotError
    from ais_bench_prefix_cache.scenario.effective import service_from_effective, validation_from_effective

    baseline, after = _read_both(arguments.baseline, arguments.after)
    data_set = verify_data_set(arguments.manifest)
    with (
        claimed(data_set.paths.directory) as mine,
        run_log(RunPaths.of_manifest(arguments.manifest).log("validate")) as log,
    ):
        if not mine:
            raise ArtifactError.of(
                Code.DIRECTORY_IN_USE,
                str(data_set.paths.directory),
                "another command is working with this data set",
                hint="Wait until it has finished.",
            )
        log.info("analyze: %s rows verified; baseline %s, after %s", data_set.rows, baseline.names, after.names)
        effective = data_set.manifest["effective_config"]
        service, validation = service_from_effective(effective), validation_from_effective(effective)
        images = not data_set.kind.hits_are_known
        try:
            if images:
                document = analyze_image_run(
                    previous_analysis=data_set.analysis,
                    baseline=baseline,
                    after=after,
                    service=service,
                    status="analyzed",
                )
            else:
                document = analyze_run(
                    manifest=data_set.manifest,
                    previous_analysis=data_set.analysis,
                    baseline=baseline,
                    after=after,
                    service=service,
                    validation=validation,
                    status="analyzed",
                    columns=RequestColumns.from_rows(read_rows(data_set.paths.full)),
                )
        except SnapshotError as error:
            if images:
                raise
            for finding in explain_unusable(
                error,
                manifest=data_set.manifest,
                previous_analysis=data_set.analysis,
                baseline=baseline,
                after=after,
                service=service,
            ):
                note(f"finding [{finding.code}] {finding.message}\n    {finding.remedy}")
            raise
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
    for warning in document["warnings"]:
        warn(warning)
    for entry in document["findings"]:
        note(f"{entry['severity']} finding [{entry['code']}] {entry['message']}\n    {entry['remedy']}")
    print_json(document)
    return 0


def _read_both(baseline: Sequence[Path], after: Sequence[Path]) -> tuple[SnapshotTexts, SnapshotTexts]:
    """The texts of both looks. Raises SnapshotError with every file that is missing, unreadable or not text."""
    from ais_bench_prefix_cache.analysis.analysis_document import SnapshotTexts
    from ais_bench_prefix_cache.counters.exposition import decode_exposition
    from ais_bench_prefix_cache.foundation.errors import Problem, SnapshotError

    problems: list[Problem] = []

    def read(paths: Sequence[Path]) -> SnapshotTexts:
        texts = []
        for path in paths:
            try:
                texts.append(decode_exposition(path.read_bytes(), str(path)))
            except OSError as error:
                problems.append(
                    Problem(Code.UNREADABLE_FILE, str(path), f"the file cannot be read: {error.strerror or error}")
                )
            except SnapshotError as error:
                problems.extend(error.problems)
        return SnapshotTexts(tuple(texts), tuple(str(path) for path in paths))

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
