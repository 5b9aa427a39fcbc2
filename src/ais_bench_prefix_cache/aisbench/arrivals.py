"""When each request is due, where the Scenario asks for a rate."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ais_bench_prefix_cache.foundation.random_streams import RandomStream


def arrival_seconds(
    count: int, rate: float, arrivals: Literal["poisson", "even"], random_seed: int
) -> NDArray[np.float64]:
    """Seconds after the first request at which each of ``count`` requests is due; the first is due at 0.

    ``rate`` is in requests a second. Even arrivals are 1/rate apart; the gaps of a Poisson process are exponential with
    that mean.
    """
    if arrivals == "even":
        return np.arange(count) / rate
    uniform = (RandomStream(random_seed, "arrivals").words(count).astype(np.float64) + 0.5) * 2.0**-64
    gaps = -np.log(uniform) / rate
    gaps[:1] = 0.0
    return np.cumsum(gaps)
