"""``compare``: set two runs or sweeps beside each other."""

from __future__ import annotations

import argparse
from pathlib import Path

from ais_bench_prefix_cache.commands.argument_types import positive_number
from ais_bench_prefix_cache.commands.console import note, print_json
from ais_bench_prefix_cache.foundation.errors import EXIT_CONDITION_MET, EXIT_NOT_JUDGED, EXIT_OK

DESCRIPTION = (
    "Compare two runs, or two sweeps point by point: the differences of medians and tails with intervals, and for each "
    "figure a verdict: better, worse, no difference shown, or too few data. With three runs or more on both sides runs "
    "are what varies; a single run needs a large difference. Says where the two did not send the same requests."
)
EXAMPLES = (
    "compare outputs/job_20260825_123456/runs/20260825_130501 outputs/job_20260825_123456/runs/20260825_140212",
    "compare outputs/before_sweep_20260825_130501 outputs/after_sweep_20260826_130501 --fail-if 'ttft_p99 > +5%'",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare both sides, what is judged, and what must not be."""
    parser.add_argument("baseline", type=Path, metavar="A", help="the baseline: the directory of a run or a sweep")
    parser.add_argument("candidate", type=Path, metavar="B", help="the candidate: likewise")
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="CONDITION",
        help="end with exit code 1 if this is shown, as in 'ttft_p99 > +5%%' (the whole interval lies beyond), and "
        "with 5 if there are too few data to tell; may be given several times",
    )
    parser.add_argument(
        "--figures",
        type=lambda text: text.split(","),
        metavar="LIST",
        help="what to compare: ttft, tpot or e2el with a percentile or mean, as in ttft_p99,e2el_mean, and "
        "requests_per_s (default: these at P50, P90 or P99)",
    )
    parser.add_argument(
        "--threshold", type=positive_number, metavar="PERCENT", help="the smallest change that counts (default: 5)"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a self-contained web page")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")


def execute(arguments: argparse.Namespace) -> int:
    """Print tables or JSON, and write a page where asked; returns the exit code, which the conditions decide."""
    from ais_bench_prefix_cache.comparisons.comparing import METRICS, THRESHOLD, compare
    from ais_bench_prefix_cache.comparisons.comparison_page import (
        HEADER,
        TURN_HEADER,
        comparison_document,
        difference_rows,
        how_judged,
        runs_sentence,
        turn_rows,
        write_comparison_page,
    )
    from ais_bench_prefix_cache.foundation.grid_table import render_grid

    found = compare(
        arguments.baseline,
        arguments.candidate,
        metrics=arguments.figures or METRICS,
        fail_if=arguments.fail_if,
        threshold=THRESHOLD if arguments.threshold is None else arguments.threshold / 100,
    )
    if arguments.html is not None:
        write_comparison_page(arguments.html, found)
        note(f"written: {arguments.html}")
    if arguments.json:
        print_json(comparison_document(found))
    else:
        for point in found.points:
            print(f"{point.name}: {runs_sentence(point)}" if point.settings else runs_sentence(point))
            print(render_grid(HEADER, difference_rows(point.differences)))
            if point.turns:
                print(render_grid(TURN_HEADER, turn_rows(point.turns)))
        print(f"Verdict: {found.verdict}")
    for field, (one, other) in found.differing.items():
        note(f"note: {field} differs: {one} against {other}")
    for text in found.unmatched:
        note(f"note: not compared: {text}")
    for each in {(each.metric, each.reason): each for each in found.differences if each.reason}.values():
        note(f"note: {each.metric}: too few data: {each.reason}")
    note(how_judged(found))
    for condition, state in found.conditions:
        note(f"condition {condition.text}: {state}")
    return {"met": EXIT_CONDITION_MET, "not judged": EXIT_NOT_JUDGED}.get(found.state(), EXIT_OK)
