"""From a Scenario to its Plan."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ais_bench_prefix_cache.foundation.names import BEST_EFFORT, NO_RANK, PASS, group_name
from ais_bench_prefix_cache.foundation.random_streams import RandomStream
from ais_bench_prefix_cache.planning.allocation import allocate_warm, share_among_lanes
from ais_bench_prefix_cache.planning.cold_beam import beam_is_affordable, search_plan
from ais_bench_prefix_cache.planning.cold_lanes import PLAY, plan_lanes
from ais_bench_prefix_cache.planning.flag_free import flag_free_plan
from ais_bench_prefix_cache.planning.lane_simulation import simulate_cold, simulate_warm
from ais_bench_prefix_cache.planning.lanes import Lanes, build_lanes, cold_ranks
from ais_bench_prefix_cache.planning.lengths import request_lengths
from ais_bench_prefix_cache.planning.ordering import assigned_groups, occurrence_in_group, send_order
from ais_bench_prefix_cache.planning.plan import Int32Column, Int64Column, Plan, PlanningPath, Trajectory
from ais_bench_prefix_cache.planning.quality import largest_distance, smallest_possible_distance
from ais_bench_prefix_cache.planning.reachability import (
    cold_hit_limits,
    group_reachability,
    nearest_hit_blocks,
    prefix_capacities,
    reachability,
)
from ais_bench_prefix_cache.planning.trajectory import TrajectoryCheck, check_trajectory, clear_step
from ais_bench_prefix_cache.scenario.groups import group_counts
from ais_bench_prefix_cache.scenario.model import Scenario


@dataclass(frozen=True, eq=False)
class _Requests:
    """The requests in send order, before anything is shared."""

    generation_index: Int64Column
    group: Int32Column
    input_tokens: Int64Column
    max_tokens: Int64Column
    occurrence: Int64Column
    capacity: Int64Column


@dataclass(frozen=True, eq=False)
class SharedBlocks:
    """A planner's answer: blocks per request, and the way to it."""

    blocks: Int64Column
    path: PlanningPath
    fallback_reason: str | None = None


STEPS = 4
"""How often :func:`plan_scenario` says how far it is."""


def plan_scenario(scenario: Scenario, show: Callable[[int], None] = lambda _step: None) -> Plan:
    """The plan of a loaded Scenario. Deterministic: it depends on the Scenario's fields alone.

    The total of the hits is the reachable one that is nearest to the target, always; what each request hits is
    simulated over the finished plan and not taken from the planner. ``show`` hears of each of the steps that is done:
    requests drawn, hits shared out, replayed, judged.
    """
    config, block_size, dp_size = scenario.prefix_cache, scenario.block_size, scenario.service.dp_size
    requests = _draw_requests(scenario)
    show(1)
    groups, group, inputs = config.groups.count, requests.group, requests.input_tokens
    total_input = int(inputs.sum())
    longest = np.zeros(groups, dtype=np.int64)
    np.maximum.at(longest, group, requests.capacity)

    if config.mode == "warmup":
        limits = requests.capacity
        hit_blocks = nearest_hit_blocks(config.target_hit_rate, total_input, block_size, int(limits.sum()))
        answer = SharedBlocks(allocate_warm(inputs, requests.capacity, hit_blocks), "warmup")
        dp_rank = np.full(inputs.size, NO_RANK, dtype=np.int32)
        lane_sequence = np.full(inputs.size, NO_RANK, dtype=np.int64)
    else:
        dp_rank = cold_ranks(requests.occurrence, dp_size)
        lanes = build_lanes(group, dp_rank, dp_size)
        limits = cold_hit_limits(requests.capacity, lanes)
        hit_blocks = nearest_hit_blocks(config.target_hit_rate, total_input, block_size, int(limits.sum()))
        answer = plan_cold(inputs, requests.capacity, limits, lanes, hit_blocks, block_size)
        lane_sequence = requests.occurrence // dp_size

    show(2)
    shared = np.multiply(answer.blocks, block_size, out=answer.blocks)  # nobody needs the blocks any more
    canonical = np.zeros(groups, dtype=np.int64)
    np.maximum.at(canonical, group, shared)
    check = TrajectoryCheck((), 0, 0.0)
    if config.mode == "warmup":
        theory = simulate_warm(shared, group, canonical)
    else:
        theory = simulate_cold(shared, lanes)
        check = check_trajectory(inputs, theory.hit_tokens, lanes, block_size)
    show(3)
    trajectory = Trajectory(
        path=answer.path,
        status=BEST_EFFORT if check.issues or answer.path == "exact" else PASS,
        issues=check.issues,
        fallback_reason=answer.fallback_reason,
        issue_count=check.issue_count,
        largest_step=check.largest_step,
        clear_step=0.0 if config.mode == "warmup" else clear_step(inputs, block_size),
        largest_distance=largest_distance(inputs, theory.hit_tokens),
        smallest_possible_distance=smallest_possible_distance(inputs, limits, hit_blocks, block_size),
    )
    plan = Plan(
        mode=config.mode,
        block_size=block_size,
        seed_tokens=scenario.seed_tokens,
        minimum_non_shared_tokens=config.minimum_non_shared_length,
        dp_size=dp_size,
        group_count=groups,
        generation_index=requests.generation_index,
        group=group,
        occurrence_in_group=requests.occurrence,
        dp_rank=dp_rank,
        lane_sequence=lane_sequence,
        input_tokens=inputs,
        max_tokens=requests.max_tokens,
        shared_prefix_tokens=shared,
        hit_tokens=theory.hit_tokens,
        watermark_before=theory.watermark_before,
        watermark_after=theory.watermark_after,
        canonical_prefix_tokens=canonical,
        max_shared_prefix_tokens=longest * block_size,
        requested_target_hit_rate=config.target_hit_rate,
        effective_hit_tokens=hit_blocks * block_size,
        reachability=reachability(inputs, limits, block_size),
        group_reachability=group_reachability(inputs, limits, group, groups, block_size),
        trajectory=trajectory,
    )
    for column in vars(plan).values():
        if isinstance(column, np.ndarray):
            column.setflags(write=False)
    show(STEPS)
    return plan


