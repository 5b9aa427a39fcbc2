"""The tables that `run` ends with fit into 80 columns."""

from __future__ import annotations

from tests.unit.reporting.test_report_page import records

from ais_bench_prefix_cache.analysis.performance import performance_section
from ais_bench_prefix_cache.reporting.performance_tables import render_performance_tables, shown


def test_what_was_measured_and_asked_for_is_shown_within_80_columns() -> None:
    section = performance_section(records(), batch_size=8, request_rate=10.0, slo={"ttft_ms": 30.0, "e2el_ms": 1e5})
    section["latency"]["itl_ms"] = dict.fromkeys(section["latency"]["itl_ms"], 123456.0) | {"count": 10_000_000}
    text = render_performance_tables(section)
    assert max(map(len, text.splitlines())) <= 80
    assert "│ TTFT        │ 35.0   │ 35.0   │ 50.0   │ 50.0   │ 50.0   │ 50.0   │" in text
    assert "50.00% of requests" in text
    assert "TTFT ≤ 30 ms, E2EL ≤ 100000 ms" in text
    assert "10/s, sent 10.0/s" in text


def test_a_run_without_streaming_has_no_row_for_what_it_lacks() -> None:
    section = performance_section(records(), batch_size=8)
    section["latency"] = {"e2el_ms": section["latency"]["e2el_ms"]}
    text = render_performance_tables(section)
    assert "TTFT" not in text and "E2EL" in text and "Rate asked" not in text


def test_figures_keep_three_digits() -> None:
    assert [shown(value) for value in (0.1234, 9.876, 12.34, 999.9, 1234.5)] == [
        "0.12", "9.88", "12.3", "999.9", "1234"
    ]  # fmt: skip


def test_turns_have_a_table_of_their_own_within_80_columns() -> None:
    section = performance_section(records(), batch_size=8)
    figures = {"mean": 123.4, "p50": 120.0, "p95": 150.0}
    section["by_turn"] = {
        "0": {"requests": 12, "input_tokens": 800, "planned_hit_tokens": 200, "hit_tokens": 100, "ttft_ms": figures},
        "1": {"requests": 12, "input_tokens": 800, "planned_hit_tokens": 600, "hit_tokens": None},
    }
    text = render_performance_tables(section)
    assert max(map(len, text.splitlines())) <= 80
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines()]
    assert ["1", "12", "25.00%", "12.50%", "123.4", "120.0", "150.0"] in cells
    assert ["2", "12", "75.00%", "not told", "-", "-", "-"] in cells
