"""How many requests each prefix group has.

All arithmetic is on integers, so that the counts are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal
from fractions import Fraction
from math import lcm

from ais_bench_prefix_cache.scenario.model import GroupAssignment

ZIPF_DIGITS = 60
"""Decimal digits to which a zipf weight is rounded."""


def group_counts(groups: int, assignment: GroupAssignment, requests: int) -> tuple[int, ...]:
    """The number of requests of each group; they add up to ``requests``.

    ``uniform`` is as even as possible, the remainder goes to the first groups. ``zipf`` (weight ``1 / rank**exponent``
    for rank 1, 2, …) and ``weights`` share by largest remainder; equal remainders favour the lower group. A group may
    end up without requests.
    """
    if assignment.mode == "uniform":
        base, remainder = divmod(requests, groups)
        return tuple(base + (group < remainder) for group in range(groups))
    if assignment.mode == "zipf":
        weights = zipf_weights(groups, assignment.exponent)
    else:
        weights = _integer_weights(assignment.weights)
    return _largest_remainder(weights, requests)


def zipf_weights(ranks: int, exponent: float, digits: int = ZIPF_DIGITS) -> list[int]:
    """``rank**-exponent`` for rank 1 … ``ranks`` as integers in units of 10**-``digits``.

    ``Decimal.ln`` and ``Decimal.exp`` are correctly rounded by specification, unlike the C library's ``pow``.
    """
    context = Context(prec=digits + 10)
    negative = -Decimal(repr(float(exponent)))
    weights = []
    for rank in range(1, ranks + 1):
        power = context.exp(context.multiply(negative, context.ln(Decimal(rank))))
        weights.append(int(context.to_integral_value(context.scaleb(power, digits))))
    return weights


def _integer_weights(weights: Sequence[float]) -> list[int]:
    """The weights as the decimals that the user wrote, multiplied up to integers."""
    fractions = [Fraction(repr(float(weight))) for weight in weights]
    common = lcm(*(fraction.denominator for fraction in fractions))
    return [int(fraction * common) for fraction in fractions]


def _largest_remainder(weights: Sequence[int], requests: int) -> tuple[int, ...]:
    total = sum(weights)
    shares = [divmod(requests * weight, total) for weight in weights]
    counts = [whole for whole, _ in shares]
    by_remainder = sorted(range(len(weights)), key=lambda group: (-shares[group][1], group))
    for group in by_remainder[: requests - sum(counts)]:
        counts[group] += 1
    return tuple(counts)
