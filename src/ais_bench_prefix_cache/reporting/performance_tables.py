"""AISBench's two result tables, drawn from :func:`~.results.performance_report`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ais_bench_prefix_cache.foundation.grid_table import render_grid

_NAME_HEADING = "Performance Parameters"
_COMMON_HEADINGS = ("Common Metric", "Stage", "Value")


def render_performance_tables(report: Mapping[str, Any]) -> str:
    """Figures a request and figures of the whole run, one table below the other."""
    metrics: Mapping[str, Mapping[str, Any]] = report["metrics"]
    columns = list(next(iter(metrics.values()))) if metrics else []
    per_request = [[name, *(str(figures[column]) for column in columns)] for name, figures in metrics.items()]
    common = [[name, stage, str(value)] for name, stages in report["common"].items() for stage, value in stages.items()]
    return f"{render_grid([_NAME_HEADING, *columns], per_request)}\n{render_grid(_COMMON_HEADINGS, common)}"
