from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tests.doubles.measured_runs import config, write_run

from ais_bench_prefix_cache.comparisons.comparing import Comparison, compare
from ais_bench_prefix_cache.comparisons.comparison_page import (
    HEADER,
    comparison_document,
    difference_rows,
    how_judged,
    render_comparison_page,
)
from ais_bench_prefix_cache.foundation.grid_table import render_grid


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    times = list(100 + 10 * np.sin(np.arange(120)))
    one = write_run(tmp_path / "1", times)
    other = write_run(
        tmp_path / "2",
        [2 * value for value in times],
        rows={"full": "other"},
        configuration=config(attr="<script>alert(1)</script>"),
        server="0.1 (ais-bench-prefix-cache embedded server)",
    )
    return compare(one, other, fail_if=["ttft_p99 > +5%"])


def test_the_page_says_what_the_comparison_found(comparison: Comparison) -> None:
    page = render_comparison_page(comparison)
    assert "<script" not in page and "&lt;script&gt;alert(1)" in page
    for words in (
        "<h1>Comparison: worse</h1>",
        "did not send the same requests",
        "<code>ttft_p99 &gt; +5%</code> is met.",
        "<td>+100% (+",
        "hits counted: 4800 of 12000 tokens (40.00%)",
        "<svg viewBox",
        "one or two runs do not show how much runs differ",
    ):
        assert words in page, words


def test_rows_and_document_have_the_same_figures(comparison: Comparison) -> None:
    table = render_grid(HEADER, difference_rows(comparison.differences))
    assert all(len(line) <= 80 for line in table.splitlines())
    assert re.search(r"│ ttft_p50 +│ [\d.]+ +│ [\d.]+ +│ \+100% \(\+\d+ to \+\d+\) +│ worse +│", table)
    assert re.search(r"│ tpot_p50 +│ 10.0 +│ 10.0 +│ \+0% \(-\d+ to \+\d+\) +│ no difference │", table)
    document = comparison_document(comparison)
    told = document["points"][0]["differences"][0]
    assert (told["metric"], told["change"], told["verdict"]) == ("ttft_p50", pytest.approx(1.0), "worse")
    assert document["conditions"] == [{"condition": "ttft_p99 > +5%", "state": "met"}]


def test_figures_without_intervals_are_judged_over_nothing_that_is_named(tmp_path: Path) -> None:
    one, other = (write_run(tmp_path / name, [100.0 + number for number in range(10)]) for name in "ab")
    assert how_judged(compare(one, other)) == (
        "A figure is better or worse where its whole interval lies beyond 5%. No figure has an interval."
    )
