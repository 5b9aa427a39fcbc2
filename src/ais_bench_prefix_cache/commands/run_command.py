"""``run``: send a prepared data set through AISBench and compare theory with the server's counters."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ais_bench_prefix_cache.commands.argument_types import key_and_value
from ais_bench_prefix_cache.commands.choosing import add_settings
from ais_bench_prefix_cache.commands.console import note, progress_bar, warn
from ais_bench_prefix_cache.commands.quiet_start import load_quietly, stdout_to_stderr
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import (
    EXIT_OK,
    ArtifactError,
    PrefixCacheError,
    ScenarioError,
    Terminated,
    os_error_problem,
)
from ais_bench_prefix_cache.foundation.log_files import run_log

DESCRIPTION = (
    "Verifies the newest data set that fits this Scenario (and prepares one where none does), checks and probes the "
    "service, empties and warms its prefix caches and proves both, lets AISBench send the formal requests, and writes "
    "the comparison of theory and counters into analysis.json. Only fields that shape a data set ask for a new one: "
    "URLs, concurrency, rate and the like may differ from run to run. What a run leaves is kept in a directory of its "
    "own; `runs` lists them."
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


def execute(arguments: argparse.Namespace) -> int:
    """Send the data set and print what was counted; returns the exit code."""
    from ais_bench_prefix_cache.analysis.performance import PERFORMANCE_KEY
    from ais_bench_prefix_cache.datasets.kinds import kind_named
    from ais_bench_prefix_cache.reporting.performance_tables import render_performance_tables
    from ais_bench_prefix_cache.reporting.summary_table import render_summary_table
    from ais_bench_prefix_cache.running.phases import Phases
    from ais_bench_prefix_cache.running.prepared_data import find_or_prepare
    from ais_bench_prefix_cache.running.run_sequence import run_benchmark
    from ais_bench_prefix_cache.scenario.loading import load_scenario

    # Text and images have rules of their own: which of them hold, the prepared manifest says.
    with stdout_to_stderr():
        found = find_or_prepare(
            arguments.scenario, settings=arguments.settings, load=load_quietly, note=note, bar=progress_bar
        )
    kind = kind_named(found.document["benchmark_mode"])
    scenario = load_scenario(arguments.scenario, rules=kind.scenario_rules, settings=arguments.settings)
    if not kind.takes_template and arguments.config is not None:
        raise ScenarioError.of(
            Code.CONFIG_IS_FOR_TEXT,
            "--config",
            "the prepared data set has images, which are sent with the built-in template",
            hint="Leave --config out.",
        )
    with run_log(found.paths.log("run")) as log:
        phases = Phases(log, note)
        template = None if arguments.config is None else arguments.config.absolute()
        analysis_before = _inode(found.paths.analysis)

        def state() -> str:
            # A log that cannot be written any more may fail the run after its analysis has been replaced.
            unchanged = _inode(found.paths.analysis) == analysis_before
            return f"{found.paths.analysis.name} is {'unchanged' if unchanged else 'complete'}"

        try:
            outcome = run_benchmark(
                scenario,
                found.paths.manifest,
                phases=phases,
                bar=progress_bar,
                load=load_quietly,
                template_path=template,
                labels=dict(arguments.labels),
            )
        except (PrefixCacheError, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            failure = error if isinstance(error, PrefixCacheError) else ArtifactError(os_error_problem(error))
            failure.closing = f"run failed in the phase {phases.current}; {state()}"
            raise failure from None
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"run interrupted in the phase {phases.current}; {state()}") from None
        except Terminated:
            raise Terminated(f"run terminated in the phase {phases.current}; {state()}") from None
        analysis = outcome.analysis
        result = outcome.aisbench
        print(f"Prefix Cache Results of task [{result.model_abbr}/{result.dataset_abbr}]:")
        print(render_summary_table(analysis))
        if PERFORMANCE_KEY in analysis:
            print(f"Performance Results of task [{result.model_abbr}/{result.dataset_abbr}]:")
            print(render_performance_tables(analysis[PERFORMANCE_KEY]))
        sys.stdout.flush()
        for warning in analysis["warnings"]:
            warn(warning)
            log.warning("[%s] %s", warning["code"], warning["message"])
        for finding in analysis["findings"]:
            note(f"finding [{finding['code']}] {finding['message']}\n    {finding['remedy']}")
            log.warning("[%s] %s", finding["code"], finding["message"])
        note(
            f"kept: {outcome.directory.path}\n"
            f"next: ais-bench-prefix-cache report --manifest {found.paths.manifest} --html report.html"
        )
        print(outcome.analysis_path, flush=True)
        log.info("complete: %s", outcome.analysis_path)
    return EXIT_OK


def _inode(path: Path) -> int | None:
    """Tells a replaced file from the one before; None where there is none."""
    try:
        return path.stat().st_ino
    except OSError:
        return None
