"""The laws of planning, for any lengths, groups, orders and ranks, against plain loops and exhaustive searches."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doubles.cold_cases import BLOCK, ColdCase, cold_case, distances
from tests.doubles.scenarios import make_scenario

from ais_bench_prefix_cache.planning.allocation import allocate_warm
from ais_bench_prefix_cache.planning.cold_beam import beam_is_affordable, search_plan
from ais_bench_prefix_cache.planning.cold_lanes import plan_lanes
from ais_bench_prefix_cache.planning.planner import plan_scenario
from ais_bench_prefix_cache.planning.quality import largest_distance, smallest_possible_distance
from ais_bench_prefix_cache.planning.reachability import nearest_hit_blocks
from ais_bench_prefix_cache.scenario.model import ExplicitLengths, GroupAssignment


@st.composite
def cold_cases(draw: st.DrawFn, max_size: int = 25, longest: int = 60 * BLOCK) -> ColdCase:
    size = draw(st.integers(1, max_size))
    lengths = draw(st.lists(st.integers(1, longest), min_size=size, max_size=size))
    groups = draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    return cold_case(lengths, groups, draw(st.integers(1, 3)))


def small_cases(number: int, kind: str) -> list[ColdCase]:
    """Seeded cases that are small enough for every plan to be tried."""
    rng = random.Random(f"{kind}{number}")
    cases: list[ColdCase] = []
    while len(cases) < number:
        size = rng.randint(1, 6)
        lengths = [rng.randint(1, 5 * BLOCK + 3) for _ in range(size)]
        if kind == "ascending":
            lengths.sort()
        if kind == "equal":
            lengths = lengths[:1] * size
        case = cold_case(lengths, [rng.randrange(2) for _ in range(size)], rng.randint(1, 2))
        if np.prod(case.capacity + 1) <= 6000:
            cases.append(case)
    return cases


def every_plan(case: ColdCase) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """All choices of shared blocks, and their hits: two arrays of shape [plans, N]."""
    shared = np.array(list(itertools.product(*(range(most + 1) for most in case.capacity.tolist()))), dtype=np.int64)
    watermark, hits = np.zeros((len(shared), case.lanes.count), dtype=np.int64), np.zeros_like(shared)
    for i, lane in enumerate(case.lanes.lane.tolist()):
        hits[:, i] = np.minimum(shared[:, i], watermark[:, lane])
        watermark[:, lane] = np.maximum(watermark[:, lane], shared[:, i])
    return shared, hits


@pytest.mark.parametrize("kind", ["any", "ascending", "equal"])
def test_against_every_plan_of_small_cases(kind: str) -> None:
    """Reachability is exact, the bound is one, the beam finds the optimum and the lane plan comes close to it."""
    optimal, tried = 0, 0
    for case in small_cases(40, kind):
        _, hits = every_plan(case)
        totals, distance = hits.sum(axis=1), distances(case, hits)
        assert set(totals.tolist()) == set(range(int(case.limits.sum()) + 1))
        for hit_blocks in range(int(case.limits.sum()) + 1):
            best = float(distance[totals == hit_blocks].min())
            assert smallest_possible_distance(case.inputs, case.limits, hit_blocks, BLOCK) <= best + 1e-12
            searched = case.simulate(
                search_plan(case.inputs, case.capacity, case.limits, case.lanes, hit_blocks, BLOCK)
            )
            assert int(searched.sum()) == hit_blocks
            assert distances(case, searched[None])[0] == pytest.approx(best, abs=1e-12)
            in_lanes = case.simulate(
                plan_lanes(case.inputs, case.capacity, case.limits, case.lanes, hit_blocks, BLOCK)[0]
            )
            assert int(in_lanes.sum()) == hit_blocks
            own = float(distances(case, in_lanes[None])[0])
            assert own >= best - 1e-12
            optimal += own < best + 1e-12
            tried += 1
    assert optimal / tried > 0.95


@settings(deadline=None)
@given(case=cold_cases(), share=st.fractions(0, 1))
def test_the_lane_plan_is_always_exact(case: ColdCase, share: Fraction) -> None:
    hit_blocks = round(share * int(case.limits.sum()))
    shared, _ = plan_lanes(case.inputs, case.capacity, case.limits, case.lanes, hit_blocks, BLOCK)
    assert (shared >= 0).all()
    assert (shared <= case.capacity).all()
    assert int(case.simulate(shared).sum()) == hit_blocks


@settings(deadline=None)
@given(case=cold_cases(max_size=12, longest=20 * BLOCK), share=st.fractions(0, 1))
def test_the_beam_is_always_exact(case: ColdCase, share: Fraction) -> None:
    hit_blocks = round(share * int(case.limits.sum()))
    assert beam_is_affordable(case.capacity)
    shared = search_plan(case.inputs, case.capacity, case.limits, case.lanes, hit_blocks, BLOCK)
    assert (shared >= 0).all()
    assert (shared <= case.capacity).all()
    assert int(case.simulate(shared).sum()) == hit_blocks


@settings(deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(1, 200), st.integers(0, 60)), min_size=1, max_size=40),
    share=st.fractions(0, 1),
)
def test_warm_hits_follow_the_input(requests: list[tuple[int, int]], share: Fraction) -> None:
    inputs, capacity = (np.array(column, dtype=np.int64) for column in zip(*requests, strict=True))
    hit_blocks = round(share * int(capacity.sum()))
    hits = allocate_warm(inputs, capacity, hit_blocks)
    assert int(hits.sum()) == hit_blocks
    assert ((hits >= 0) & (hits <= capacity)).all()
    reached, seen = 0, 0
    for i, (tokens, hit) in enumerate(zip(inputs.tolist(), hits.tolist(), strict=True)):
        reached, seen = reached + hit, seen + tokens
        wanted = Fraction(hit_blocks * seen, int(inputs.sum()))
        if reached < wanted - Fraction(1, 2):
            assert hit == capacity[i], "behind, and yet not catching up as fast as it can"
        if reached > wanted + Fraction(1, 2):
            assert hit_blocks - reached == int(capacity[i + 1 :].sum()), "ahead, although later requests could do it"


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 400), min_size=1, max_size=40),
    target=st.sampled_from([0.0, 0.1, 0.3, 0.6, 0.9, 1.0]),
    mode=st.sampled_from(["cold", "warmup"]),
    order=st.sampled_from(["sequential", "within_group_shuffle", "interleave", "global_shuffle", "input_len_asc"]),
    groups=st.integers(1, 12),
    dp_size=st.integers(1, 8),
    block_size=st.sampled_from([1, 4, 16]),
    extra=st.integers(0, 40),
)
def test_a_plan_keeps_every_law(
    lengths: list[int], target: float, mode: str, order: str, groups: int, dp_size: int, block_size: int, extra: int
) -> None:
    scenario = make_scenario(
        mode=mode,
        count=len(lengths),
        input_length=ExplicitLengths(tuple(lengths)),
        target=target,
        groups=groups,
        assignment=GroupAssignment("zipf", exponent=1.0),
        order=order,  # type: ignore[arg-type]
        dp_size=dp_size,
        block_size=block_size,
        minimum_non_shared=block_size + extra,
    )
    plan = plan_scenario(scenario)
    assert sorted(plan.generation_index.tolist()) == list(range(len(lengths)))
    assert plan.input_tokens.tolist() == [lengths[index] for index in plan.generation_index]
    assert (plan.shared_prefix_tokens % block_size == 0).all()
    room = np.maximum(plan.input_tokens - block_size - extra, 0) // block_size * block_size
    assert (plan.shared_prefix_tokens <= room).all()

    watermark: dict[tuple[int, int], int] = {}
    occurrences = [0] * groups
    limit_of_lane: dict[tuple[int, int], int] = {}
    most = [0] * groups
    for i in range(len(plan)):
        group, shared = int(plan.group[i]), int(plan.shared_prefix_tokens[i])
        assert plan.occurrence_in_group[i] == occurrences[group]
        if mode == "cold":
            lane = (group, occurrences[group] % dp_size)
            assert (plan.dp_rank[i], plan.lane_sequence[i]) == (lane[1], occurrences[group] // dp_size)
            before = watermark.get(lane, 0)
            watermark[lane] = after = max(before, shared)
            most[group] += min(int(room[i]), limit_of_lane.get(lane, 0))
            limit_of_lane[lane] = max(limit_of_lane.get(lane, 0), int(room[i]))
        else:
            assert (plan.dp_rank[i], plan.lane_sequence[i]) == (-1, -1)
            before = after = int(plan.canonical_prefix_tokens[group])
            most[group] += int(room[i])
        occurrences[group] += 1
        assert plan.watermark_before[i] == before
        assert plan.watermark_after[i] == after
        assert plan.hit_tokens[i] == min(before, shared)
    assert [reach.max_hit_tokens for reach in plan.group_reachability] == most
    assert [reach.min_hit_tokens for reach in plan.group_reachability] == [0] * groups
    assert plan.reachability.max_hit_tokens == sum(most)

    # The total is the reachable one nearest to the target, in exact numbers.
    wanted = Fraction(str(target)) * sum(lengths)
    distance = abs(plan.total_hit_tokens - wanted)
    assert plan.total_hit_tokens == plan.effective_hit_tokens
    for total in (plan.total_hit_tokens - block_size, plan.total_hit_tokens + block_size):
        if 0 <= total <= sum(most):
            assert distance <= abs(total - wanted)
    assert plan.trajectory.largest_distance >= plan.trajectory.smallest_possible_distance - 1e-9
    assert plan.trajectory.largest_distance == largest_distance(plan.input_tokens, plan.hit_tokens)


def test_exactly_half_a_block_is_rounded_up() -> None:
    # 0.5 * 3 / 1 = 1.5 -> 2; 0.1 * 25 / 1 = 2.5 -> 3, although the binary number 0.1 is not one tenth.
    assert nearest_hit_blocks(0.5, 3, 1, 100) == 2
    assert nearest_hit_blocks(0.1, 25, 1, 100) == 3
    assert nearest_hit_blocks(0.3, 15, 1, 100) == 5
    assert nearest_hit_blocks(1.0, 1000, 16, 10) == 10
