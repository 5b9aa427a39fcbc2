"""What a sweep would do, and about how long, before anything is sent."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ais_bench_prefix_cache.datasets.format.documents import read_document
from ais_bench_prefix_cache.datasets.format.manifest_search import data_sets_beside, find_manifest
from ais_bench_prefix_cache.datasets.kinds import kind_named, sent_kinds
from ais_bench_prefix_cache.foundation.errors import ArtifactError, GenerationError
from ais_bench_prefix_cache.scenario.identity import data_sha256
from ais_bench_prefix_cache.scenario.model import Scenario
from ais_bench_prefix_cache.sweeps.plan import SweepPlan
from ais_bench_prefix_cache.sweeps.points import point_name
from ais_bench_prefix_cache.sweeps.sweep_sequence import load_points

LEAST_SECONDS = 15.0
"""What AISBench's start, the checks of the server and the warm-up take at least."""


@dataclass(frozen=True)
class PointPreview:
    """``theoretical_hit_rate`` is None where only the prompts will tell; ``problem`` says why it cannot be planned."""

    name: str
    requests: int
    batch_size: int
    theoretical_hit_rate: float | None
    prepared: bool
    problem: str | None = None


@dataclass(frozen=True)
class Preview:
    """``seconds_a_run`` is the median of ``runs_seen`` earlier runs; of none it is the least that a run takes."""

    points: tuple[PointPreview, ...]
    runs: int
    data_sets_to_prepare: int
    seconds_a_run: float
    runs_seen: int


def preview(plan: SweepPlan) -> Preview:
    """Plan every point from its numbers. Nothing is sent or written."""
    scenarios = load_points(plan.scenario, [plan.fields(point) for point in range(len(plan.points))])
    shown = [_point(scenario, point_name(point)) for scenario, point in zip(scenarios, plan.points, strict=True)]
    absent = {
        data_sha256(scenario.effective, kind_named(scenario.benchmark_mode).scenario_rules)
        for scenario, point in zip(scenarios, shown, strict=True)
        if not point.prepared
    }
    seen = _seconds_of_runs(scenarios)
    return Preview(
        tuple(shown),
        plan.runs,
        len(absent),
        statistics.median(seen) if seen else LEAST_SECONDS,
        len(seen),
    )


def _point(scenario: Scenario, name: str) -> PointPreview:
    requests, rate, problem = scenario.requests.count, None, None
    try:
        planned = kind_named(scenario.benchmark_mode).inspect(scenario)
        requests, rate = planned.requests, planned.theoretical_hit_rate
    except GenerationError as error:
        problem = str(error.problems[0])
    prepared = find_manifest(scenario, ("prepared",), benchmark_modes=sent_kinds(scenario)).found is not None
    return PointPreview(name, requests, scenario.aisbench.model.batch_size, rate, prepared, problem)


def _seconds_of_runs(scenarios: Sequence[Scenario]) -> list[float]:
    """How long complete runs of the same Scenario took."""
    places = {(scenario.run.output_dir, scenario.run.run_id): scenario for scenario in scenarios}
    seconds = []
    for scenario in places.values():
        for data_set in data_sets_beside(scenario):
            for run in data_set.runs():
                try:
                    record, _ = read_document(run.record, what="record of the run")
                    begun, ended = (datetime.fromisoformat(str(record[key])) for key in ("started_at", "finished_at"))
                except (ArtifactError, KeyError, ValueError):
                    continue
                if record.get("status") == "complete":
                    seconds.append((ended - begun).total_seconds())
    return seconds
