"""``sweep``: run a Scenario at many points."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ais_bench_prefix_cache.commands.argument_types import integer, positive_integer
from ais_bench_prefix_cache.commands.console import note, print_json, progress_bar
from ais_bench_prefix_cache.commands.quiet_start import load_quietly, stdout_to_stderr
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import EXIT_OK, ScenarioError
from ais_bench_prefix_cache.foundation.grid_table import render_grid
from ais_bench_prefix_cache.foundation.telling import no_bar

if TYPE_CHECKING:
    from ais_bench_prefix_cache.sweeps.preview import Preview
    from ais_bench_prefix_cache.sweeps.results import Sweep

DESCRIPTION = (
    "Run a Scenario at every combination of its fields' values, several times if wanted. Data sets are prepared once "
    "and reused; every run empties, warms and proves the cache. A run that fails is recorded and the others go on. "
    "Everything is kept in one directory: a table (JSON Lines and CSV, a row a run), a page and every run. "
    "The last line on stdout is the path of the page."
)
EXAMPLES = (
    "sweep --scenario scenario.json --set prefix_cache.target_hit_rate=0:0.9:0.3 --repeat 3",
    "sweep --scenario scenario.json --set prefix_cache.target_hit_rate=0,0.5 --set aisbench.model.batch_size=1,8",
    "sweep --scenario scenario.json --set aisbench.model.request_rate=1,2,4 --dry-run",
    "sweep --resume outputs/job_sweep_20260825_130501",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the Scenario, the points, and how often and in which order they are run."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--scenario", type=Path, metavar="FILE", help="the Scenario (JSON)")
    what.add_argument(
        "--resume",
        type=Path,
        metavar="DIR",
        help="go on with the sweep in this directory: make the runs that are missing or failed",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="FIELD=VALUES",
        help="a field of the Scenario and its values: a list (aisbench.model.batch_size=1,8,32), a range with its end "
        "(prefix_cache.target_hit_rate=0:0.9:0.1) or one value; may be given several times",
    )
    parser.add_argument(
        "--file", type=Path, metavar="FILE", help="a sweep file (JSON): set, points, repeat, shuffle; options win"
    )
    parser.add_argument("--repeat", type=positive_integer, metavar="N", help="run every point N times (default: 1)")
    parser.add_argument(
        "--shuffle",
        type=integer,
        metavar="SEED",
        help="a random order of all runs, so that a drift of the server does not look like an effect (default: all "
        "points once, then all again)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="where the sweep is kept (default: <run.output_dir>-sweep_<time stamp>)",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the points and an estimate; send nothing")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")


def execute(arguments: argparse.Namespace) -> int:
    """Run, resume or preview the sweep; returns the exit code: of the first run that failed, if one did."""
    from ais_bench_prefix_cache.sweeps.plan import SweepFile, planned_points, read_sweep_file
    from ais_bench_prefix_cache.sweeps.preview import preview
    from ais_bench_prefix_cache.sweeps.sweep_sequence import begin_sweep, plan_sweep, resume_sweep

    # Into a file bars of many runs would only be noise: there a line before and after each run must do.
    bar = progress_bar if sys.stderr.isatty() else no_bar
    if arguments.resume is not None:
        _refuse_beside_resume(arguments)
        with stdout_to_stderr():
            found = resume_sweep(arguments.resume, load=load_quietly, note=note, bar=bar)
        return _show(found, as_json=arguments.json)
    file = SweepFile({}) if arguments.file is None else read_sweep_file(arguments.file)
    plan = plan_sweep(
        arguments.scenario,
        planned_points(arguments.settings, file),
        arguments.repeat or file.repeat or 1,
        file.shuffle if arguments.shuffle is None else arguments.shuffle,
    )
    if arguments.dry_run:
        _show_preview(preview(plan), repeat=plan.repeat, as_json=arguments.json)
        return EXIT_OK
    with stdout_to_stderr():
        found = begin_sweep(plan, arguments.output, load=load_quietly, note=note, bar=bar)
    return _show(found, as_json=arguments.json)


def _refuse_beside_resume(arguments: argparse.Namespace) -> None:
    others = {
        "--set": arguments.settings,
        "--file": arguments.file,
        "--repeat": arguments.repeat,
        "--shuffle": arguments.shuffle is not None,
        "--output": arguments.output,
        "--dry-run": arguments.dry_run,
    }
    given = [name for name, value in others.items() if value]
    if given:
        hint = "A sweep goes on as it was planned. Leave them out, or begin a new sweep."
        raise ScenarioError.of(Code.WRONG_OPTION, "--resume", f"does not go with {', '.join(given)}", hint=hint)


def _show(found: Sweep, *, as_json: bool) -> int:
    from ais_bench_prefix_cache.sweeps.results import sweep_document
    from ais_bench_prefix_cache.sweeps.sweep_directory import SweepDirectory
    from ais_bench_prefix_cache.sweeps.sweep_page import cost_rows, interval_note

    files = SweepDirectory(found.directory)
    if as_json:
        print_json(sweep_document(found))
    else:
        print(_table(found))
        for point in found.points:
            if point.complete and not point.as_planned:
                print(f"{point.name}: not as planned, theory {_percent(point.theoretical_hit_rate)}")
        for line, cost in cost_rows(found):
            print(f"{line}: {cost}")
        note(interval_note(found))
        note(f"table: {files.csv}")
        print(files.page if files.page.is_file() else files.table)
    if found.failed:
        note(f"{len(found.failed)} runs failed; once more: ais-bench-prefix-cache sweep --resume {found.directory}")
        return int(found.failed[0]["exit_code"])
    return EXIT_OK


def _table(found: Sweep) -> str:
    """A row a point, a column a field that varies."""
    from ais_bench_prefix_cache.foundation.findings import shown as shown_value
    from ais_bench_prefix_cache.reporting.performance_tables import shown

    fields = list(dict.fromkeys(field for point in found.points for field in point.settings))
    names = [field.rpartition(".")[2] for field in fields] or ["Point"]
    header = (*names, "Runs", "Counted", "TTFT ms", "P99", "Req/s")
    rows = []
    for point in found.points:
        figures = [point.figures.get(name) for name in ("ttft_p50", "ttft_p99", "requests_per_s")]
        values = [point.settings.get(field, "") for field in fields] or [point.name]
        rows.append(
            (
                *(value if isinstance(value, str) else shown_value(value) for value in values),
                f"{point.complete}/{found.plan.repeat}",
                _percent(point.counted_hit_rate),
                *("–" if figure is None else shown(figure.value) for figure in figures),
            )
        )
    return render_grid(header, rows)


def _show_preview(found: Preview, *, repeat: int, as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        print_json(asdict(found))
        return
    rows = [
        (
            point.name,
            str(point.requests),
            str(point.batch_size),
            _percent(point.theoretical_hit_rate),
            "there" if point.prepared else "to make",
        )
        for point in found.points
    ]
    print(render_grid(("Point", "Requests", "Batch", "Theory", "Data set"), rows))
    for point in found.points:
        if point.problem is not None:
            print(f"{point.name} cannot be planned: {point.problem}")
    minutes = found.runs * found.seconds_a_run / 60
    basis = f"as {found.runs_seen} earlier runs took" if found.runs_seen else "at least, without the requests"
    print(
        f"{found.runs} runs ({len(found.points)} points, {repeat} each), "
        f"{found.data_sets_to_prepare} data sets to make, "
        f"about {minutes:.0f} min ({found.seconds_a_run:.0f} s a run, {basis})"
    )


def _percent(rate: float | None) -> str:
    return "–" if rate is None else f"{100 * rate:.2f} %"
