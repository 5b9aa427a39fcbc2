"""``analyze``: theory against two saved ``/metrics`` texts, without a server."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.commands.choosing import Chosen, add_choice, chosen
from ais_bench_prefix_cache.commands.console import note, print_json, warn
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError, PrefixCacheError, Problem, SnapshotError
from ais_bench_prefix_cache.foundation.log_files import run_log

if TYPE_CHECKING:
    from ais_bench_prefix_cache.analysis.analysis_document import SnapshotTexts

DESCRIPTION = (
    "Verify a data set, take the difference of two Prometheus texts of the server's /metrics, compare it with the "
    "theory, say why they differ, and write the result into the data set's analysis.json. With --run the texts that "
    "the run left are read, and nothing is written. Sends nothing."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the data set or run and the texts of both looks."""
    add_choice(parser, what="analyze")
    parser.add_argument(
        "--baseline",
        type=Path,
        action="append",
        metavar="FILE",
        help="text of /metrics from before the first request; once for each port, in the order of the ranks",
    )
    parser.add_argument(
        "--after",
        type=Path,
        action="append",
        metavar="FILE",
        help="text of /metrics from after the last request; once for each port, in the order of the ranks",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Compare, write the analysis, print it; returns the exit code."""
    from ais_bench_prefix_cache.analysis.data_set_analysis import analyze_data_set
    from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
    from ais_bench_prefix_cache.datasets.format.rows import read_rows
    from ais_bench_prefix_cache.datasets.format.writing import claimed, update_analysis
    from ais_bench_prefix_cache.datasets.kinds import verify_data_set
    from ais_bench_prefix_cache.scenario.effective import service_from_effective, validation_from_effective

    choice = chosen(arguments)
    baseline, after = _read_both(*_looks(arguments, choice))
    data_set = verify_data_set(choice.manifest)
    with (
        claimed(data_set.paths.directory) as mine,
        run_log(RunPaths.of_manifest(choice.manifest).log("validate")) as log,
    ):
        if not mine:
            raise ArtifactError.of(
                Code.DIRECTORY_IN_USE,
                str(data_set.paths.directory),
                "another command is working with this data set",
                hint="Wait until it has finished.",
            )
        log.info("analyze: %s rows verified; baseline %s, after %s", data_set.rows, baseline.names, after.names)
        effective = _effective_config(choice, data_set.manifest)
        theory = data_set.kind.hits_are_known
        document = analyze_data_set(
            data_set,
            RequestColumns.from_rows(read_rows(data_set.paths.full)) if theory else None,
            baseline,
            after,
            service=service_from_effective(effective),
            validation=validation_from_effective(effective),
            status="analyzed",
            note=note,
        )
        if choice.run is None:
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


def _looks(arguments: argparse.Namespace, choice: Chosen) -> tuple[Sequence[Path], Sequence[Path]]:
    """The files of both looks: those that were given, or those that the run left."""
    if (arguments.baseline is None) != (arguments.after is None) or (arguments.baseline is None and choice.run is None):
        message = "the texts of both looks are needed, except with --run, which has its own"
        raise PrefixCacheError.of(Code.WRONG_OPTION, "--baseline, --after", message)
    if arguments.baseline is not None:
        return arguments.baseline, arguments.after
    assert choice.run is not None
    baseline, after = (sorted(choice.run.path.glob(f"metrics.{look}.*.txt")) for look in ("baseline", "after"))
    if not baseline or not after:
        raise ArtifactError.of(Code.MISSING_FILE, str(choice.run.path), "the run left no texts of both looks")
    return baseline, after


def _effective_config(choice: Chosen, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the run was sent with: a run's own, else what the data set was prepared with."""
    from ais_bench_prefix_cache.datasets.format.documents import read_document

    if choice.run is None:
        config: Mapping[str, Any] = manifest["effective_config"]
        return config
    return read_document(choice.run.config, what="configuration of the run")[0]


def _read_both(baseline: Sequence[Path], after: Sequence[Path]) -> tuple[SnapshotTexts, SnapshotTexts]:
    """The texts of both looks. Raises SnapshotError with every file that is missing, unreadable or not text."""
    from ais_bench_prefix_cache.analysis.analysis_document import SnapshotTexts
    from ais_bench_prefix_cache.counters.exposition import decode_exposition
    from ais_bench_prefix_cache.foundation.strict_json import read_file

    problems: list[Problem] = []

    def read(paths: Sequence[Path]) -> SnapshotTexts:
        texts = []
        for path in paths:
            try:
                texts.append(decode_exposition(read_file(path, "the metrics text", SnapshotError), str(path)))
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
