"""``runs``: the benchmark runs of a Scenario, oldest first."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.commands.console import note, print_json, show
from ais_bench_prefix_cache.datasets.format.paths import RunDirectory, RunPaths
from ais_bench_prefix_cache.datasets.kinds import KINDS, kind_named
from ais_bench_prefix_cache.foundation.errors import EXIT_OK, ArtifactError
from ais_bench_prefix_cache.foundation.grid_table import render_grid
from ais_bench_prefix_cache.scenario.identity import data_sha256

DESCRIPTION = (
    "List every run of the data sets that were prepared beside the Scenario's run.output_dir, oldest first: when, how "
    "it ended, what was asked for and what was counted. A directory of the list can be given to `report`, `validate` "
    "and `analyze` with --run."
)
EXAMPLES = ("runs --scenario scenario.json",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the Scenario."""
    parser.add_argument("--scenario", type=Path, required=True, metavar="FILE", help="the Scenario (JSON)")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")


def execute(arguments: argparse.Namespace) -> int:
    """Print the list; returns the exit code."""
    from ais_bench_prefix_cache.datasets.format.manifest_search import data_sets_beside
    from ais_bench_prefix_cache.scenario.loading import load_scenario

    scenario = load_scenario(arguments.scenario, rules=None)
    runs = [run_entry(run, data_set) for data_set in data_sets_beside(scenario) for run in data_set.runs()]
    if arguments.json:
        print_json({"runs": runs})
    elif runs:
        show(runs_table(runs))
        for run in runs:
            show(f"{run['run']}  {run['directory']}")
    else:
        note(f"no run lies beside {scenario.run.output_dir}")
    return EXIT_OK


def run_entry(run: RunDirectory, data_set: RunPaths) -> dict[str, Any]:
    """What is said of one run; null for what it did not leave."""
    record, config, analysis = (_document(path) for path in (run.record, run.config, run.analysis))
    kind = _document(data_set.manifest).get("benchmark_mode")
    known = bool(config) and isinstance(kind, str) and kind in KINDS
    model = config.get("aisbench", {}).get("model", {})
    actual = analysis.get("actual", {})
    return {
        "run": run.name,
        "directory": str(run.path),
        "data_set": data_set.run_id,
        "data_sha256": data_sha256(config, kind_named(kind).scenario_rules) if known else None,
        "status": record.get("status"),
        "phase": record.get("phase"),
        "labels": record.get("labels", {}),
        "batch_size": model.get("batch_size"),
        "request_rate": model.get("request_rate"),
        "theoretical_hit_rate": analysis.get("theoretical_hit_rate"),
        "actual_hit_rate": actual.get("global_hit_rate"),
    }


def runs_table(runs: list[dict[str, Any]]) -> str:
    """The list in 80 columns."""
    header = ("Run", "Status", "Batch", "Theory", "Counted", "Labels")
    rows = [
        (
            run["run"],
            run["status"] if run["phase"] is None else f"{run['status']}: {run['phase']}",
            "" if run["batch_size"] is None else str(run["batch_size"]),
            _percent(run["theoretical_hit_rate"]),
            _percent(run["actual_hit_rate"]),
            ", ".join(f"{key}={value}" for key, value in run["labels"].items()),
        )
        for run in runs
    ]
    return render_grid(header, [tuple(cell or "" for cell in row) for row in rows])


def _percent(rate: float | None) -> str:
    return "" if rate is None else f"{100 * rate:.2f} %"


def _document(path: Path) -> dict[str, Any]:
    """A file of a run; empty where it is not there or damaged, which `report` and `validate` say."""
    from ais_bench_prefix_cache.datasets.format.documents import read_document

    try:
        return read_document(path, what="file")[0]
    except ArtifactError:
        return {}
