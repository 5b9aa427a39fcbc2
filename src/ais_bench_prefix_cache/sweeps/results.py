"""What a sweep found: a row a run, a summary a point, and the cost of a token that is not in the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.analysis.intervals import Estimate, estimate
from ais_bench_prefix_cache.analysis.metric import metric_named
from ais_bench_prefix_cache.analysis.performance import PERFORMANCE_KEY
from ais_bench_prefix_cache.analysis.request_record import RequestRecord
from ais_bench_prefix_cache.analysis.run_facts import FACTS_KEY
from ais_bench_prefix_cache.analysis.uncached_cost import UncachedCost, uncached_cost
from ais_bench_prefix_cache.foundation.errors import PrefixCacheError
from ais_bench_prefix_cache.reporting.notebook import data_frame, html_tables
from ais_bench_prefix_cache.reporting.records_file import read_records
from ais_bench_prefix_cache.running.run_sequence import RunOutcome
from ais_bench_prefix_cache.sweeps.plan import SweepPlan
from ais_bench_prefix_cache.sweeps.points import Point, point_name
from ais_bench_prefix_cache.sweeps.sweep_directory import Row, SweepDirectory

if TYPE_CHECKING:
    import pandas

SUMMARY_METRICS = ("ttft_p50", "ttft_p99", "tpot_p50", "e2el_p50", "e2el_p99", "requests_per_s")
CONCURRENCY_FIELD = "aisbench.model.batch_size"
HIT_RATE_FIELD = "prefix_cache.target_hit_rate"
_LATENCY_FIGURES = ("mean", "p50", "p90", "p95", "p99")
_RANDOM_SEED = 0


@dataclass(frozen=True)
class PointResult:
    """One point over its runs. Rates are fractions of 1; ``counted_hit_rate`` is None before a run is complete.

    ``reachable_hit_rate`` is that of a replay through a cache of the server's size, where one counted fewer hits than
    theory; else that of theory; None where a run counted fewer and nobody knows the size.
    ``as_planned``: in every run the counters rose by exactly the planned hits and tokens; where theory is a range, by
    hits within it. ``figures`` are milliseconds,
    and requests a second. ``uncached_tokens`` (of a request, by the counters) and ``ttft_ms`` are means of each run.
    """

    index: int
    settings: Point
    complete: int
    failed: int
    batch_size: int | None
    theoretical_hit_rate: float | None
    reachable_hit_rate: float | None
    counted_hit_rate: float | None
    as_planned: bool
    figures: Mapping[str, Estimate]
    uncached_tokens: tuple[float, ...]
    ttft_ms: tuple[float, ...]

    @property
    def name(self) -> str:
        return point_name(self.settings)


@dataclass(frozen=True)
class Sweep:
    """A sweep as its directory tells it; ``rows`` is its table, in the order of running."""

    directory: Path
    plan: SweepPlan
    rows: tuple[Row, ...]
    points: tuple[PointResult, ...]

    @property
    def missing(self) -> int:
        """How many runs have no result yet."""
        complete = [row for row in self.rows if row["status"] == "complete"]
        return self.plan.runs - len(complete)

    @property
    def failed(self) -> tuple[Row, ...]:
        """The rows of runs that failed."""
        return tuple(row for row in self.rows if row["status"] == "failed")

    @cached_property
    def lines(self) -> dict[str, tuple[PointResult, ...]]:
        """Points with a complete run that differ in the hit rate only, by what they have in common."""
        lines: dict[str, list[PointResult]] = {}
        for point in self.points:
            if point.complete:
                lines.setdefault(_line_name(point), []).append(point)
        return {
            name: tuple(sorted(line, key=lambda point: point.counted_hit_rate or 0.0)) for name, line in lines.items()
        }

    @cached_property
    def costs(self) -> dict[str, UncachedCost]:
        """For each line whose runs show one: what a token costs that is not in the cache."""
        found = {
            name: uncached_cost(
                [tokens for point in line for tokens in point.uncached_tokens],
                [time for point in line for time in point.ttft_ms],
            )
            for name, line in self.lines.items()
        }
        return {name: cost for name, cost in found.items() if cost is not None}

    def to_pandas(self) -> pandas.DataFrame:
        """The table, one row a run. Raises PrefixCacheError without pandas."""
        return data_frame(self.rows)

    def _repr_html_(self) -> str:
        rows = [
            (
                point.name,
                f"{point.complete} complete, {point.failed} failed",
                *(
                    "–" if rate is None else f"{rate:.2%}"
                    for rate in (point.theoretical_hit_rate, point.counted_hit_rate)
                ),
                f"{point.figures['ttft_p50'].value:.1f}" if "ttft_p50" in point.figures else "–",
            )
            for point in self.points
        ]
        header = ("Point", "Runs", "Theory", "Counted", "TTFT P50, ms")
        return html_tables(f"Sweep {self.directory.name}", [(f"{self.missing} runs missing", header, rows)])


def read_sweep(directory: Path | str) -> Sweep:
    """The sweep in ``directory``, finished or not. Raises ArtifactError where it is none or damaged."""
    files = SweepDirectory(Path(directory).absolute())
    plan = files.read_plan()
    rows = files.read_table()
    points = []
    for index, settings in enumerate(plan.points):
        own = [row for row in rows if row["point"] == index]
        complete = sorted((row for row in own if row["status"] == "complete"), key=lambda row: row["repeat"])
        records = [read_records(files.run(index, row["repeat"]).requests) for row in complete]
        points.append(_point(index, settings, complete, sum(row["status"] == "failed" for row in own), records))
    return Sweep(files.path, plan, tuple(rows), tuple(points))


def _point(
    index: int, settings: Point, complete: Sequence[Row], failed: int, records: Sequence[Sequence[RequestRecord]]
) -> PointResult:
    done = [[record for record in run if record.success] for run in records]
    in_flight = max((row["batch_size"] for row in complete), default=1)
    figures = {}
    for name in SUMMARY_METRICS:
        metric = metric_named(name)
        found = estimate(metric, [metric.values(run) for run in done], in_flight=in_flight, random_seed=_RANDOM_SEED)
        if found is not None:
            figures[name] = found
    known = [row for row in complete if row.get("ttft_ms_mean") is not None and row["counted_input_tokens"]]
    return PointResult(
        index,
        settings,
        complete=len(complete),
        failed=failed,
        batch_size=in_flight if complete else None,
        theoretical_hit_rate=_rate(complete, "theoretical", "theoretical"),
        reachable_hit_rate=_reachable(complete),
        counted_hit_rate=_rate(complete, "counted", "counted"),
        as_planned=bool(complete) and all(row["as_planned"] for row in complete),
        figures=figures,
        uncached_tokens=tuple(
            (row["counted_input_tokens"] - row["counted_hit_tokens"]) / row["requests"] for row in known
        ),
        ttft_ms=tuple(row["ttft_ms_mean"] for row in known),
    )


def complete_row(outcome: RunOutcome) -> Row:
    """The columns of a run that is complete; rates are fractions of 1, other units stand in the names."""
    analysis = outcome.analysis
    theory, actual = analysis.get("theory") or {}, analysis.get("actual") or {}
    planned = (theory.get("hit_tokens"), theory.get("input_tokens"))
    least, most = _planned_hits(theory)
    counted = (actual.get("global_hits"), actual.get("global_queries"))
    performance = analysis.get(PERFORMANCE_KEY) or {}
    throughput = performance.get("throughput") or {}
    row: Row = {
        "status": "complete",
        "theoretical_hit_tokens": planned[0],
        "theoretical_input_tokens": planned[1],
        "reachable_hit_tokens": _reachable_hits(analysis),
        "counted_hit_tokens": counted[0],
        "counted_input_tokens": counted[1],
        "theoretical_hit_rate": analysis.get("theoretical_hit_rate"),
        "counted_hit_rate": actual.get("global_hit_rate"),
        "as_planned": counted[0] is not None and planned[1] == counted[1] and least <= counted[0] <= most,
        "batch_size": outcome.aisbench.batch_size,
        "request_rate_per_s": (performance.get("request_rate") or {}).get("asked_per_s"),
        "requests": performance.get("requests"),
        "failed_requests": performance.get("failed_requests"),
        "duration_s": performance.get("duration_s"),
        **{name: throughput.get(name) for name in ("requests_per_s", "input_tokens_per_s", "output_tokens_per_s")},
        "goodput_share": (performance.get("goodput") or {}).get("share"),
    }
    for latency, values in (performance.get("latency") or {}).items():
        row |= {f"{latency}_{figure}": values[figure] for figure in _LATENCY_FIGURES if figure in values}
    return row


def failed_row(error: PrefixCacheError) -> Row:
    """The columns of a run that failed: the first of its problems, and the exit code that `run` has for it."""
    first = error.problems[0]
    said = f"{first.where}: {first.message}".lstrip(": ")
    return {"status": "failed", "error_code": str(first.code), "error": said, "exit_code": error.exit_code}


def _rate(complete: Sequence[Row], hits: str, tokens: str) -> float | None:
    """Over all runs of a point: hit tokens over tokens, each as theoretical, reachable or counted."""
    known = [row for row in complete if row[f"{tokens}_input_tokens"]]
    total = sum(row[f"{tokens}_input_tokens"] for row in known)
    return sum(row[f"{hits}_hit_tokens"] for row in known) / total if total else None


def _planned_hits(theory: Mapping[str, Any]) -> tuple[int, int]:
    """The fewest and the most hits of theory: the same but where the server or a router chooses the ranks."""
    bounds, hits = theory.get("range", {}), theory.get("hit_tokens", 0)
    return bounds.get("least_hit_tokens", hits), bounds.get("most_hit_tokens", hits)


def _reachable_hits(analysis: Mapping[str, Any]) -> int | None:
    """What a cache of the server's size hits of the requests, by the replay; of theory where nothing is missing."""
    planned = (analysis.get("theory") or {}).get("hit_tokens")
    counted = (analysis.get("actual") or {}).get("global_hits")
    if planned is None or counted is None:
        return None
    if counted >= _planned_hits(analysis["theory"])[0]:
        return int(planned)
    prediction = (analysis.get("runtime") or {}).get(FACTS_KEY, {}).get("cache_prediction")
    return None if prediction is None else int(prediction["hit_tokens"])


def _reachable(complete: Sequence[Row]) -> float | None:
    """Over all runs of a point, if each of them has it."""
    known = all(row.get("reachable_hit_tokens") is not None for row in complete)
    return _rate(complete, "reachable", "theoretical") if known else None


def _line_name(point: PointResult) -> str:
    others = {
        field: value for field, value in point.settings.items() if field not in (HIT_RATE_FIELD, CONCURRENCY_FIELD)
    }
    return f"concurrency {point.batch_size}" + (f", {point_name(others)}" if others else "")


def sweep_document(sweep: Sweep) -> dict[str, Any]:
    """What ``sweep --json`` prints: ``{directory, missing, points, costs, rows}``."""
    return {
        "directory": str(sweep.directory),
        "missing": sweep.missing,
        "points": [asdict(point) for point in sweep.points],
        "costs": {name: asdict(cost) for name, cost in sweep.costs.items()},
        "rows": list(sweep.rows),
    }
