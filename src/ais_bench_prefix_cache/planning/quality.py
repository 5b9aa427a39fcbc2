"""How closely a plan's cumulative hit rate keeps to the target, and how closely any plan could."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ais_bench_prefix_cache.planning.plan import Int64Column

SETTLING_SHARE = 0.1
"""The share of the input tokens after which the distance from the target counts."""
ROUNDING_STEPS = 12
NEGLIGIBLE = 1e-6
ROUNDING = 1e-7
"""Blocks by which a curve may be wrong for the rounding of floating-point numbers."""


def settled(input_tokens: Int64Column) -> int:
    """The first request at which the cumulative input has reached :data:`SETTLING_SHARE` of the whole."""
    cumulative = np.cumsum(input_tokens)
    return int(np.searchsorted(cumulative, SETTLING_SHARE * float(cumulative[-1]), side="left"))


def largest_distance(input_tokens: Int64Column, hit_tokens: Int64Column) -> float:
    """The largest ``|cumulative hit rate - final hit rate|`` after the first tenth of the input tokens."""
    inputs, hits = np.cumsum(input_tokens), np.cumsum(hit_tokens)
    start = settled(input_tokens)
    return float(np.abs(hits[start:] / inputs[start:] - hits[-1] / inputs[-1]).max())


def smallest_possible_distance(
    input_tokens: Int64Column, hit_limits: Int64Column, hit_blocks: int, block_size: int
) -> float:
    """A lower bound of :func:`largest_distance` for every plan whose total is ``hit_blocks``.

    ``hit_limits`` are the most blocks that each request can hit. The bound is the smallest distance at which whole
    blocks can be handed out within these limits, found to :data:`ROUNDING_STEPS` halvings of what rounding to whole
    blocks can cost; where that is less than :data:`NEGLIGIBLE`, it is left out.
    """
    start = settled(input_tokens)
    nothing = np.zeros_like(hit_limits)
    distance = smallest_curve_distance(input_tokens, nothing, hit_limits, hit_blocks, block_size).distance
    blocks = np.cumsum(input_tokens)[start:] / block_size
    target, ceiling = hit_blocks / float(blocks[-1]), np.cumsum(hit_limits)[start:]

    def possible(allowed: float) -> bool:
        """Whether whole blocks can stay in the band; the numbers that they can reach are always an interval."""
        least = np.maximum.accumulate(np.ceil((target - allowed) * blocks - ROUNDING))
        most = np.floor((target + allowed) * blocks + ROUNDING)
        most[-1] = hit_blocks
        return bool((least <= ceiling + np.minimum(np.minimum.accumulate(most - ceiling), 0)).all())

    # Rounding the best curve of fractions moves it by at most half a block.
    width = 0.5 / float(blocks[0])
    if width < NEGLIGIBLE or possible(distance):
        return distance
    for _ in range(ROUNDING_STEPS):
        width /= 2
        if not possible(distance + width):
            distance += width
    return distance


class CurveDistance(NamedTuple):
    """The smallest distance that limits allow, and the requests after ``first`` up to ``last`` that allow no less."""

    distance: float
    first: int
    last: int
    place: int
    """The later of both whose distance counts: that of the last request of all is always 0."""


def smallest_curve_distance(
    input_tokens: Int64Column, low: Int64Column, high: Int64Column, hit_blocks: int, block_size: int
) -> CurveDistance:
    """The smallest :func:`largest_distance` of a plan that may hit fractions of blocks, ``low`` … ``high`` a request.

    With the cumulative inputs ``P`` and upper limits ``M`` (in tokens), the target ``t`` and a distance ``d``: from
    request ``i`` to ``j`` the hits grow by at most ``M[j] - M[i]``, hence ``(t - d) P[j] <= (t + d) P[i] + M[j] -
    M[i]``, also from nothing (``P = M = 0``) and to the last request, whose distance is 0. So ``d`` is at least the
    maximum of ``(F[j] - F[i]) / (P[i] + P[j])`` over all such pairs, where ``F = t P - M``. Lower limits ``L`` ask the
    same with ``F = L - t P``. No other limits bind, so the larger of both is attained.
    """
    start = settled(input_tokens)
    inputs = np.cumsum(input_tokens).astype(np.float64)
    target = hit_blocks * block_size / float(inputs[-1])
    inputs = inputs[start:]
    wanted = target * inputs
    binding = _steepest(wanted - np.cumsum(high * block_size).astype(np.float64)[start:], inputs)
    if low.any():
        ahead = _steepest(np.cumsum(low * block_size).astype(np.float64)[start:] - wanted, inputs)
        binding = max(binding, ahead)
    distance, first, last = binding
    first, last = first + start if first >= 0 else -1, last + start
    return CurveDistance(distance, first, last, last if first < 0 or last < input_tokens.size - 1 else first)


def _steepest(excess: npt.NDArray[np.float64], inputs: npt.NDArray[np.float64]) -> tuple[float, int, int]:
    """The maximum of ``(excess[j] - excess[i]) / (inputs[i] + inputs[j])`` over ``i < j``, at least 0; and where.

    Before the first comes one more ``i`` whose excess and input are 0, and the last ``j`` counts without its input.
    Dinkelbach's iteration finds it in a few passes.
    """
    weight_to = inputs.copy()
    weight_to[-1] = 0.0
    distance, pair = 0.0, (-1, 0)
    while True:
        from_here = excess + distance * inputs
        lowest = np.minimum(np.minimum.accumulate(from_here), 0.0)
        last = int(np.argmax(excess - distance * weight_to - lowest))
        first = int(np.argmin(from_here[: last + 1]))
        from_start = from_here[first] >= 0.0
        above = excess[last] - (0.0 if from_start else excess[first])
        weight = weight_to[last] + (0.0 if from_start else inputs[first])
        if weight <= 0.0 or above / weight <= distance * (1 + 1e-12) + 1e-15:
            return distance, *pair
        distance, pair = float(above / weight), (-1 if from_start else first, last)
