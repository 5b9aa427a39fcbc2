"""One figure of two servers: how much it differs, and whether that is more than noise.

Differences are ratios: their logarithms are compared, so that a figure and its inverse are judged alike. Where both
sides have three runs or more, runs are what varies (Student's interval, one spread for both sides). Below that nothing
shows how runs differ from each other, only how parts of a run do. So the interval is made wider than resampling the
requests in blocks makes it: runs are taken to differ as much as the parts of a run do, and by
:data:`_STEADY_RUNS_DIFFER` besides. A server that was disturbed during one of two runs is not a slower server. How
often that is wrong, tests/unit/comparisons shows by simulation.

All intervals of a comparison hold together with 95 % (Bonferroni), and a difference counts from a threshold on only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from ais_bench_prefix_cache.analysis.intervals import (
    CONFIDENCE,
    LEAST_BLOCKS,
    LEAST_REPEATS,
    block_length,
    blocks,
    resampled,
    student_t,
)
from ais_bench_prefix_cache.analysis.metric import Metric, Values
from ais_bench_prefix_cache.foundation.random_streams import RandomStream

Verdict = Literal["better", "worse", "no difference shown", "too few data"]
LEAST_REQUESTS = 20
_DRAWS = 200
_STEADY_RUNS_DIFFER = 0.05
"""Standard deviation (of the logarithm) that a single run is given besides: steady runs differ, too."""
_LEAST_FIGURE = 1e-3
"""A microsecond; nothing below it is measured."""


@dataclass(frozen=True)
class Side:
    """The runs of one server at one point: for one figure, a value a request for each run.

    ``in_flight`` is how many requests were served at the same time.
    """

    runs: Sequence[Values]
    in_flight: int


@dataclass(frozen=True)
class Difference:
    """``change`` is candidate / baseline - 1; ``low`` and ``high`` bound it, None where there are too few data.

    ``source`` is what the interval was taken over, ``reason`` why there is none.
    """

    metric: str
    unit: str
    baseline: float | None
    candidate: float | None
    change: float | None
    low: float | None
    high: float | None
    source: Literal["repeats", "requests"] | None
    verdict: Verdict
    reason: str = ""


def difference(
    metric: Metric,
    baseline: Side,
    candidate: Side,
    *,
    paired: bool,
    threshold: float = 0.05,
    comparisons: int = 1,
    random_seed: int = 0,
) -> Difference:
    """Compare one figure. ``paired``: both sides sent the same requests, so that the n-th values belong together.

    ``threshold`` is the smallest change that counts (0.05: 5 %); ``comparisons`` is how many intervals hold together.
    """
    sides = [Side([run for run in side.runs if len(run)], side.in_flight) for side in (baseline, candidate)]
    if not all(side.runs for side in sides):
        return _too_few(metric, None, None, "it was not measured")
    repeated = all(len(side.runs) >= LEAST_REPEATS for side in sides)
    if repeated:
        logs = [np.log([max(float(metric.of(run)), _LEAST_FIGURE) for run in side.runs]) for side in sides]
        figures = [math.exp(float(log.mean())) for log in logs]
    else:
        wholes = [np.concatenate(side.runs) for side in sides]
        figures = [max(float(metric.of(whole)), _LEAST_FIGURE) for whole in wholes]
    requests = min(sum(map(len, side.runs)) for side in sides)
    least = max(LEAST_REQUESTS, metric.least_requests)
    if requests < least:
        return _too_few(metric, figures[0], figures[1], f"{requests} requests, and {least} are needed")
    confidence = 1 - (1 - CONFIDENCE) / comparisons
    if repeated:
        degrees = sum(len(log) - 1 for log in logs)
        spread = sum(float(((log - log.mean()) ** 2).sum()) for log in logs) / degrees
        variance = spread * sum(1 / len(log) for log in logs)
        factor = student_t(confidence, degrees)
    else:
        length = max(block_length(len(whole), side.in_flight) for whole, side in zip(wholes, sides, strict=True))
        number = min(len(whole) // length for whole in wholes)
        if number < LEAST_BLOCKS:
            reason = f"{requests} requests are {number} times what is in flight, and {LEAST_BLOCKS} times are needed"
            return _too_few(metric, figures[0], figures[1], reason)
        variance = _variance_within(metric, wholes, length, RandomStream(random_seed, metric.name), paired=paired)
        variance += _STEADY_RUNS_DIFFER**2 * sum(1 / len(side.runs) for side in sides)
        factor = NormalDist().inv_cdf((1 + confidence) / 2)
    half = factor * math.sqrt(variance)
    middle = math.log(figures[1] / figures[0])
    low, high = math.expm1(middle - half), math.expm1(min(middle + half, 700.0))
    return Difference(
        metric.name,
        metric.unit,
        figures[0],
        figures[1],
        change=math.expm1(middle),
        low=low,
        high=high,
        source="repeats" if repeated else "requests",
        verdict=_verdict(low, high, threshold, higher_is_better=metric.higher_is_better),
    )


def _variance_within(
    metric: Metric, wholes: Sequence[Values], length: int, stream: RandomStream, *, paired: bool
) -> float:
    """Variance of the logarithm of the ratio: from resampling, and as parts of a run differ from each other."""
    if paired and len(wholes[0]) == len(wholes[1]):
        first, second = wholes

        def log_ratio(part: Any) -> Values:
            return _log(metric, second[part]) - _log(metric, first[part])

        return _variance(len(first), length, log_ratio, stream)
    variance = 0.0
    for whole in wholes:

        def log_figure(part: Any, whole: Values = whole) -> Values:
            return _log(metric, whole[part])

        variance += _variance(len(whole), length, log_figure, stream)
    return variance


def _variance(count: int, length: int, figure: Callable[[Any], Values], stream: RandomStream) -> float:
    drawn = resampled(count, length, figure, stream, draws=_DRAWS)
    parts = [float(figure(part)) for part in blocks(count, length)]
    return float(drawn.var(ddof=1) + np.var(parts, ddof=1))


def _log(metric: Metric, values: Values) -> Values:
    return np.asarray(np.log(np.maximum(metric.of(values), _LEAST_FIGURE)), dtype=float)


def _verdict(low: float, high: float, threshold: float, *, higher_is_better: bool) -> Verdict:
    """The whole interval lies beyond the threshold, or nothing is shown."""
    if low > threshold:
        return "better" if higher_is_better else "worse"
    if high < -threshold / (1 + threshold):
        return "worse" if higher_is_better else "better"
    return "no difference shown"


def _too_few(metric: Metric, baseline: float | None, candidate: float | None, reason: str) -> Difference:
    change = candidate / baseline - 1 if baseline and candidate is not None else None
    return Difference(metric.name, metric.unit, baseline, candidate, change, None, None, None, "too few data", reason)
