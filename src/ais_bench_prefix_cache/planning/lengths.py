"""Token lengths of requests, drawn from a named random stream.

Only integers, ``+ - * /`` and square roots decide a length, never the C library's ``exp`` or ``log``, whose last
digits differ between machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Literal

import numpy as np
import numpy.typing as npt

from ais_bench_prefix_cache.foundation.names import group_name
from ais_bench_prefix_cache.foundation.random_streams import RandomStream
from ais_bench_prefix_cache.planning.plan import Int32Column, Int64Column
from ais_bench_prefix_cache.scenario.model import (
    FixedLength,
    LengthSpec,
    RangeLengths,
    TruncatedNormalLength,
    UniformLength,
)

Float64Column = npt.NDArray[np.float64]

DENSITY_PANELS = 8192
"""Panels of the piecewise linear density of a truncated normal; its relative error is below 1e-5."""
DENSITY_CUTOFF = 42.0
"""Exponent below the densest point at which the density counts as zero (``exp(-42)`` is 6e-19)."""
_MASS_BITS = 40
_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.693147180369123816490
_LN2_LOW = 1.90821492927058770002e-10


def sample_lengths(spec: LengthSpec, count: int, stream: RandomStream) -> Int64Column:
    """``count`` lengths in generation order.

    Lists (``explicit``, ``csv``) keep their order; ``range`` gives the first interval's lengths first and does not
    shuffle, so that a list and a range that is as narrow as possible mean the same.

    Raises :class:`ValueError` if the specification is made for another number of requests; loading a Scenario has
    checked that already.
    """
    if isinstance(spec, FixedLength):
        return np.full(count, spec.value, dtype=np.int64)
    if isinstance(spec, UniformLength):
        return stream.integers(spec.min, spec.max, count)
    if isinstance(spec, TruncatedNormalLength):
        return _truncated_normal(spec, count, stream)
    if isinstance(spec, RangeLengths):
        drawn = [stream.integers(part.min, part.max, part.count) for part in spec.ranges]
        lengths = np.concatenate(drawn) if drawn else np.empty(0, dtype=np.int64)
    else:
        lengths = np.asarray(spec.values, dtype=np.int64)
    if lengths.size != count:
        raise ValueError(f"{lengths.size} lengths for {count} requests")
    return lengths


def request_lengths(
    kind: Literal["input", "output"],
    spec: LengthSpec,
    overrides: Mapping[int, LengthSpec],
    groups: Int32Column,
    random_seed: int,
) -> Int64Column:
    """The lengths of all requests in generation order; ``groups`` are their groups.

    The global specification is drawn for every request; an override then replaces those of its group. So an override
    of one group leaves the lengths of the others as they were.
    """
    lengths = sample_lengths(spec, groups.size, RandomStream(random_seed, "lengths", kind))
    for group in sorted(overrides):
        stream = RandomStream(random_seed, "lengths", kind, group_name(group))
        members = np.flatnonzero(groups == group)
        lengths[members] = sample_lengths(overrides[group], members.size, stream)
    return lengths


def _truncated_normal(spec: TruncatedNormalLength, count: int, stream: RandomStream) -> Int64Column:
    """Normal numbers, rounded to integers, of which only those in [min, max] are kept, by inverse sampling.

    That is a normal truncated to [min - 1/2, max + 1/2] and rounded. Its density is tabulated at equal steps around
    its densest point, as far as it is noticeable, and taken as linear in between; so neither the width of the
    interval nor the distance of the mean costs time or memory.
    """
    if spec.min == spec.max:
        return np.full(count, spec.min, dtype=np.int64)
    low, high = (spec.min - 0.5 - spec.mean) / spec.std, (spec.max + 0.5 - spec.mean) / spec.std
    densest = min(max(0.0, low), high)
    # exp(-(z*z - a*a) / 2) with z = a + offset is exp(-offset * (a + offset / 2)): no cancellation for a far mean.
    reach = 2 * DENSITY_CUTOFF / (abs(densest) + sqrt(densest * densest + 2 * DENSITY_CUTOFF))
    first, last = max(low - densest, -reach), min(high - densest, reach)
    step = (last - first) / DENSITY_PANELS
    offsets = first + step * np.arange(DENSITY_PANELS + 1, dtype=np.float64)
    density = _exp(-offsets * (densest + offsets / 2))
    mass = ((density[:-1] + density[1:]) * float(1 << (_MASS_BITS - 1))).astype(np.int64)
    upper = np.cumsum(mass)
    drawn = stream.integers(0, int(upper[-1]) - 1, count)
    panel = np.searchsorted(upper, drawn, side="right")
    share = (drawn - (upper[panel] - mass[panel]) + 0.5) / mass[panel]
    left, right = density[panel], density[panel + 1]
    within = share * (left + right) / (left + np.sqrt(left * left + (right * right - left * left) * share))
    offset = first + step * (panel + within)
    if densest == low:
        exact = (spec.min - 0.5) + spec.std * offset
    elif densest == high:
        exact = (spec.max + 0.5) + spec.std * offset
    else:
        exact = spec.mean + spec.std * offset
    return np.asarray(np.clip(np.floor(exact + 0.5), spec.min, spec.max), dtype=np.int64)


def _exp(exponents: Float64Column) -> Float64Column:
    """``exp`` of numbers in about [-60, 1] from correctly rounded operations only, to about 1e-15."""
    halvings = np.floor(exponents * _LOG2_E + 0.5)
    rest = (exponents - halvings * _LN2_HIGH) - halvings * _LN2_LOW
    result = np.ones_like(rest)
    for power in range(14, 0, -1):
        result = 1.0 + result * rest / power
    return np.asarray(np.ldexp(result, halvings.astype(np.int64)), dtype=np.float64)
