"""A run as one web page: nothing from the network, no script, light and dark, narrow, wide and on paper."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ais_bench_prefix_cache.analysis.performance import PERFORMANCE_KEY
from ais_bench_prefix_cache.analysis.request_record import RequestRecord
from ais_bench_prefix_cache.reporting.charts import charts_of_run
from ais_bench_prefix_cache.reporting.page_templates import render_page
from ais_bench_prefix_cache.reporting.performance_tables import (
    LATENCY_MEANINGS,
    LATENCY_NAMES,
    TURN_COLUMNS,
    shown,
    turn_rows,
    whole_run_rows,
)
from ais_bench_prefix_cache.reporting.report_document import imitation_answered, run_section
from ais_bench_prefix_cache.reporting.summary_table import summary_rows


def render_report_page(
    analysis: Mapping[str, Any],
    *,
    run_id: str,
    config: Mapping[str, Any],
    records: Sequence[RequestRecord] = (),
    series: Sequence[Mapping[str, Any]] = (),
    aisbench_csv: str | None = None,
) -> str:
    """HTML of an analysis and its request records. ``config`` is what was run, without the API key.

    Raises ArtifactError where jinja2 or matplotlib is not installed.
    """
    performance = analysis.get(PERFORMANCE_KEY)
    latency = performance["latency"] if performance else {}
    statistics = [name for name in next(iter(latency.values()), {}) if name != "count"]
    run = run_section(analysis, config)
    return render_page(
        "run.html.j2",
        run_id=run_id,
        facts=_facts(run),
        imitation=imitation_answered(analysis),
        findings=[*analysis.get("findings", ()), *analysis.get("warnings", ())],
        prefix_cache=summary_rows(analysis),
        performance=performance,
        latency_caption="; ".join(f"{LATENCY_NAMES[name]}: {LATENCY_MEANINGS[name]}" for name in latency),
        latency_columns=["ms", *(LATENCY_NAMES[name] for name in latency)],
        latency=[
            *([name, *(shown(row[name]) for row in latency.values())] for name in statistics),
            ["N", *(row["count"] for row in latency.values())],
        ],
        turn_columns=TURN_COLUMNS,
        turns=turn_rows(performance) if performance else [],
        whole_run=whole_run_rows(performance) if performance else [],
        charts=charts_of_run(records, series) if records else [],
        hits=_hits(analysis.get("requests") or {}),
        config=json.dumps(config, indent=2, ensure_ascii=False),
        aisbench_csv=aisbench_csv,
    )


def _facts(run: Mapping[str, Any]) -> list[str]:
    """Model, server's version, kind of cache or images, requests, ranks, load, when."""
    rate = run["request_rate_per_s"]
    started = run["sending_started_at"]
    return [
        f"model {run['model']}",
        *([f"server version {', '.join(run['server_versions'])}"] if run["server_versions"] else []),
        run["mode"],
        f"{run['requests']} requests",
        f"data-parallel ranks: {run['dp_size']}",
        f"at most {run['batch_size']} in flight",
        *([f"{rate:g} requests a second"] if rate else []),
        *([f"sent from {started[:19].replace('T', ' ')} UTC"] if started else []),
    ]


def _hits(requests: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Tables of hit tokens, each with bars on a scale of its own; a single row needs no table."""
    over_time = {str(number): tally for number, tally in enumerate(requests.get("over_time", ()), start=1)}
    parts = []
    for title, first, tallies in (
        ("by rank", "Rank", requests.get("by_dp", {})),
        ("by group", "Group", requests.get("by_group", {})),
        ("over time", "Part", over_time),
    ):
        if len(tallies) > 1:
            most = max(max(tally["expected_hits"], tally["seen_hits"]) for tally in tallies.values()) or 1
            rows = [_hit_row(name, tally, most) for name, tally in tallies.items()]
            parts.append({"title": title, "first": first, "rows": rows})
    return parts


def _hit_row(name: str, tally: Mapping[str, int], most: int) -> dict[str, Any]:
    return {
        "name": name,
        "matched": tally["matched"],
        "requests": tally["requests"],
        "theory": tally["expected_hits"],
        "seen": tally["seen_hits"],
        "theory_width": round(100 * tally["expected_hits"] / most, 2),
        "seen_width": round(100 * tally["seen_hits"] / most, 2),
    }
