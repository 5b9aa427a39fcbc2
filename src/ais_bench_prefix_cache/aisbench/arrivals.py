"""When each request is due, where the Scenario asks for a rate."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Arrivals = Literal["poisson", "even"]


def arrival_seconds(count: int, rate: float, arrivals: Arrivals, random: np.random.Generator) -> NDArray[np.float64]:
    """Seconds after the first request at which each of ``count`` requests is due; the first is due at 0.

    ``rate`` is in requests a second. Even arrivals are 1/rate apart; the gaps of a Poisson process are exponential with
    that mean.
    """
    gaps = np.full(count, 1 / rate) if arrivals == "even" else random.exponential(1 / rate, count)
    gaps[:1] = 0.0
    return np.cumsum(gaps)
