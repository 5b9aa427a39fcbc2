"""``inspect``: what a Scenario would give, from its numbers alone."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path

from ais_bench_prefix_cache.commands.choosing import add_settings

DESCRIPTION = (
    "Plan a Scenario and print a JSON summary: requested, effective and theoretical hit rate, the reachable range, "
    "groups, lengths and cold routes. Needs no tokenizer, corpus or service. A later `prepare` of the same data set "
    "continues in the directory that is made here."
)
EXAMPLES = (
    "inspect --scenario scenario.json",
    "inspect --scenario scenario.json --set prefix_cache.target_hit_rate=0.8",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the Scenario and what replaces its fields."""
    parser.add_argument("--scenario", type=Path, required=True, metavar="FILE", help="the Scenario (JSON)")
    add_settings(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Plan, write log and manifest, print the summary; returns the exit code."""
    from ais_bench_prefix_cache.aisbench.config_rendering import own_template
    from ais_bench_prefix_cache.commands.console import note, print_json, progress_bar, warn
    from ais_bench_prefix_cache.datasets.format.manifest import inspected_manifest
    from ais_bench_prefix_cache.datasets.format.paths import RunPaths
    from ais_bench_prefix_cache.datasets.format.writing import write_document
    from ais_bench_prefix_cache.datasets.kinds import kind_named
    from ais_bench_prefix_cache.foundation.errors import AISBenchError
    from ais_bench_prefix_cache.foundation.log_files import run_log
    from ais_bench_prefix_cache.scenario.loading import load_scenario

    scenario = load_scenario(arguments.scenario, rules=None, settings=arguments.settings)
    kind = kind_named(scenario.benchmark_mode)
    scenario = load_scenario(arguments.scenario, rules=kind.scenario_rules, settings=arguments.settings)
    inspection = kind.inspect(scenario, progress_bar)
    warnings = list(inspection.warnings)
    if kind.takes_template:
        try:
            _, told = own_template(scenario.aisbench.config)
        except AISBenchError as error:
            # `prepare` needs none, so it is no reason to stop.
            warnings.extend({"code": problem.code.value, "message": str(problem)} for problem in error.problems)
        else:
            if told is not None:
                note(f"note: {told}")
    summary = {**inspection.summary, "warnings": warnings}
    paths = RunPaths.create(scenario.run.output_dir, scenario.run.run_id, datetime.now())
    with run_log(paths.log("inspect")) as log:
        log.info("scenario %s sha256 %s", scenario.path, scenario.sha256)
        log.info("%s", inspection.note)
        for warning in warnings:
            log.warning("%s %s", warning["code"], warning["message"])
            warn(warning)
        write_document(paths.manifest, inspected_manifest(scenario, paths, scenario.run.output_dir, summary))
        log.info("wrote %s", paths.manifest)
    print_json({**summary, "log": str(paths.log("inspect")), "manifest": str(paths.manifest)})
    return 0
