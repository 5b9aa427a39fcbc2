"""A comparison as one web page, as a table and as a document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.comparisons.comparing import Comparison, PointComparison
from ais_bench_prefix_cache.comparisons.difference import Difference
from ais_bench_prefix_cache.comparisons.turns import TurnComparison, TurnFigures
from ais_bench_prefix_cache.datasets.format.writing import write_content
from ais_bench_prefix_cache.reporting.drawing import COLOURS, DIM, Chart, empty_figure, figure_svg, label_axes
from ais_bench_prefix_cache.reporting.page_templates import render_page
from ais_bench_prefix_cache.reporting.performance_tables import shown

HEADER = ("Figure, ms", "Baseline", "Candidate", "Change", "Verdict")
TURN_HEADER = ("Turn", "N", "Hits", "TTFT P50, ms", "Change")
_MOST_ROWS = 40
_COLOUR_OF = {"better": COLOURS[2], "worse": COLOURS[1], "no difference shown": DIM, "too few data": DIM}
_MARKER_OF = {"better": "v", "worse": "^", "no difference shown": "o", "too few data": "x"}


def write_comparison_page(path: Path, comparison: Comparison) -> None:
    """Write the page. Raises ArtifactError where jinja2 or matplotlib is not installed."""
    write_content(path, render_comparison_page(comparison).encode())


def render_comparison_page(comparison: Comparison) -> str:
    """HTML that stands alone. Raises ArtifactError where jinja2 or matplotlib is not installed."""
    return render_page(
        "comparison.html.j2",
        verdict=comparison.verdict,
        baseline=str(comparison.baseline),
        candidate=str(comparison.candidate),
        imitation=comparison.imitation,
        same_data_sets=comparison.same_data_sets,
        unmatched=comparison.unmatched,
        conditions=[(condition.text, state) for condition, state in comparison.conditions],
        charts=charts_of_comparison(comparison),
        header=HEADER,
        turn_header=TURN_HEADER,
        points=[
            {
                "title": point.name if len(comparison.points) > 1 else "All figures",
                "runs": runs_sentence(point),
                "rows": difference_rows(point.differences),
                "turns": turn_rows(point.turns),
            }
            for point in comparison.points
        ],
        how=how_judged(comparison),
        differing=[(field, *map(_value, values)) for field, values in comparison.differing.items()],
    )


def runs_sentence(point: PointComparison) -> str:
    """How many runs, of what data, with which counted hit rates."""
    rates = [
        "not counted" if counted is None else f"{counted[0]} of {counted[1]} tokens ({counted[0] / counted[1]:.2%})"
        for counted in (point.baseline_counted, point.candidate_counted)
    ]
    data = "the same data set" if point.same_data_set else "different data sets"
    return (
        f"{point.baseline_runs} against {point.candidate_runs} runs, {data}; "
        f"hits counted: {rates[0]} against {rates[1]}."
    )


def how_judged(comparison: Comparison) -> str:
    """What stands behind the verdicts."""
    sources = {each.source for each in comparison.differences}
    over = []
    if "repeats" in sources:
        over.append("over the runs of a point")
    if "requests" in sources:
        over.append("over blocks of requests, widened, because one or two runs do not show how much runs differ")
    judged = f"A figure is better or worse where its whole interval lies beyond {comparison.threshold:.0%}. "
    if not over:
        return judged + "No figure has an interval."
    return judged + f"All intervals hold together with 95 %; they are taken {' or '.join(over)}."


def difference_rows(differences: Sequence[Difference]) -> list[tuple[str, ...]]:
    """The rows below :data:`HEADER`, which fit into 80 columns and on a telephone."""
    short = {"no difference shown": "no difference"}
    return [
        (
            each.metric,
            "–" if each.baseline is None else shown(each.baseline),
            "–" if each.candidate is None else shown(each.candidate),
            "–" if each.change is None else f"{each.change:+.0%}{_bounds(each)}",
            short.get(each.verdict, each.verdict),
        )
        for each in differences
    ]


def turn_rows(turns: Sequence[TurnComparison]) -> list[tuple[str, ...]]:
    """The rows below :data:`TURN_HEADER`, baseline before candidate; the change is that of the time."""
    return [_turn_row(each) for each in turns]


def _turn_row(turns: TurnComparison) -> tuple[str, ...]:
    sides = (turns.baseline, turns.candidate)
    one, other = (None if side is None else side.ttft_p50 for side in sides)
    return (
        str(turns.turn),
        _both(*("–" if side is None else str(side.requests) for side in sides)),
        " to ".join(_hit_rate(side) for side in sides),
        " to ".join("–" if value is None else shown(value) for value in (one, other)),
        f"{other / one - 1:+.0%}" if one and other is not None else "–",
    )


def _both(one: str, other: str) -> str:
    return one if one == other else f"{one} to {other}"


def _hit_rate(side: TurnFigures | None) -> str:
    if side is None:
        return "–"
    return "not told" if side.hit_rate is None else f"{side.hit_rate:.2%}"


def _bounds(each: Difference) -> str:
    return "" if each.low is None or each.high is None else f" ({100 * each.low:+.0f} to {100 * each.high:+.0f})"


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """What ``compare --json`` prints; changes are fractions of 1."""
    return {
        "baseline": str(comparison.baseline),
        "candidate": str(comparison.candidate),
        "verdict": comparison.verdict,
        "same_data_sets": comparison.same_data_sets,
        "differing": {field: list(values) for field, values in comparison.differing.items()},
        "unmatched": list(comparison.unmatched),
        "threshold": comparison.threshold,
        "conditions": [{"condition": condition.text, "state": state} for condition, state in comparison.conditions],
        "points": [asdict(point) for point in comparison.points],
    }


def charts_of_comparison(comparison: Comparison) -> list[Chart]:
    """Changes with their intervals, a row a figure and point."""
    several = len(comparison.points) > 1
    rows = [
        (f"{each.metric} at {point.name}" if several else each.metric, each)
        for point in comparison.points
        for each in point.differences
        if each.change is not None and each.low is not None and each.high is not None
    ]
    if not rows:
        return []
    drawn = rows[:_MOST_ROWS]
    figure, axes = empty_figure(height=max(2.2, 0.26 * len(drawn) + 0.9))
    for place, (_, each) in enumerate(drawn):
        change, low, high = (100 * (value or 0.0) for value in (each.change, each.low, each.high))
        axes.errorbar(
            [change],
            [place],
            xerr=[[change - low], [high - change]],
            color=_COLOUR_OF[each.verdict],
            marker=_MARKER_OF[each.verdict],
            markersize=6,
            capsize=3,
        )
    axes.axvline(0, color=DIM, linewidth=1)
    axes.set_yticks(range(len(drawn)), labels=[name for name, _ in drawn])
    axes.invert_yaxis()
    label_axes(axes, "Change of the candidate, %", "")
    more = f" The first {_MOST_ROWS} of {len(rows)}." if len(rows) > _MOST_ROWS else ""
    caption = (
        "Each mark is a figure, with its interval. A triangle upwards is worse, downwards better, a dot shows no "
        f"difference; requests_per_s is better to the right, all others to the left.{more}"
    )
    return [Chart("Changes", figure_svg(figure), caption)]


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