def _draw_requests(scenario: Scenario) -> _Requests:
    config, seed = scenario.prefix_cache, scenario.run.random_seed
    counts = group_counts(config.groups.count, config.groups.assignment, scenario.requests.count)
    group = assigned_groups(counts, seed)
    overrides = config.groups.overrides.items()
    inputs = request_lengths(
        "input",
        scenario.requests.input_length,
        {group: override.input_length for group, override in overrides if override.input_length is not None},
        group,
        seed,
    )
    outputs = request_lengths(
        "output",
        scenario.requests.output_length,
        {group: override.output_length for group, override in overrides if override.output_length is not None},
        group,
        seed,
    )
    order = send_order(config.order, group, inputs, RandomStream(seed, "order", config.order))
    group, inputs = group[order], inputs[order]
    return _Requests(
        generation_index=order,
        group=group,
        input_tokens=inputs,
        max_tokens=outputs[order],
        occurrence=occurrence_in_group(group),
        capacity=prefix_capacities(inputs, config.minimum_non_shared_length, scenario.block_size),
    )


def plan_cold(
    inputs: Int64Column, capacity: Int64Column, limits: Int64Column, lanes: Lanes, hit_blocks: int, block_size: int
) -> SharedBlocks:
    """The contract's paths: beam search where it is affordable, else scalable, else the exact fallback.

    The lane plan takes part in the beam search as one more finished state: so a small data set is never planned worse
    than a large one. A plan without a clear fall or overshoot wins over any with one.
    """

    def lane_plan(play: float) -> tuple[Int64Column, bool]:
        return plan_lanes(inputs, capacity, limits, lanes, hit_blocks, block_size, play=play)

    def badness(candidate: Int64Column) -> tuple[bool, float, float]:
        """Whether it has a clear step, its distance from the target, and its worst step."""
        hits = simulate_cold(candidate * block_size, lanes).hit_tokens
        check = check_trajectory(inputs, hits, lanes, block_size)
        return check.issue_count > 0, round(largest_distance(inputs, hits), 12), check.largest_step

    def smoothest(*candidates: Int64Column) -> Int64Column:
        """The best of the candidates; where each has a clear step, lanes that follow nothing but their own rate too."""
        best = min(candidates, key=badness)
        if badness(best)[0]:
            best = min(best, lane_plan(math.inf)[0], key=badness)
        if badness(best)[0]:
            parts = share_among_lanes(
                lanes.sums(inputs), np.zeros(lanes.count, np.int64), lanes.sums(limits), hit_blocks
            )
            found = flag_free_plan(inputs, capacity, lanes, parts, hit_blocks, block_size)
            best = best if found is None else min(best, found, key=badness)
        return best

    if beam_is_affordable(capacity):
        searched = search_plan(inputs, capacity, limits, lanes, hit_blocks, block_size)
        return SharedBlocks(smoothest(searched, lane_plan(0.0)[0]), "beam")
    blocks, succeeded = lane_plan(PLAY)
    blocks = smoothest(blocks)
    obstacle = _falling_capacity(capacity, lanes)
    if obstacle is None and succeeded:
        return SharedBlocks(blocks, "scalable")
    return SharedBlocks(blocks, "exact", obstacle or "the watermarks that the lanes need leave no room for the total")


def _falling_capacity(capacity: Int64Column, lanes: Lanes) -> str | None:
    """The first lane whose capacities fall, in words; None where they never do."""
    falls = np.flatnonzero(lanes.previous(capacity) > capacity)
    if not falls.size:
        return None
    lane = int(lanes.lane[falls].min())
    members = lanes.by_lane[lanes.starts[lane] : lanes.starts[lane + 1]]
    ordered = capacity[members]
    position = int(np.flatnonzero(ordered[1:] < ordered[:-1])[0]) + 1
    return (
        f"prefix capacities fall within a lane: {group_name(int(lanes.group[lane]))} on rank "
        f"{int(lanes.dp_rank[lane])} has {int(ordered[position])} blocks after {int(ordered[position - 1])} "
        f"at position {position}"
    )
