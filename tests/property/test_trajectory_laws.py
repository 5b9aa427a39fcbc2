"""Cold plans have no clear fall and no clear overshoot wherever some plan has none: against all plans written out."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest
from tests.doubles.scenarios import make_scenario

from ais_bench_prefix_cache.planning.plan import Plan
from ais_bench_prefix_cache.planning.planner import plan_scenario
from ais_bench_prefix_cache.scenario.model import ExplicitLengths, FixedLength

BLOCK = 16
CASES = 120


def is_clear(rates: list[float], inputs: list[int], goal: float, clear: float) -> bool:
    """The sentence of ``docs/planning.md``, read position by position."""
    for place, (rate, tokens) in enumerate(zip(rates, inputs, strict=True)):
        peak = max(rates[: place + 1])
        lowest = max(before - BLOCK / input_before for before, input_before in zip(rates[: place + 1], inputs))  # noqa: B905
        if rate + BLOCK / tokens < lowest and peak - rate > clear:
            return True
        if rate - BLOCK / tokens > goal and rate - goal > clear:
            return True
    return False


def lane_totals(lengths: list[int], hit_blocks: int, target: float, clear: float) -> set[int]:
    """Every number of blocks that some plan of one lane hits without a clear step."""
    inputs = np.cumsum(lengths).tolist()
    totals = set()
    for shared in product(*(range((length - BLOCK) // BLOCK + 1) for length in lengths)):
        mark, hits, cumulative = 0, 0, []
        for blocks in shared:
            hits += min(blocks, mark)
            mark = max(mark, blocks)
            cumulative.append(hits)
        if hits <= hit_blocks and hits not in totals:
            rates = [blocks * BLOCK / tokens for blocks, tokens in zip(cumulative, inputs, strict=True)]
            if not is_clear(rates, inputs, max(rates[-1], target), clear):
                totals.add(hits)
    return totals


def lanes_of(plan: Plan) -> list[list[int]]:
    """The lengths of each lane, in send order."""
    lanes: dict[tuple[int, int], list[int]] = {}
    for group, rank, tokens in zip(plan.group.tolist(), plan.dp_rank.tolist(), plan.input_tokens.tolist(), strict=True):
        lanes.setdefault((group, rank), []).append(tokens)
    return list(lanes.values())


def some_plan_has_no_clear_step(plan: Plan) -> bool:
    hit_blocks = plan.effective_hit_tokens // BLOCK
    target, clear = plan.effective_target_hit_rate, BLOCK / int(plan.input_tokens.min())
    sums = {0}
    for lengths in lanes_of(plan):
        totals = lane_totals(lengths, hit_blocks, target, clear)
        sums = {before + hits for before in sums for hits in totals}
    return hit_blocks in sums


def test_a_plan_without_a_clear_step_is_found_where_there_is_one() -> None:
    randomness = random.Random(20261201)
    found = 0
    for _ in range(CASES):
        lengths = [randomness.randint(160, 220) for _ in range(randomness.randint(3, 12))]
        # A jump of lengths makes a fall that no plan can avoid where the target is high.
        for place in randomness.sample(range(len(lengths)), randomness.randint(0, 2)):
            lengths[place] = randomness.randint(800, 1200)
        ranks, groups = randomness.choice(((2, 2), (4, 1), (2, 3)))
        scenario = make_scenario(
            count=len(lengths),
            input_length=ExplicitLengths(tuple(lengths)),
            groups=groups,
            dp_size=ranks,
            target=randomness.choice((0.1, 0.2, 0.3, 0.9)),
            order=randomness.choice(("interleave", "sequential", "input_len_asc")),
            random_seed=randomness.randint(0, 99),
        )
        plan = plan_scenario(scenario)
        exists = some_plan_has_no_clear_step(plan)
        assert (plan.trajectory.issue_count == 0) == exists, (lengths, ranks, groups, plan.trajectory)
        assert (plan.trajectory.largest_step == 0) == exists
        found += exists
    assert CASES / 2 < found < CASES


@pytest.mark.parametrize("ranks", range(1, 9))
def test_equal_lengths_never_have_a_clear_step(ranks: int) -> None:
    randomness = random.Random(ranks)
    for groups in (1, randomness.randint(2, 9), 10):
        target = randomness.randint(5, 95) / 100
        scenario = make_scenario(
            count=randomness.randint(20, 100),
            groups=groups,
            input_length=FixedLength(512),
            dp_size=ranks,
            target=target,
        )
        trajectory = plan_scenario(scenario).trajectory
        assert (trajectory.status, trajectory.issue_count) == ("PASS", 0), (groups, target)


def test_the_contracts_example_has_no_clear_step_and_stays_as_near() -> None:
    trajectory = plan_scenario(make_scenario(mode="cold")).trajectory
    assert trajectory.status == "PASS"
    assert round(100 * trajectory.largest_distance, 3) <= 0.057
    assert trajectory.clear_step == BLOCK / 1024
