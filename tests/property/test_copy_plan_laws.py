"""The laws of copying: limits hold, the total is the nearest that can be reached, equal shares are equal."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ais_bench_prefix_cache.datasets.copies.copy_plan import CopyRules, plan_copies, prefix_capacity

rules_of = st.builds(
    CopyRules,
    block_size=st.integers(2, 6),
    window=st.integers(1, 4),
    own_tokens=st.integers(1, 3),
    closing_tokens=st.integers(0, 1),
    copy_short=st.booleans(),
)


def capacity_by_hand(lengths: list[int], rules: CopyRules) -> list[int]:
    found = []
    for index, length in enumerate(lengths):
        window = lengths[max(0, index - rules.window) : index]
        room = min(length - rules.own_tokens, max(window, default=0) - rules.closing_tokens)
        if length >= rules.block_size:
            room = room // rules.block_size * rules.block_size
        elif not rules.copy_short:
            room = 0
        found.append(max(room, 0) if index else 0)
    return found


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=40), rules=rules_of)
def test_capacity(lengths: list[int], rules: CopyRules) -> None:
    assert prefix_capacity(np.array(lengths), rules).tolist() == capacity_by_hand(lengths, rules)


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 14), min_size=1, max_size=5),
    rules=rules_of,
    rate=st.floats(0, 1),
    algorithm=st.sampled_from(["uniform", "zipf"]),
)
def test_the_total_is_the_nearest_reachable_one(
    lengths: list[int], rules: CopyRules, rate: float, algorithm: str
) -> None:
    plan = plan_copies(np.array(lengths), rate, rules, algorithm=algorithm, seed=1)  # type: ignore[arg-type]
    capacity = capacity_by_hand(lengths, rules)
    choices = [
        range(0, most + 1, rules.block_size if length >= rules.block_size else 1)
        for length, most in zip(lengths, capacity, strict=True)
    ]
    wanted = round(rate * sum(lengths))
    nearest = min(abs(sum(each) - wanted) for each in product(*choices))
    assert abs(int(plan.prefix_tokens.sum()) - wanted) == nearest
    assert all(copied in allowed for copied, allowed in zip(plan.prefix_tokens.tolist(), choices, strict=True))
    assert plan.reachable_tokens == sum(capacity)


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=60),
    rules=rules_of,
    rate=st.floats(0, 1),
    seed=st.integers(0, 5),
)
def test_parents_lie_in_the_window_and_are_long_enough(
    lengths: list[int], rules: CopyRules, rate: float, seed: int
) -> None:
    plan = plan_copies(np.array(lengths), rate, rules, seed=seed)
    for index, (parent, copied) in enumerate(zip(plan.parent.tolist(), plan.prefix_tokens.tolist(), strict=True)):
        if index == 0:
            assert (parent, copied) == (-1, 0)
            continue
        assert max(0, index - rules.window) <= parent < index
        assert copied <= lengths[parent] - rules.closing_tokens or copied == 0


@pytest.mark.parametrize(("rate", "expected"), [(0.25, 32), (0.5, 64), (0.8, 96)])
def test_uniform_gives_everyone_the_same(rate: float, expected: int) -> None:
    rules = CopyRules(block_size=16, window=8, own_tokens=1)
    plan = plan_copies(np.array([128] * 101), rate, rules, seed=1)
    copied = plan.prefix_tokens[1:]
    assert abs(int(copied.sum()) - rate * 128 * 101) <= 8
    assert set(copied.tolist()) <= {expected, expected + 16}


def test_zipf_follows_one_over_rank() -> None:
    """With room for all: 1/1, 1/2, … 1/9 of the largest part, in whole blocks."""
    rules = CopyRules(block_size=1, window=20, own_tokens=1)
    plan = plan_copies(np.array([100_000] * 10), 0.02, rules, algorithm="zipf", seed=3)
    parts = sorted(plan.prefix_tokens[1:].tolist(), reverse=True)
    # Ten ranks, one of which is the cold prompt's: the others share its part in proportion.
    expected = []
    for cold in range(1, 11):
        weights = [1 / rank for rank in range(1, 11) if rank != cold]
        expected.append([20_000 * weight / sum(weights) for weight in weights])
    assert any(np.allclose(parts, shares, atol=1) for shares in expected)
    assert sum(parts) == 20_000


def test_every_parent_of_the_window_is_chosen_about_equally_often() -> None:
    rules = CopyRules(block_size=16, window=4, own_tokens=1)
    plan = plan_copies(np.array([64] * 4001), 0.5, rules, seed=1)
    distances = np.bincount((np.arange(4001) - plan.parent)[4:])
    assert distances[1:].sum() == 3997
    assert all(900 < count < 1100 for count in distances[1:])
