"""How sure a figure is: Student's intervals over repeated runs, moving blocks over the requests of one.

Requests that are served at the same time share what disturbs them, so that single requests must not be drawn
independently: blocks of neighbours are (Künsch 1989, *The jackknife and the bootstrap for general stationary
observations*). Even so, blocks only show what varies within a run; what differs from run to run, only repeated runs
show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ais_bench_prefix_cache.analysis.metric import Metric, Values
from ais_bench_prefix_cache.foundation.random_streams import RandomStream

CONFIDENCE = 0.95
LEAST_REPEATS = 3
"""From so many runs on, runs are what varies; below, requests are."""
LEAST_BLOCKS = 4
MOST_BLOCKS = 16
LEAST_BLOCK_LENGTH = 5
_DRAWS = 1000
_MOST_DRAWN = 20_000_000
_AT_ONCE = 2_000_000


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval; ``source`` says over what that was taken, ``count`` over how many."""

    value: float
    low: float | None
    high: float | None
    source: Literal["repeats", "requests"]
    count: int


@cache
def student_t(confidence: float, degrees: int) -> float:
    """The ``t`` that Student's distribution stays within, on both sides, with this probability.

    With tan(a) = t / √degrees the density is cos(a)^(degrees - 1), which is summed up here.
    """
    angles = np.linspace(0.0, math.pi / 2, 200_001)
    density = np.cos(angles) ** (degrees - 1)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return math.sqrt(degrees) * math.tan(float(np.interp(confidence, mass / mass[-1], angles)))


def estimate(metric: Metric, runs: Sequence[Values], *, in_flight: int, random_seed: int) -> Estimate | None:
    """The figure of one point: the mean over its runs, or of the requests of one or two. None without any value.

    ``in_flight`` is how many requests were served at the same time.
    """
    runs = [values for values in runs if len(values)]
    if not runs:
        return None
    figures = np.asarray([float(metric.of(values)) for values in runs])
    if len(figures) >= LEAST_REPEATS:
        half = student_t(CONFIDENCE, len(figures) - 1) * figures.std(ddof=1) / math.sqrt(len(figures))
        mean = float(figures.mean())
        return Estimate(mean, max(0.0, mean - half), mean + half, "repeats", len(figures))
    values = np.concatenate(runs)
    length = block_length(len(values), in_flight)
    low = high = None
    if len(values) // length >= LEAST_BLOCKS and len(values) >= metric.least_requests:
        drawn = resampled(
            len(values), length, lambda rows: metric.of(values[rows]), RandomStream(random_seed, metric.name)
        )
        low, high = (float(bound) for bound in np.percentile(drawn, [2.5, 97.5]))
    return Estimate(float(metric.of(values)), low, high, "requests", len(values))


def block_length(count: int, in_flight: int) -> int:
    """Requests of a block: at least as many as are in flight together, and at most 16 blocks."""
    return max(min(in_flight, count), -(-count // MOST_BLOCKS), LEAST_BLOCK_LENGTH)


def blocks(count: int, length: int) -> list[slice]:
    """Neighbouring requests in blocks of one length or a little more."""
    number = max(1, count // length)
    ends = [count * block // number for block in range(number + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


def resampled(
    count: int,
    length: int,
    statistic: Callable[[npt.NDArray[np.int64]], Any],
    stream: RandomStream,
    *,
    draws: int = _DRAWS,
) -> npt.NDArray[np.float64]:
    """The statistic of ``count`` requests drawn as moving blocks, which go on at the beginning where the end is.

    ``statistic`` is given the drawn positions, a row a draw. Of very many requests fewer draws are made than asked for.
    """
    draws = min(draws, max(100, _MOST_DRAWN // count))
    starts_a_draw = -(-count // length)
    found = []
    at_once = max(1, _AT_ONCE // count)
    for first in range(0, draws, at_once):
        rows = min(at_once, draws - first)
        starts = stream.integers(0, count - 1, rows * starts_a_draw).reshape(rows, starts_a_draw, 1)
        positions = (starts + np.arange(length)) % count
        found.append(np.asarray(statistic(positions.reshape(rows, -1)[:, :count]), dtype=float))
    return np.concatenate(found)
