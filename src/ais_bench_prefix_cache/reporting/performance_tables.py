"""Latency and throughput of a run as tables that fit into 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ais_bench_prefix_cache.foundation.grid_table import render_grid

LATENCY_NAMES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "itl_ms": "ITL", "e2el_ms": "E2EL"}
TURN_COLUMNS = ("Turn", "N", "Hits, theory", "Hits, seen", "TTFT mean, ms", "p50", "p95")
LATENCY_MEANINGS = {
    "ttft_ms": "time to first token",
    "tpot_ms": "time per further token",
    "itl_ms": "between two tokens",
    "e2el_ms": "to the end of the answer",
}


def render_performance_tables(performance: Mapping[str, Any]) -> str:
    """``analysis.performance``: latencies in milliseconds, and figures of the whole run, one table below the other.

    What was not measured has no row.
    """
    latency: Mapping[str, Mapping[str, float]] = performance["latency"]
    tables = []
    if latency:
        columns = [column for column in next(iter(latency.values())) if column not in ("count", "min")]
        rows = [
            [LATENCY_NAMES[name], *(shown(figures[column]) for column in columns), str(figures["count"])]
            for name, figures in latency.items()
        ]
        tables.append(render_grid(["Latency, ms", *columns, "N"], rows))
    if turns := turn_rows(performance):
        tables.append(render_grid(TURN_COLUMNS, turns))
    tables.append(render_grid(["Whole run", "Value"], whole_run_rows(performance)))
    return "\n".join(tables)


def turn_rows(performance: Mapping[str, Any]) -> list[list[str]]:
    """A row a turn of conversations, counted from 1; empty for other requests."""
    rows = []
    for turn, figures in performance.get("by_turn", {}).items():
        tokens, ttft = figures["input_tokens"], figures.get("ttft_ms")
        seen = figures["hit_tokens"]
        rows.append(
            [
                str(int(turn) + 1),
                str(figures["requests"]),
                f"{figures['planned_hit_tokens'] / tokens:.2%}",
                "not told" if seen is None else f"{seen / tokens:.2%}",
                *([shown(ttft[name]) for name in ("mean", "p50", "p95")] if ttft else ["-"] * 3),
            ]
        )
    return rows


def whole_run_rows(performance: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value, with its unit, of what belongs to no single request."""
    failed, retried = performance["failed_requests"], performance["retried_requests"]
    rows = [("Requests", f"{performance['requests']}, {failed} failed, {retried} sent again")]
    if "duration_s" not in performance:
        return rows
    throughput, concurrency = performance["throughput"], performance["concurrency"]
    rows += [
        ("First request to last answer", f"{shown(performance['duration_s'])} s"),
        ("Requests a second", _or_unknown(throughput["requests_per_s"])),
        ("Input tokens a second", _or_unknown(throughput["input_tokens_per_s"])),
        ("Output tokens a second", _or_unknown(throughput["output_tokens_per_s"])),
        (
            "Requests in flight",
            f"{shown(concurrency['mean'])} on average, {concurrency['max']} at most, {concurrency['asked']} allowed",
        ),
        *_rate_rows(performance["request_rate"]),
    ]
    if goodput := performance.get("goodput"):
        bounds = ", ".join(f"{LATENCY_NAMES[name]} ≤ {bound:g} ms" for name, bound in goodput["slo"].items())
        rows.append(("Goodput", f"{goodput['share']:.2%} of requests, {_or_unknown(goodput['requests_per_s'])}/s"))
        rows.append(("  within", bounds))
    return rows


def _rate_rows(rate: Mapping[str, Any]) -> list[tuple[str, str]]:
    if rate["asked_per_s"] is None:
        return []
    rows = [("Rate asked for", f"{rate['asked_per_s']:g}/s, sent {_or_unknown(rate['sent_per_s'])}/s")]
    if rate["late_requests"]:
        rows.append(
            (
                "  sent late",
                f"{rate['late_requests']}; waited for their lane {rate['waited_for_lane']}, "
                f"for a slot {rate['waited_for_slot']}",
            )
        )
    return rows


def shown(value: float) -> str:
    """Three significant digits at least, and whole numbers from 1,000 up."""
    if value >= 1000:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _or_unknown(value: float | None) -> str:
    return "not told by the server" if value is None else shown(value)
