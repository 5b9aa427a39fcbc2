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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the Scenario and what replaces its fields."""
    parser.add_argument("--scenario", type=Path, required=True, metavar="FILE", help="the Scenario (JSON)")
    add_settings(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Plan, write log and manifest, print the summary; returns the exit code."""
    from ais_bench_prefix_cache.commands.console import print_json, warn
    from ais_bench_prefix_cache.datasets.format.manifest import inspected_manifest
    from ais_bench_prefix_cache.datasets.format.paths import RunPaths
    from ais_bench_prefix_cache.datasets.format.writing import write_document
    from ais_bench_prefix_cache.datasets.text.kind import plan_warnings
    from ais_bench_prefix_cache.datasets.text.sizes import plan_if_it_fits
    from ais_bench_prefix_cache.foundation.log_files import run_log
    from ais_bench_prefix_cache.planning.summary import inspect_summary
    from ais_bench_prefix_cache.scenario.loading import load_scenario

    scenario = load_scenario(arguments.scenario, settings=arguments.settings)
    plan = plan_if_it_fits(scenario)
    summary = inspect_summary(scenario, plan)
    warnings = plan_warnings(scenario, plan)
    summary["warnings"] = warnings
    paths = RunPaths.create(scenario.run.output_dir, scenario.run.run_id, datetime.now())
    with run_log(paths.log("inspect")) as log:
        log.info("scenario %s sha256 %s", scenario.path, scenario.sha256)
        log.info(
            "%d requests, %d input tokens, planned by %s (%s), theoretical hit rate %.6f",
            len(plan),
            plan.total_input_tokens,
            plan.trajectory.path,
            plan.trajectory.status,
            plan.theoretical_hit_rate,
        )
        for warning in warnings:
            log.warning("%s %s", warning["code"], warning["message"])
            warn(warning)
        write_document(paths.manifest, inspected_manifest(scenario, paths, scenario.run.output_dir, summary))
        log.info("wrote %s", paths.manifest)
    print_json({**summary, "log": str(paths.log("inspect")), "manifest": str(paths.manifest)})
    return 0
