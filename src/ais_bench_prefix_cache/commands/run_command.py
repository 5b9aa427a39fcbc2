"""``run``: send a prepared data set through AISBench and compare theory with the server's counters."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ais_bench_prefix_cache.commands.console import note, progress_bar, run_log, warn
from ais_bench_prefix_cache.commands.quiet_start import load_quietly
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import (
    EXIT_OK,
    ArtifactError,
    PrefixCacheError,
    ScenarioError,
    Terminated,
    os_error_problem,
)

DESCRIPTION = (
    "Verifies the newest data set that was prepared from this Scenario, checks and probes the service, empties and "
    "warms its prefix caches and proves both, lets AISBench send the formal requests, and writes the comparison of "
    "theory and counters into analysis.json."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``run``."""
    parser.add_argument("--scenario", type=Path, required=True, metavar="FILE", help="Scenario file")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="AISBench config template for this run, instead of aisbench.config (text data sets only)",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Run ``run``; returns the exit code."""
    from ais_bench_prefix_cache.datasets.kinds import kind_named
    from ais_bench_prefix_cache.reporting.summary_table import render_summary_table
    from ais_bench_prefix_cache.running.phases import Phases
    from ais_bench_prefix_cache.running.prepared_data import find_prepared
    from ais_bench_prefix_cache.running.run_sequence import run_benchmark
    from ais_bench_prefix_cache.scenario.loading import load_scenario

    # Text and images have rules of their own: which of them hold, the prepared manifest says.
    found, notes = find_prepared(load_scenario(arguments.scenario, rules=None))
    kind = kind_named(found.document["benchmark_mode"])
    scenario = load_scenario(arguments.scenario, rules=kind.scenario_rules)
    if not kind.takes_template and arguments.config is not None:
        raise ScenarioError.of(
            Code.CONFIG_IS_FOR_TEXT,
            "--config",
            "the prepared data set has images, which are sent with the built-in template",
            hint="Leave --config out.",
        )
    for text in notes:
        note(f"note: {text}")
    with run_log(found.paths.log("run")) as log:
        phases = Phases(log, note)
        template = None if arguments.config is None else arguments.config.absolute()
        analysis_before = _inode(found.paths.analysis)
        try:
            outcome = run_benchmark(
                scenario,
                found.paths.manifest,
                phases=phases,
                bar=progress_bar,
                load=load_quietly,
                template_path=template,
            )
        except (PrefixCacheError, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            failure = error if isinstance(error, PrefixCacheError) else ArtifactError(os_error_problem(error))
            # A log that cannot be written any more may fail the run after its analysis has been replaced.
            state = "unchanged" if _inode(found.paths.analysis) == analysis_before else "complete"
            failure.closing = f"run failed in the phase {phases.current}; {found.paths.analysis.name} is {state}"
            raise failure from None
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"run interrupted in the phase {phases.current}") from None
        except Terminated:
            raise Terminated(f"run terminated in the phase {phases.current}") from None
        analysis = outcome.analysis
        result = outcome.aisbench
        print(f"Prefix Cache Results of task [{result.model_abbr}/{result.dataset_abbr}]:")
        print(render_summary_table(analysis))
        sys.stdout.flush()
        for warning in analysis["warnings"]:
            warn(warning)
            log.warning("[%s] %s", warning["code"], warning["message"])
        for finding in analysis["findings"]:
            note(f"finding [{finding['code']}] {finding['message']}\n    {finding['remedy']}")
            log.warning("[%s] %s", finding["code"], finding["message"])
        print(outcome.analysis_path, flush=True)
        log.info("complete: %s", outcome.analysis_path)
    return EXIT_OK


def _inode(path: Path) -> int | None:
    """Tells a replaced file from the one before; None where there is none."""
    try:
        return path.stat().st_ino
    except OSError:
        return None
