"""Two runs or sweeps set beside each other, figure by figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ais_bench_prefix_cache.analysis.metric import Metric, metric_named
from ais_bench_prefix_cache.comparisons.conditions import Condition, ConditionState, parse_conditions
from ais_bench_prefix_cache.comparisons.difference import Difference, Side, Verdict, difference
from ais_bench_prefix_cache.comparisons.measured import Measured, MeasuredRun, Settings, read_measured
from ais_bench_prefix_cache.comparisons.turns import TurnComparison, compare_turns
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.reporting.notebook import data_frame, html_tables
from ais_bench_prefix_cache.sweeps.points import point_name

if TYPE_CHECKING:
    import pandas

METRICS = ("ttft_p50", "ttft_p90", "ttft_p99", "tpot_p50", "tpot_p99", "e2el_p50", "e2el_p99", "requests_per_s")
THRESHOLD = 0.05
OverallVerdict = Literal["better", "worse", "mixed", "no difference shown", "too few data"]
_NOT_OF_INTEREST = ("run", "corpus", "tokenizer", "aisbench.work_dir")
"""Where files lie and what they are called; whether data sets are the same their digests say."""


@dataclass(frozen=True)
class PointComparison:
    """One point: how many runs each side has there, and hits and tokens as counted (None where nobody counted).

    ``turns`` is empty unless both sides sent conversations.
    """

    settings: Settings
    baseline_runs: int
    candidate_runs: int
    same_data_set: bool
    baseline_counted: tuple[int, int] | None
    candidate_counted: tuple[int, int] | None
    differences: tuple[Difference, ...]
    turns: tuple[TurnComparison, ...] = ()

    @property
    def name(self) -> str:
        return point_name(self.settings)


@dataclass(frozen=True)
class Comparison:
    """``differing`` are configuration fields with the value of each side; ``unmatched`` points that one side lacks.

    ``conditions`` are those of ``fail_if`` with what became of them.
    """

    baseline: Path
    candidate: Path
    points: tuple[PointComparison, ...]
    unmatched: tuple[str, ...]
    differing: Mapping[str, tuple[Any, Any]]
    conditions: tuple[tuple[Condition, ConditionState], ...]
    threshold: float
    imitation: bool

    @property
    def differences(self) -> tuple[Difference, ...]:
        return tuple(each for point in self.points for each in point.differences)

    @property
    def same_data_sets(self) -> bool:
        return all(point.same_data_set for point in self.points)

    @property
    def verdict(self) -> OverallVerdict:
        """Worse or better where a figure is and none is the opposite; too few data where nothing could be judged."""
        verdicts = {each.verdict for each in self.differences}
        if verdicts >= {"better", "worse"}:
            return "mixed"
        ranked: tuple[Verdict, ...] = ("worse", "better", "no difference shown")
        return next((each for each in ranked if each in verdicts), "too few data")

    def state(self) -> ConditionState:
        """Of all conditions together: met where one is, else not judged where one is not."""
        states = [state for _, state in self.conditions]
        ranked: tuple[ConditionState, ...] = ("met", "not judged")
        return next((each for each in ranked if each in states), "not met")

    def to_pandas(self) -> pandas.DataFrame:
        """One row a figure of a point. Raises PrefixCacheError without pandas."""
        return data_frame(
            [{"point": point.name, **asdict(each)} for point in self.points for each in point.differences]
        )

    def _repr_html_(self) -> str:
        rows = [
            (
                f"{point.name} {each.metric}".strip(),
                *("–" if value is None else f"{value:.4g} {each.unit}" for value in (each.baseline, each.candidate)),
                "–" if each.change is None else f"{each.change:+.1%}",
                each.verdict,
            )
            for point in self.points
            for each in point.differences
        ]
        table = (self.verdict, ("Figure", "Baseline", "Candidate", "Change", "Verdict"), rows)
        return html_tables(f"{self.candidate.name} beside {self.baseline.name}", [table], self.unmatched)


def compare(
    baseline: Path | str,
    candidate: Path | str,
    *,
    metrics: Sequence[str] = METRICS,
    fail_if: Sequence[str] = (),
    threshold: float = THRESHOLD,
    random_seed: int = 0,
) -> Comparison:
    """Compare two runs or two sweeps, each named by its directory.

    ``metrics`` are figures such as ``ttft_p99``; those of the conditions ``fail_if`` (``"ttft_p99 > +5%"``) come
    besides. ``threshold`` is the smallest change that counts (0.05: 5 %). Points of two sweeps are matched by what was
    set there; a run is compared with a run.

    Raises:
        ArtifactError: a directory is none of a run or sweep, or nothing matches.
        CalculationError: a figure or condition cannot be read.
    """
    conditions = parse_conditions(fail_if)
    names = dict.fromkeys([*metrics, *(condition.metric for condition in conditions)])
    figures = [metric_named(name) for name in names]
    sides = (read_measured(baseline), read_measured(candidate))
    matched, unmatched = _matched(*sides)
    count = len(matched) * len(figures)
    points = tuple(
        _compared(settings, one, other, figures, threshold=threshold, comparisons=count, random_seed=random_seed)
        for settings, one, other in matched
    )
    differences = [each for point in points for each in point.differences]
    first = matched[0]
    return Comparison(
        sides[0].path,
        sides[1].path,
        points,
        unmatched,
        dict(_differing(first[1][0].config, first[2][0].config)),
        tuple((condition, condition.state(differences)) for condition in conditions),
        threshold,
        any(run.imitation for _, one, other in matched for run in (*one, *other)),
    )


def _matched(
    baseline: Measured, candidate: Measured
) -> tuple[list[tuple[Settings, Sequence[MeasuredRun], Sequence[MeasuredRun]]], tuple[str, ...]]:
    """Points of both sides, by their settings; two single points belong together whatever was set."""
    if len(baseline.points) == len(candidate.points) == 1:
        (settings, one), (_, other) = baseline.points[0], candidate.points[0]
        return [(settings, one, other)], ()
    others = [(dict(settings), runs) for settings, runs in candidate.points]
    matched = []
    alone = []
    for settings, one in baseline.points:
        found = next((each for each in others if each[0] == dict(settings)), None)
        if found is None:
            alone.append(f"{point_name(settings)}: only in {baseline.name}")
        else:
            others.remove(found)
            matched.append((settings, one, found[1]))
    alone += [f"{point_name(settings)}: only in {candidate.name}" for settings, _ in others]
    if not matched:
        raise ArtifactError.of(
            Code.NOTHING_TO_COMPARE,
            f"{baseline.path}, {candidate.path}",
            "they have no point in common",
            hint="Points are matched by the fields that were set: sweep both servers with the same --set.",
        )
    return matched, tuple(alone)


def _compared(
    settings: Settings,
    baseline: Sequence[MeasuredRun],
    candidate: Sequence[MeasuredRun],
    figures: Sequence[Metric],
    **judging: Any,
) -> PointComparison:
    same = all(baseline[0].same_data_set(run) for run in (*baseline, *candidate))
    # The n-th values belong together where the same requests succeeded in every run.
    answered = [[record.index for record in run.done] for run in (*baseline, *candidate)]
    paired = same and len(baseline) == len(candidate) and all(sorted(each) == sorted(answered[0]) for each in answered)
    differences = tuple(
        difference(metric, _side(metric, baseline), _side(metric, candidate), paired=paired, **judging)
        for metric in figures
    )
    counted = (_counted(baseline), _counted(candidate))
    turns = compare_turns(baseline, candidate)
    return PointComparison(settings, len(baseline), len(candidate), same, *counted, differences, turns)


def _side(metric: Metric, runs: Sequence[MeasuredRun]) -> Side:
    return Side([metric.values(run.done) for run in runs], max(run.batch_size for run in runs))


def _counted(runs: Sequence[MeasuredRun]) -> tuple[int, int] | None:
    """Hit tokens and tokens over all runs."""
    known = [
        (run.counted_hits, run.counted_tokens)
        for run in runs
        if run.counted_hits is not None and run.counted_tokens is not None
    ]
    return (sum(hits for hits, _ in known), sum(tokens for _, tokens in known)) if known else None


def _differing(one: Any, other: Any, place: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """The fields in which two effective configurations differ."""
    if place in _NOT_OF_INTEREST or one == other:
        return
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in dict.fromkeys((*one, *other)):
            yield from _differing(one.get(key), other.get(key), f"{place}.{key}" if place else str(key))
    else:
        yield place, (one, other)
