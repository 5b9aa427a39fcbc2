"""The pictures of a run's page, as SVG: readable without a script, sharp on paper, and in the colours of the page.

Above :data:`MOST_DOTS` dots, a picture shows every n-th request and says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ais_bench_prefix_cache.analysis.request_record import RequestRecord
from ais_bench_prefix_cache.reporting.drawing import (
    COLOURS,
    DIM,
    INK,
    MARKERS,
    Chart,
    add_legend,
    empty_figure,
    figure_svg,
    label_axes,
    style_axes,
)

MOST_DOTS = 4000
_MOST_RANKS = len(COLOURS)


def charts_of_run(records: Sequence[RequestRecord], series: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """The pictures that these records have something for. ``series`` are the lines of the run's ``series.jsonl``."""
    done = [record for record in records if record.success and record.sent_s is not None]
    drawn = (
        _ttft_by_uncached(done),
        _distributions(done),
        _cumulative_rate(done),
        _latency_by(done, "rank", lambda record: None if record.dp_rank is None else f"rank {record.dp_rank}"),
        _latency_by(done, "group", lambda record: record.group_id),
        _load_over_time(series),
    )
    return [chart for chart in drawn if chart is not None]


def _ttft_by_uncached(records: Sequence[RequestRecord]) -> Chart | None:
    known = [
        record
        for record in records
        if record.input_tokens is not None
        and record.hit_tokens is not None
        and (record.ttft_ms is not None or record.e2el_ms is not None)
    ]
    if not known:
        return None
    streamed = all(record.ttft_ms is not None for record in known)
    name = "Time to first token" if streamed else "Time to the end of the answer"
    shown, note = _thinned(known)
    figure, axes = empty_figure()
    for number, (rank, members) in enumerate(_by_rank(shown)):
        axes.plot(
            [(record.input_tokens or 0) - (record.hit_tokens or 0) for record in members],
            [record.ttft_ms if streamed else record.e2el_ms for record in members],
            MARKERS[number % len(MARKERS)],
            color=COLOURS[number % len(COLOURS)],
            label=rank,
            markersize=4,
            alpha=0.7,
            markeredgewidth=0,
        )
    label_axes(axes, "Uncached input tokens", f"{name}, ms")
    add_legend(axes)
    caption = f"Each mark is one request: the tokens that the server had to compute, and the {name.lower()}."
    return Chart(f"{name} against uncached tokens", figure_svg(figure), f"{caption}{note}")


def _distributions(records: Sequence[RequestRecord]) -> Chart | None:
    curves = {
        name: sorted(value for record in records if (value := getattr(record, key)) is not None)
        for name, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("E2EL", "e2el_ms"))
    }
    curves = {name: values for name, values in curves.items() if values}
    if not curves:
        return None
    figure, axes = empty_figure()
    for number, (name, values) in enumerate(curves.items()):
        share = np.linspace(0, 100, min(len(values), 1000))
        at = np.percentile(values, share)
        axes.plot(np.maximum(at, 1e-3), share, color=COLOURS[number], linestyle=("-", "--", "-.")[number], label=name)
    axes.set_xscale("log")
    label_axes(axes, "Milliseconds (logarithmic)", "Share of requests, %")
    add_legend(axes)
    return Chart("Distributions", figure_svg(figure), "How many per cent of the requests were at most this slow.")


def _cumulative_rate(records: Sequence[RequestRecord]) -> Chart | None:
    known = sorted(
        (record for record in records if record.planned_input_tokens and record.planned_hit_tokens is not None),
        key=lambda record: record.sent_s or 0.0,
    )
    if not known:
        return None
    figure, axes = empty_figure()
    inputs = np.cumsum([record.planned_input_tokens or 0 for record in known])
    moments = [record.sent_s for record in known]
    theory = 100 * np.cumsum([record.planned_hit_tokens or 0 for record in known]) / inputs
    _step(axes, moments, theory, COLOURS[0], "-", "theory")
    if all(record.hit_tokens is not None for record in known):
        seen = 100 * np.cumsum([record.hit_tokens or 0 for record in known]) / inputs
        _step(axes, moments, seen, COLOURS[1], "--", "seen by the server")
    axes.set_ylim(0, 100)
    label_axes(axes, "Seconds after the first request", "Hit rate so far, %")
    add_legend(axes)
    caption = "Hit tokens over input tokens of all requests sent so far: as planned, and as each answer reported."
    return Chart("Cumulative hit rate", figure_svg(figure), caption)


