"""Groups: how many requests each has, checked with exact fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ais_bench_prefix_cache.scenario.groups import group_counts
from ais_bench_prefix_cache.scenario.model import GroupAssignment


@pytest.mark.parametrize(
    ("groups", "assignment", "requests", "expected"),
    [
        (3, GroupAssignment("uniform"), 10, (4, 3, 3)),
        (3, GroupAssignment("uniform"), 2, (1, 1, 0)),
        (1, GroupAssignment("uniform"), 7, (7,)),
        # 1, 1/2, 1/3, 1/4 of 100: 48, 24, 16, 12
        (4, GroupAssignment("zipf", exponent=1.0), 100, (48, 24, 16, 12)),
        # 1, 1/4, 1/9 of 49: 36, 9, 4
        (3, GroupAssignment("zipf", exponent=2.0), 49, (36, 9, 4)),
        (4, GroupAssignment("zipf", exponent=1e300), 100, (100, 0, 0, 0)),
        (4, GroupAssignment("weights", weights=(0.5, 0.3, 0.15, 0.05)), 100, (50, 30, 15, 5)),
        (2, GroupAssignment("weights", weights=(1.0, 1.0)), 5, (3, 2)),
        (3, GroupAssignment("weights", weights=(0.0, 1e-300, 1e300)), 10, (0, 0, 10)),
        # In binary, 0.1 + 0.2 is not 0.3; the weights are the decimals that were written: 1/6, 1/3, 1/2 of 3.
        (3, GroupAssignment("weights", weights=(0.1, 0.2, 0.3)), 3, (1, 1, 1)),
    ],
)
def test_counts(groups: int, assignment: GroupAssignment, requests: int, expected: tuple[int, ...]) -> None:
    assert group_counts(groups, assignment, requests) == expected


def test_a_zipf_exponent_that_is_not_an_integer_uses_correctly_rounded_powers() -> None:
    # 1, 1/sqrt(2), 1/sqrt(3), 1/2 of 10**6, from the squares: (w * 10**20)**2 is an integer.
    from math import isqrt

    weights = [isqrt(10**60 // rank) for rank in range(1, 5)]
    quotas = [Fraction(10**6 * weight, sum(weights)) for weight in weights]
    counts = group_counts(4, GroupAssignment("zipf", exponent=0.5), 10**6)
    assert sum(counts) == 10**6
    assert all(abs(count - quota) < 1 for count, quota in zip(counts, quotas, strict=True))


@settings(deadline=None)
@given(
    weights=st.lists(st.integers(0, 1000), min_size=1, max_size=8).filter(any),
    requests=st.integers(1, 500),
)
def test_weights_share_by_largest_remainder(weights: list[int], requests: int) -> None:
    counts = group_counts(len(weights), GroupAssignment("weights", weights=tuple(map(float, weights))), requests)
    quotas = [Fraction(requests * weight, sum(weights)) for weight in weights]
    assert sum(counts) == requests
    gaps = [count - quota for count, quota in zip(counts, quotas, strict=True)]
    assert all(-1 < gap < 1 for gap in gaps)
    # Whoever was rounded up has at least the remainder of whoever was rounded down; the lower group wins a tie.
    remainders = [quota - int(quota) for quota in quotas]
    raised = [number for number, gap in enumerate(gaps) if gap > 0]
    lowered = [number for number, gap in enumerate(gaps) if gap < 0]
    for up in raised:
        for down in lowered:
            assert (remainders[up], -up) > (remainders[down], -down)
