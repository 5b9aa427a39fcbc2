"""How closely a plan's cumulative hit rate keeps to the target, and how closely any plan could."""

from __future__ import annotations

import numpy as np

from ais_bench_prefix_cache.planning.plan import Int64Column

SETTLING_SHARE = 0.1
"""The share of the input tokens after which the distance from the target counts."""


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

    ``hit_limits`` are the most blocks that each request can hit. With the cumulative inputs ``P`` and limits ``M``
    (in tokens), the target ``t`` and a distance ``d``: from request ``i`` to ``j`` the hits grow by at most
    ``M[j] - M[i]``, hence ``(t - d) P[j] <= (t + d) P[i] + M[j] - M[i]``, also from nothing (``P = M = 0``) and to the
    last request, whose distance is 0. So ``d`` is the maximum of ``(F[j] - F[i]) / (P[i] + P[j])`` over all such pairs,
    where ``F = t P - M``. Dinkelbach's iteration finds it in a few passes.
    """
    inputs = np.cumsum(input_tokens).astype(np.float64)
    limits = np.cumsum(hit_limits * block_size).astype(np.float64)
    start = settled(input_tokens)
    target = hit_blocks * block_size / float(inputs[-1])
    inputs, limits = inputs[start:], limits[start:]
    shortage = target * inputs - limits
    weight_to = inputs.copy()
    weight_to[-1] = 0.0
    distance = 0.0
    while True:
        from_here = shortage + distance * inputs
        lowest = np.minimum(np.minimum.accumulate(from_here), 0.0)
        excess = shortage - distance * weight_to - lowest
        last = int(np.argmax(excess))
        first = int(np.argmin(from_here[: last + 1]))
        from_start = from_here[first] >= 0.0
        above = shortage[last] - (0.0 if from_start else shortage[first])
        weight = weight_to[last] + (0.0 if from_start else inputs[first])
        if weight <= 0.0 or above / weight <= distance * (1 + 1e-12) + 1e-15:
            return distance
        distance = float(above / weight)