def _latency_by(records: Sequence[RequestRecord], what: str, name_of: Any) -> Chart | None:
    groups: dict[str, list[float]] = {}
    streamed = any(record.ttft_ms is not None for record in records)
    for record in records:
        name, value = name_of(record), record.ttft_ms if streamed else record.e2el_ms
        if name is not None and value is not None:
            groups.setdefault(name, []).append(value)
    if len(groups) < 2:
        return None
    names = sorted(groups, key=_natural)[:40]
    figure, axes = empty_figure(height=max(2.2, 0.24 * len(names) + 0.9))
    axes.boxplot(
        [groups[name] for name in names],
        orientation="horizontal",
        whis=(5, 95),
        showfliers=False,
        medianprops={"color": COLOURS[1], "linewidth": 2},
        boxprops={"color": INK},
        whiskerprops={"color": DIM},
        capprops={"color": DIM},
    )
    axes.set_yticks(range(1, len(names) + 1), labels=names)
    axes.invert_yaxis()
    latency = "Time to first token" if streamed else "Time to the end of the answer"
    label_axes(axes, f"{latency}, ms", "")
    more = f" The first 40 of {len(groups)}." if len(groups) > 40 else ""
    caption = f"{latency} by {what}: median, quartiles, 5th and 95th percentile.{more}"
    return Chart(f"{latency} by {what}", figure_svg(figure), caption)


def _load_over_time(series: Sequence[Mapping[str, Any]]) -> Chart | None:
    moments = [line["time_s"] for line in series]
    if len(moments) < 2:
        return None
    figure, axes = empty_figure()

    def mean(line: Mapping[str, Any], measure: str) -> float:
        values = [value for value in line[measure].values() if value is not None]
        return float(np.mean(values)) if values else float("nan")

    def total(line: Mapping[str, Any], measure: str) -> float:
        values = [value for value in line[measure].values() if value is not None]
        return float(sum(values)) if values else float("nan")

    axes.plot(moments, [100 * mean(line, "kv_cache_usage") for line in series], color=COLOURS[0], label="KV cache, %")
    axes.set_ylim(0, 100)
    label_axes(axes, "Seconds after the first request", "KV cache in use, %")
    queues = axes.twinx()
    for measure, colour, style in (("running", COLOURS[1], "--"), ("waiting", COLOURS[2], ":")):
        queues.plot(moments, [total(line, measure) for line in series], color=colour, linestyle=style, label=measure)
    queues.set_ylim(bottom=0)
    style_axes(queues)
    label_axes(queues, "", "Requests")
    handles = [*axes.get_lines(), *queues.get_lines()]
    figure.legend(handles=handles, frameon=False, labelcolor=INK, loc="outside upper center", ncols=3, fontsize=9)
    caption = "Mean use of the ranks' KV caches, and requests that ran and waited, as /metrics told them."
    return Chart("Cache use and queues", figure_svg(figure), caption)


def _by_rank(records: Sequence[RequestRecord]) -> list[tuple[str, list[RequestRecord]]]:
    ranks: dict[str, list[RequestRecord]] = {}
    for record in records:
        ranks.setdefault("requests" if record.dp_rank is None else f"rank {record.dp_rank}", []).append(record)
    if len(ranks) > _MOST_RANKS:
        return [(f"all {len(ranks)} ranks", list(records))]
    return sorted(ranks.items(), key=lambda item: _natural(item[0]))


def _thinned(records: Sequence[RequestRecord]) -> tuple[Sequence[RequestRecord], str]:
    if len(records) <= MOST_DOTS:
        return records, ""
    step = -(-len(records) // MOST_DOTS)
    return records[::step], f" Every {step}th of {len(records)} is shown."


def _step(axes: Any, moments: Sequence[Any], values: Any, colour: str, style: str, label: str) -> None:
    step = max(1, len(moments) // 2000)
    axes.step(moments[::step], values[::step], where="post", color=colour, linestyle=style, label=label)


def _natural(name: str) -> tuple[str, int]:
    stem, digits = re.fullmatch(r"(.*?)(\d*)", name).groups()  # type: ignore[union-attr]
    return stem, int(digits or 0)
