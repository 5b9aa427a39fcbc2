"""What the cache of each lane does with a finished plan. Knows nothing of how the plan was made."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ais_bench_prefix_cache.planning.lanes import Lanes
from ais_bench_prefix_cache.planning.plan import Int32Column, Int64Column


@dataclass(frozen=True, eq=False)
class SimulatedPlan:
    """Tokens, in send order."""

    hit_tokens: Int64Column
    watermark_before: Int64Column
    watermark_after: Int64Column


def simulate_cold(shared_prefix_tokens: Int64Column, lanes: Lanes) -> SimulatedPlan:
    """Each lane starts empty: ``hit = min(shared, watermark)``, then ``watermark = max(watermark, shared)``."""
    after = lanes.running_max(shared_prefix_tokens)
    before = lanes.previous(after)
    return SimulatedPlan(np.minimum(shared_prefix_tokens, before), before, after)


def simulate_warm(
    shared_prefix_tokens: Int64Column, group: Int32Column, canonical_prefix_tokens: Int64Column
) -> SimulatedPlan:
    """Each group's canonical prefix is in every rank's cache before the first request."""
    watermark = canonical_prefix_tokens[group]
    return SimulatedPlan(np.minimum(shared_prefix_tokens, watermark), watermark, watermark)
