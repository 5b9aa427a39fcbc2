"""A sweep as one web page: latency and throughput against the counted hit rate, one line a concurrency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.analysis.intervals import LEAST_REPEATS, Estimate
from ais_bench_prefix_cache.datasets.format.documents import read_document
from ais_bench_prefix_cache.datasets.format.writing import write_content
from ais_bench_prefix_cache.reporting.drawing import (
    COLOURS,
    MARKERS,
    Chart,
    add_legend,
    empty_figure,
    figure_svg,
    label_axes,
)
from ais_bench_prefix_cache.reporting.page_templates import render_page
from ais_bench_prefix_cache.reporting.performance_tables import shown
from ais_bench_prefix_cache.reporting.report_document import imitation_answered
from ais_bench_prefix_cache.sweeps.plan import SweepPlan
from ais_bench_prefix_cache.sweeps.points import point_name, settings_of
from ais_bench_prefix_cache.sweeps.results import CONCURRENCY_FIELD, PointResult, Sweep
from ais_bench_prefix_cache.sweeps.sweep_directory import SweepDirectory

FIGURE_NAMES = {
    "ttft_p50": "TTFT P50, ms",
    "ttft_p99": "TTFT P99, ms",
    "tpot_p50": "TPOT P50, ms",
    "e2el_p50": "E2EL P50, ms",
    "e2el_p99": "E2EL P99, ms",
    "requests_per_s": "Requests/s",
}
_PICTURES = {
    "ttft_p50": "Time to first token, median",
    "ttft_p99": "Time to first token, 99th percentile",
    "e2el_p50": "Time to the end of the answer, median",
    "requests_per_s": "Throughput",
}


def write_sweep_page(path: Path, sweep: Sweep) -> None:
    """Write the page. Raises ArtifactError where jinja2 or matplotlib is not installed."""
    write_content(path, render_sweep_page(sweep).encode())


def render_sweep_page(sweep: Sweep) -> str:
    """HTML that stands alone. Raises ArtifactError where jinja2 or matplotlib is not installed."""
    plan = sweep.plan
    files = SweepDirectory(sweep.directory)
    complete = [row for row in sweep.rows if row["status"] == "complete"]
    about = _about(files, complete)
    order = "all points once, then all again" if plan.shuffle is None else f"shuffled by seed {plan.shuffle}"
    return render_page(
        "sweep.html.j2",
        name=sweep.directory.name,
        facts=[
            *([f"model {about['model']}"] if about else []),
            f"{len(plan.points)} points, {plan.repeat} run{'s' * (plan.repeat > 1)} each",
            order,
            *([f"all with {point_name(plan.constant)}"] if plan.constant else []),
            *([f"from {complete[0]['started_at'][:16].replace('T', ' ')}"] if complete else []),
        ],
        imitation=bool(about and about["imitation"]),
        complete=len(complete),
        expected=plan.runs,
        failed=[_failure(row, sweep) for row in sweep.failed],
        deviating=[point.name for point in sweep.points if point.complete and not point.as_planned],
        costs=cost_rows(sweep),
        charts=charts_of_sweep(sweep),
        columns=["Point", "Runs", "Theory", "Reachable", "Counted", *FIGURE_NAMES.values()],
        points=[_point_row(point) for point in sweep.points],
        interval_note=interval_note(sweep),
        plan=_plan_lines(plan),
        table_file=files.csv.name,
    )


def _plan_lines(plan: SweepPlan) -> str:
    """Scenario and digest, what all points have in common, and a line a point."""
    lines = [f"{plan.scenario} (sha256 {plan.scenario_sha256})"]
    if plan.constant:
        lines.append(f"all points: {' '.join(settings_of(plan.constant))}")
    lines += [
        f"point {index}: {' '.join(settings_of(point)) or 'as it stands'}" for index, point in enumerate(plan.points)
    ]
    return "\n".join(lines)


def interval_note(sweep: Sweep) -> str:
    """What the intervals are taken over."""
    sources = {found.source for point in sweep.points for found in point.figures.values()}
    by_runs = "over the runs of a point (Student)"
    by_requests = (
        "over blocks of requests (bootstrap), which do not show how much runs differ from each other: "
        f"--repeat {LEAST_REPEATS} or more would"
    )
    if sources == {"repeats", "requests"}:
        return f"Intervals: 95 %, {by_runs} with {LEAST_REPEATS} complete runs or more, else {by_requests}."
    return f"Intervals: 95 %, {by_runs if sources == {'repeats'} else by_requests}."


def cost_rows(sweep: Sweep) -> list[tuple[str, str]]:
    """Each line with the cost of an uncached token in words."""
    return [
        (
            name,
            f"{cost.us_per_token:.1f} µs of TTFT for each uncached token (95 %: {cost.low:.1f} to {cost.high:.1f}; "
            f"{cost.runs} runs, R² {cost.r_squared:.2f})",
        )
        for name, cost in sweep.costs.items()
    ]


def charts_of_sweep(sweep: Sweep) -> list[Chart]:
    """Against the counted hit rate where that varies, else against concurrency; then the cost of uncached tokens.

    Where hits are lost, or conversations vary, first of all where the cache begins to forget.
    """
    points = [point for line in sweep.lines.values() for point in line]
    rates = {point.counted_hit_rate for point in points}
    if len(rates) > 1:
        lines, place = dict(sweep.lines), _percent_counted
        axis, against = "Counted hit rate, %", "the counted hit rate"
    elif len({point.batch_size for point in points}) > 1:
        lines = {"all": tuple(sorted(points, key=_concurrency))}
        place, axis, against = _concurrency, "Requests in flight, at most", "concurrency"
    else:
        return []
    charts = [_figure_chart(title, metric, lines, place, axis, against) for metric, title in _PICTURES.items()]
    return [chart for chart in (_forgetting_chart(points), *charts, _cost_chart(sweep)) if chart is not None]


def _percent_counted(point: PointResult) -> float:
    return 100 * (point.counted_hit_rate or 0.0)


def _concurrency(point: PointResult) -> float:
    return float(point.batch_size or 0)


def _figure_chart(
    title: str, metric: str, lines: Mapping[str, Sequence[PointResult]], place: Any, axis: str, against: str
) -> Chart | None:
    if not any(metric in point.figures for line in lines.values() for point in line):
        return None
    figure, axes = empty_figure()
    for number, (name, line) in enumerate(lines.items()):
        known = [(place(point), point.figures[metric]) for point in line if metric in point.figures]
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        values = [found.value for _, found in known]
        axes.errorbar(
            [x for x, _ in known],
            values,
            yerr=[[value - low for value, low in zip(values, _bounds(known, "low"), strict=True)],
                  [high - value for value, high in zip(values, _bounds(known, "high"), strict=True)]],
            color=colour, marker=marker, markersize=5, capsize=3, linewidth=1.4, elinewidth=1, label=name,
        )  # fmt: skip
    axes.set_ylim(bottom=0)
    label_axes(axes, axis, FIGURE_NAMES[metric])
    add_legend(axes)
    caption = f"{title} against {against}, with 95 % intervals. Every mark is one point of the sweep."
    return Chart(f"{title} against {against}", figure_svg(figure), caption)


def _forgetting_chart(points: Sequence[PointResult]) -> Chart | None:
    """Hit rates over concurrency, one colour for each other setting: theory, reachable and counted."""
    lines: dict[str, list[PointResult]] = {}
    for point in points:
        others = {name: value for name, value in point.settings.items() if name != CONCURRENCY_FIELD}
        lines.setdefault(point_name(others) if others else "", []).append(point)
    if all(point.as_planned for point in points) or all(len(line) < 2 for line in lines.values()):
        return None
    figure, axes = empty_figure()
    for number, (name, line) in enumerate(lines.items()):
        line.sort(key=_concurrency)
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        for kind, style in (("theoretical", ":"), ("reachable", "--"), ("counted", "-")):
            known = [(_concurrency(point), getattr(point, f"{kind}_hit_rate")) for point in line]
            known = [(place, 100 * rate) for place, rate in known if rate is not None]
            axes.plot(
                [place for place, _ in known],
                [rate for _, rate in known],
                style,
                marker=marker if kind == "counted" else None,
                color=colour,
                markersize=5,
                linewidth=1.4,
                label=f"{name}: {kind}" if name else kind,
            )
    axes.set_ylim(0, 100)
    label_axes(axes, "Requests in flight, at most", "Hit rate, %")
    add_legend(axes)
    caption = (
        "Theoretical: a cache that never forgets. Reachable: the same requests replayed through a cache of the "
        "server's size. Counted: by the server."
    )
    return Chart("Where the cache begins to forget", figure_svg(figure), caption)


def _bounds(known: Sequence[tuple[float, Estimate]], side: str) -> list[float]:
    return [found.value if (bound := getattr(found, side)) is None else bound for _, found in known]


def _cost_chart(sweep: Sweep) -> Chart | None:
    if not sweep.costs:
        return None
    figure, axes = empty_figure()
    for number, (name, line) in enumerate(sweep.lines.items()):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        tokens = [value for point in line for value in point.uncached_tokens]
        axes.plot(
            tokens, [time for point in line for time in point.ttft_ms], marker, color=colour, markersize=5, label=name
        )
        if cost := sweep.costs.get(name):
            ends = (min(tokens), max(tokens))
            axes.plot(
                ends, [cost.ms_at_zero + cost.us_per_token * end / 1000 for end in ends], color=colour, linewidth=1
            )
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    label_axes(axes, "Uncached tokens of a request, mean", "TTFT, mean, ms")
    add_legend(axes)
    caption = "Every mark is one run; the slope of a line is what a token costs that is not in the cache."
    return Chart("The cost of an uncached token", figure_svg(figure), caption)


def _point_row(point: PointResult) -> list[str]:
    return [
        point.name,
        f"{point.complete}" + (f", {point.failed} failed" if point.failed else ""),
        _percent(point.theoretical_hit_rate),
        _percent(point.reachable_hit_rate),
        _percent(point.counted_hit_rate) + ("" if point.as_planned or not point.complete else " (not as planned)"),
        *(_with_interval(point.figures.get(metric)) for metric in FIGURE_NAMES),
    ]


def _with_interval(found: Estimate | None) -> str:
    if found is None:
        return "–"
    if found.low is None or found.high is None:
        return shown(found.value)
    return f"{shown(found.value)} ({shown(found.low)} to {shown(found.high)})"


def _percent(rate: float | None) -> str:
    return "–" if rate is None else f"{100 * rate:.2f} %"


def _failure(row: Mapping[str, Any], sweep: Sweep) -> dict[str, str]:
    settings = sweep.plan.points[row["point"]]
    return {
        "code": row["error_code"],
        "message": f"{point_name(settings)}, repeat {row['repeat'] + 1}: {row['error']}",
    }


def _about(files: SweepDirectory, complete: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The model, and whether the embedded server answered, from the first run."""
    if not complete:
        return None
    run = files.run(complete[0]["point"], complete[0]["repeat"])
    config, _ = read_document(run.config, what="configuration of a run")
    analysis, _ = read_document(run.analysis, what="analysis of a run")
    return {"model": config["service"]["model"], "imitation": imitation_answered(analysis)}
