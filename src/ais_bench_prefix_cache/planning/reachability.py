"""Which totals of hit tokens the lengths, the order and the cache mode allow."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from ais_bench_prefix_cache.planning.lanes import Lanes
from ais_bench_prefix_cache.planning.plan import Int32Column, Int64Column, Reachability


def prefix_capacities(input_tokens: Int64Column, minimum_non_shared_tokens: int, block_size: int) -> Int64Column:
    """The blocks that each request can share: ``floor((n - minimum_non_shared) / block_size)``, at least 0."""
    return np.maximum(input_tokens - minimum_non_shared_tokens, 0) // block_size


def cold_hit_limits(capacity: Int64Column, lanes: Lanes) -> Int64Column:
    """The most blocks that each request can hit in cold mode: ``min(cap, largest earlier cap in its lane)``.

    Every total from 0 to the sum of the limits can be reached: let the requests of each lane share all they can up
    to some request, that one a part, and the later ones nothing.
    """
    return np.minimum(capacity, lanes.previous(lanes.running_max(capacity)))


def reachability(input_tokens: Int64Column, hit_limits: Int64Column, block_size: int) -> Reachability:
    """``hit_limits`` in blocks per request; the minimum is always 0, where nothing is shared."""
    return Reachability(int(input_tokens.sum()), 0, int(hit_limits.sum()) * block_size)


def group_reachability(
    input_tokens: Int64Column, hit_limits: Int64Column, group: Int32Column, groups: int, block_size: int
) -> tuple[Reachability, ...]:
    """Like :func:`reachability`, for each group by itself."""
    inputs, limits = np.zeros(groups, dtype=np.int64), np.zeros(groups, dtype=np.int64)
    np.add.at(inputs, group, input_tokens)
    np.add.at(limits, group, hit_limits)
    return tuple(
        Reachability(tokens, 0, blocks * block_size)
        for tokens, blocks in zip(inputs.tolist(), limits.tolist(), strict=True)
    )


def nearest_hit_blocks(target_hit_rate: float, total_input_tokens: int, block_size: int, max_hit_blocks: int) -> int:
    """The reachable total of hit blocks nearest to the target: ``round(target * tokens / block_size)``, clipped.

    The target is taken as the decimal number that the user wrote, and exactly one half is rounded up.
    """
    exact = Fraction(repr(float(target_hit_rate))) * total_input_tokens / block_size
    return min(max((2 * exact.numerator + exact.denominator) // (2 * exact.denominator), 0), max_hit_blocks)
