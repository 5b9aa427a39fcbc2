"""``run``: send a prepared data set through AISBench and compare theory with the server's counters."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ais_bench_prefix_cache.commands.argument_types import key_and_value
from ais_bench_prefix_cache.commands.choosing import add_settings
from ais_bench_prefix_cache.commands.console import note, progress_bar, show, warn
from ais_bench_prefix_cache.commands.quiet_start import load_quietly, stdout_to_stderr
from ais_bench_prefix_cache.foundation.errors import EXIT_OK

DESCRIPTION = (
    "Verifies the newest data set that fits this Scenario (and prepares one where none does), checks and probes the "
    "service, empties and warms its prefix caches and proves both, lets AISBench send the formal requests, and writes "
    "the comparison of theory and counters into analysis.json. Only fields that shape a data set ask for a new one: "
    "URLs, concurrency, rate and the like may differ from run to run. What a run leaves is kept in a directory of its "
    "own; `runs` lists them."
)
EXAMPLES = (
    "run --scenario scenario.json",
    "run --scenario scenario.json --set aisbench.model.batch_size=32 --label build=new",
    "run --scenario scenario.json --set aisbench.model.request_rate=4",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the Scenario, its changes, labels and template."""
    parser.add_argument("--scenario", type=Path, required=True, metavar="FILE", help="Scenario file")
    add_settings(parser)
    parser.add_argument(
        "--label",
        action="append",
        type=key_and_value,
        default=[],
        dest="labels",
        metavar="KEY=VALUE",
        help="a note that is kept with the run and listed by `runs`; may be given several times",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="AISBench config template for this run, instead of aisbench.config (text data sets only)",
    )
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="start the load generators on the Ray cluster at host:port (auto: that of this machine), as "
        "aisbench.load.engine and address do",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Send the data set and print what was counted; returns the exit code."""
    from ais_bench_prefix_cache.analysis.performance import PERFORMANCE_KEY
    from ais_bench_prefix_cache.reporting.performance_tables import render_performance_tables
    from ais_bench_prefix_cache.reporting.summary_table import render_summary_table
    from ais_bench_prefix_cache.running.scenario_run import run_scenario

    with stdout_to_stderr():  # A tokenizer that is sent to workers may print.
        outcome = run_scenario(
            arguments.scenario,
            settings=[*arguments.settings, *_ray_settings(arguments.ray)],
            labels=dict(arguments.labels),
            template_path=arguments.config,
            load=load_quietly,
            note=note,
            bar=progress_bar,
        )
    analysis = outcome.analysis
    task = f"{outcome.aisbench.model_abbr}/{outcome.aisbench.dataset_abbr}"
    show(f"Prefix Cache Results of task [{task}]:")
    show(render_summary_table(analysis))
    if PERFORMANCE_KEY in analysis:
        show(f"Performance Results of task [{task}]:")
        show(render_performance_tables(analysis[PERFORMANCE_KEY]))
    sys.stdout.flush()
    for warning in analysis["warnings"]:
        warn(warning)
    for finding in analysis["findings"]:
        note(f"finding [{finding['code']}] {finding['message']}\n    {finding['remedy']}")
    note(
        f"kept: {outcome.directory.path}\n"
        f"next: ais-bench-prefix-cache report --manifest {outcome.data_set.manifest} --html report.html"
    )
    show(str(outcome.analysis_path))
    return EXIT_OK


def _ray_settings(address: str | None) -> list[str]:
    return [] if address is None else ["aisbench.load.engine=ray", f"aisbench.load.address={address}"]
