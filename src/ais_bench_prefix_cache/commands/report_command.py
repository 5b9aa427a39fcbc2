"""``report``: AISBench's performance figures and the prefix-cache result of a finished run."""

from __future__ import annotations

import argparse
from pathlib import Path

from ais_bench_prefix_cache.commands.choosing import add_choice, chosen

DESCRIPTION = (
    "Show what a finished run measured: AISBench's performance tables (TTFT, TPOT, ITL, E2EL, throughput) and the "
    "prefix-cache table. A figure that was not measured is absent. Sends nothing and changes nothing."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``report``."""
    add_choice(parser, what="report the run")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a self-contained web page")


def execute(arguments: argparse.Namespace) -> int:
    """Run ``report``; returns the exit code."""
    from ais_bench_prefix_cache.aisbench.results import performance_report
    from ais_bench_prefix_cache.commands.console import note, print_json
    from ais_bench_prefix_cache.datasets.format.documents import read_document
    from ais_bench_prefix_cache.datasets.format.manifest import read_manifest
    from ais_bench_prefix_cache.datasets.format.paths import RunPaths
    from ais_bench_prefix_cache.reporting.performance_tables import render_performance_tables
    from ais_bench_prefix_cache.reporting.summary_table import render_summary_table, summary_rows

    choice = chosen(arguments)
    manifest = read_manifest(choice.manifest)
    paths = RunPaths.of_manifest(choice.manifest)
    config = manifest["effective_config"]
    if choice.run is None:
        analysis, _ = read_document(paths.analysis, what="analysis")
    else:
        analysis, _ = read_document(choice.run.analysis, what="analysis of the run")
        config, _ = read_document(choice.run.config, what="configuration of the run")
    # Where AISBench's files lie is said from the data set's analysis, wherever a copy of it lies.
    performance = performance_report(analysis, analysis_path=paths.analysis)
    if arguments.html is not None:
        from ais_bench_prefix_cache.reporting.report_page import render_report_page

        page = render_report_page(performance, analysis, run_id=manifest["run_id"], config=config)
        arguments.html.write_text(page, encoding="utf-8")
        note(f"written: {arguments.html}")
    if arguments.json:
        print_json({**performance, "prefix_cache": dict(summary_rows(analysis))})
        return 0
    run = analysis["runtime"]["aisbench"]
    print(f"Performance Results of task [{run['model_abbr']}/{run['dataset_abbr']}]:")
    print(render_performance_tables(performance))
    print(f"Prefix Cache Results of task [{run['model_abbr']}/{run['dataset_abbr']}]:")
    print(render_summary_table(analysis))
    return 0
