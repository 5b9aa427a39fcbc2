"""``report``: the performance and the prefix-cache result of a finished run."""

from __future__ import annotations

import argparse
from pathlib import Path

from ais_bench_prefix_cache.commands.argument_types import percentile_list
from ais_bench_prefix_cache.commands.choosing import add_choice, chosen
from ais_bench_prefix_cache.foundation.codes import Code

DESCRIPTION = (
    "Show what a finished run measured: latency (TTFT, TPOT, ITL, E2EL), throughput and the prefix-cache table. A "
    "figure that was not measured is absent. Sends nothing and changes nothing."
)
EXAMPLES = (
    "report --scenario scenario.json --html report.html",
    "report --run outputs/job_20260825_123456/runs/20260825_130501 --records requests.csv --percentiles 50,99.9",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which run is shown, and as what."""
    add_choice(parser, what="report the run")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a self-contained web page")
    parser.add_argument(
        "--records",
        type=Path,
        metavar="FILE",
        help="also write one row a request; the ending says how: .jsonl, .csv or .parquet",
    )
    parser.add_argument(
        "--percentiles",
        type=percentile_list,
        metavar="LIST",
        help="percentiles of the latencies, such as 50,90,99.9 (default: 50,90,95,99)",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Print tables or JSON, and write a page where asked; returns the exit code."""
    from ais_bench_prefix_cache.commands.console import note, print_json, show, warn
    from ais_bench_prefix_cache.datasets.format.writing import write_content
    from ais_bench_prefix_cache.datasets.kinds import verify_data_set
    from ais_bench_prefix_cache.reporting.finished_run import read_finished_run
    from ais_bench_prefix_cache.reporting.performance_tables import render_performance_tables
    from ais_bench_prefix_cache.reporting.records_file import write_records
    from ais_bench_prefix_cache.reporting.report_document import report_document
    from ais_bench_prefix_cache.reporting.summary_table import render_summary_table
    from ais_bench_prefix_cache.running.recounting import recount, with_analysis_of

    choice = chosen(arguments)
    for lacking in recount(with_analysis_of(verify_data_set(choice.manifest), choice.run), choice.run):
        warn({"code": Code.NOT_PROVEN.value, "message": f"not proven: {lacking}"})
    run = read_finished_run(choice.manifest, choice.run, percentiles=arguments.percentiles)
    if arguments.records is not None:
        write_records(arguments.records, run.records)
        note(f"written: {arguments.records}")
    if arguments.html is not None:
        from ais_bench_prefix_cache.reporting.report_page import render_report_page

        page = render_report_page(
            run.analysis,
            run_id=run.name,
            config=run.config,
            records=run.records,
            series=run.series,
            aisbench_csv=None if run.aisbench is None else run.aisbench["csv"],
        )
        write_content(arguments.html, page.encode())
        note(f"written: {arguments.html}")
    if arguments.json:
        print_json(report_document(run.analysis, run.config, run.aisbench))
        return 0
    show(f"Prefix Cache Results of task [{run.task}]:")
    show(render_summary_table(run.analysis))
    if run.performance is not None:
        show(f"Performance Results of task [{run.task}]:")
        show(render_performance_tables(run.performance))
    elif run.aisbench is not None:
        note(f"note: this run left no records of its requests; AISBench's own figures: {run.aisbench['csv']}")
    return 0
