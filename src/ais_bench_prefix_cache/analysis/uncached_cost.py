"""What a token costs that is not in the cache: the slope of the time to the first token over uncached tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ais_bench_prefix_cache.analysis.intervals import CONFIDENCE, student_t

LEAST_RUNS = 4
LEAST_R_SQUARED = 0.5


@dataclass(frozen=True)
class UncachedCost:
    """``us_per_token`` with its 95 % interval; the line passes ``ms_at_zero`` milliseconds at no uncached token."""

    us_per_token: float
    low: float
    high: float
    ms_at_zero: float
    r_squared: float
    runs: int


def uncached_cost(uncached_tokens: Sequence[float], ttft_ms: Sequence[float]) -> UncachedCost | None:
    """A straight line by least squares through the means of runs; None where the data show none.

    Each run is one point: mean uncached tokens of a request, mean TTFT in milliseconds. A line is shown from four runs
    with three different numbers of tokens on, where its slope's interval lies above 0 and it explains half of what
    varies.
    """
    tokens, times = np.asarray(uncached_tokens, dtype=float), np.asarray(ttft_ms, dtype=float)
    if len(tokens) < LEAST_RUNS or len(set(uncached_tokens)) < 3:
        return None
    spread = tokens - tokens.mean()
    slope = float(spread @ times / (spread @ spread))
    start = float(times.mean() - slope * tokens.mean())
    left = float(((times - start - slope * tokens) ** 2).sum())
    whole = float(((times - times.mean()) ** 2).sum())
    degrees = len(tokens) - 2
    half = student_t(CONFIDENCE, degrees) * math.sqrt(left / degrees / float(spread @ spread))
    r_squared = 1.0 - left / whole if whole else 0.0
    if slope - half <= 0 or r_squared < LEAST_R_SQUARED:
        return None
    return UncachedCost(1000 * slope, 1000 * (slope - half), 1000 * (slope + half), start, r_squared, len(tokens))
