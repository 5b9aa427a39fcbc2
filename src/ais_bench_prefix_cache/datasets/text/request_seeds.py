"""The number that each request's own text is made from; it follows from the Scenario alone."""

from __future__ import annotations

from ais_bench_prefix_cache.foundation.random_streams import derive_seed


def request_random_seed(random_seed: int, generation_index: int) -> int:
    """``request_random_seed`` of a row: 53 bits of the Scenario's seed and the request's number before ordering."""
    return derive_seed(random_seed, "request", generation_index) >> 75
