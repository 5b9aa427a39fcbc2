"""``analyze``: theory against two saved ``/metrics`` texts, without a server."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ais_bench_prefix_cache.commands.choosing import Chosen, add_choice, chosen
from ais_bench_prefix_cache.commands.console import note, print_json, warn
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import PrefixCacheError

DESCRIPTION = (
    "Verify a data set, take the difference of two Prometheus texts of the server's /metrics, compare it with the "
    "theory, say why they differ, and write the result into the data set's analysis.json. With --run the texts that "
    "the run left are read, and nothing is written. Sends nothing."
)
EXAMPLES = (
    "analyze --scenario scenario.json --baseline before.prom --after after.prom",
    "analyze --run outputs/job_20260825_123456/runs/20260825_130501",
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
    from ais_bench_prefix_cache.running.reanalysis import analyze_saved

    choice = chosen(arguments)
    baseline, after = _looks(arguments, choice)
    document = analyze_saved(choice.manifest, run=choice.run, baseline=baseline, after=after, note=note)
    for warning in document["warnings"]:
        warn(warning)
    for entry in document["findings"]:
        note(f"{entry['severity']} finding [{entry['code']}] {entry['message']}\n    {entry['remedy']}")
    print_json(document)
    return 0


def _looks(arguments: argparse.Namespace, choice: Chosen) -> tuple[Sequence[Path], Sequence[Path]]:
    """The files of both looks: those that were given, or those that the run left."""
    from ais_bench_prefix_cache.running.reanalysis import texts_of_run

    if (arguments.baseline is None) != (arguments.after is None) or (arguments.baseline is None and choice.run is None):
        message = "the texts of both looks are needed, except with --run, which has its own"
        raise PrefixCacheError.of(Code.WRONG_OPTION, "--baseline, --after", message)
    if arguments.baseline is not None:
        return arguments.baseline, arguments.after
    assert choice.run is not None
    return texts_of_run(choice.run)
