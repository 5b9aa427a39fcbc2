"""Speed and quality of planning: ``python -m tests.benchmarks.bench_planning [--requests 1000000]``.

Speed is a ratio against something measured in the same run: numpy's stable sort of as many random 64-bit integers.
Quality is the largest distance of the cumulative hit rate from the target after the first tenth of the input tokens, in
percentage points: in small cases beside the optimum of all plans, in others beside what no plan can avoid and what
first fit (share all until the total is reached) gives.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any, get_args

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "doubles"))

from tests.doubles.cold_cases import BLOCK, ColdCase, cold_case, distances, optimal_distance, seeded_cases
from tests.doubles.scenarios import make_scenario

from ais_bench_prefix_cache.planning.allocation import share_among_lanes
from ais_bench_prefix_cache.planning.cold_beam import search_plan
from ais_bench_prefix_cache.planning.cold_lanes import plan_lanes
from ais_bench_prefix_cache.planning.flag_free import flag_free_plan
from ais_bench_prefix_cache.planning.lanes import build_lanes
from ais_bench_prefix_cache.planning.plan import Int64Column, Plan
from ais_bench_prefix_cache.planning.planner import plan_cold, plan_scenario
from ais_bench_prefix_cache.planning.quality import largest_distance, smallest_possible_distance
from ais_bench_prefix_cache.planning.reachability import cold_hit_limits, prefix_capacities
from ais_bench_prefix_cache.planning.summary import inspect_summary
from ais_bench_prefix_cache.planning.trajectory import check_trajectory
from ais_bench_prefix_cache.scenario.model import OrderStrategy, UniformLength

SPREAD = UniformLength(512, 4096)


def seconds(action: Any) -> tuple[float, Any]:
    """Processor seconds of the faster of two calls (planning is one thread), and its result."""
    best, result = float("inf"), None
    for _ in range(2):
        begin = time.process_time()
        result = action()
        best = min(best, time.process_time() - begin)
    return best, result


def plan_and_summarise(count: int, mode: str, order: OrderStrategy, **changes: Any) -> Plan:
    scenario = make_scenario(count=count, mode=mode, order=order, input_length=SPREAD, **changes)
    plan = plan_scenario(scenario)
    inspect_summary(scenario, plan)
    return plan


def first_fit_distance(plan: Plan) -> float:
    capacity = prefix_capacities(plan.input_tokens, plan.minimum_non_shared_tokens, plan.block_size)
    limits = cold_hit_limits(capacity, build_lanes(plan.group, plan.dp_rank, plan.dp_size))
    before = np.concatenate(([0], np.cumsum(limits)[:-1]))
    hits = np.clip(plan.effective_hit_tokens // plan.block_size - before, 0, limits)
    return largest_distance(plan.input_tokens, hits * plan.block_size)


def print_speed(requests: int) -> None:
    words = np.random.PCG64(1).random_raw(requests)
    sort, _ = seconds(lambda: np.argsort(words, kind="stable"))
    print(f"stable argsort of {requests:,} random words: {sort:.3f} s\n")
    print("| mode | order | requests / 10 | requests | growth | in argsorts | path |\n|---|---|---|---|---|---|---|")
    for mode in ("warmup", "cold"):
        for order in get_args(OrderStrategy):
            few, _ = seconds(lambda m=mode, o=order: plan_and_summarise(requests // 10, m, o, groups=100, dp_size=8))
            many, plan = seconds(lambda m=mode, o=order: plan_and_summarise(requests, m, o, groups=100, dp_size=8))
            print(
                f"| {mode} | {order} | {few:.2f} s | {many:.2f} s | {many / few:.1f} x | {many / sort:.1f} "
                f"| {plan.trajectory.path} |",
                flush=True,
            )
    print(f"\npeak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB\n")


def print_optimality() -> None:
    """The planners by themselves on cases that are small enough for the optimum of all plans to be found."""
    print("| planner | capacities | cases | optimal | mean above optimum | largest ", end="")
    print("| blocks per lane above bound | bound attained |\n|---|---|---|---|---|---|---|---|")

    def two_passes(case: ColdCase, hit_blocks: int) -> Int64Column:
        return plan_lanes(case.inputs, case.capacity, case.limits, case.lanes, hit_blocks, BLOCK)[0]

    def beam(case: ColdCase, hit_blocks: int) -> Int64Column:
        return search_plan(case.inputs, case.capacity, case.limits, case.lanes, hit_blocks, BLOCK)

    for name, planner in (("two passes", two_passes), ("beam", beam)):
        for ascending in (True, False):
            above, blocks, attained = [], [], 0
            for largest, capacity, lanes in ((10, 12, 1), (40, 60, 1), (14, 10, 2), (14, 6, 3)):
                for case, hit_blocks in seeded_cases(250, ascending, largest, capacity, lanes):
                    hits = case.simulate(planner(case, hit_blocks))
                    own = float(distances(case, hits[None])[0])
                    best = optimal_distance(case, hit_blocks, own)
                    bound = smallest_possible_distance(case.inputs, case.limits, hit_blocks, BLOCK)
                    attained += best <= bound + 1e-5
                    above.append(100 * max(0.0, own - best))
                    inputs, tokens = np.cumsum(case.inputs), np.cumsum(hits) * BLOCK
                    apart = np.abs(tokens - tokens[-1] / inputs[-1] * inputs) - bound * inputs
                    blocks.append(apart[inputs * 10 >= inputs[-1]].max() / BLOCK / case.lanes.count)
            optimal = sum(distance < 1e-3 for distance in above) / len(above)
            print(f"| {name} | {'never fall' if ascending else 'fall'} | {len(above):,} | {optimal:.1%} ", end="")
            print(f"| {np.mean(above):.3f} | {max(above):.2f} | {max(blocks):.2f} ", end="")
            print(f"| {attained / len(above):.1%} |", flush=True)
    print()


def print_clear_steps(cases: int = 400) -> None:
    """How many plans have a clear step although one without exists, as the search through all plans of a case says."""
    rng = random.Random(7)
    counts = {name: [0, 0] for name in ("two passes", "beam", "as planned")}
    for _ in range(cases):
        lengths = [rng.randint(40, 55) for _ in range(rng.randint(3, 12))]
        for place in rng.sample(range(len(lengths)), rng.randint(0, 2)):
            lengths[place] = rng.randint(200, 300)
        ranks, groups = rng.choice(((2, 2), (4, 1), (2, 3)))
        case = cold_case(lengths, [number % groups for number in range(len(lengths))], ranks)
        hit_blocks = rng.randint(0, int(case.limits.sum()))
        arguments = (case.inputs, case.capacity, case.limits, case.lanes, hit_blocks, BLOCK)
        plans = (plan_lanes(*arguments)[0], search_plan(*arguments), plan_cold(*arguments).blocks)
        parts = share_among_lanes(
            case.lanes.sums(case.inputs), np.zeros(case.lanes.count, np.int64), case.lanes.sums(case.limits), hit_blocks
        )
        avoidable = flag_free_plan(case.inputs, case.capacity, case.lanes, parts, hit_blocks, BLOCK) is not None
        for count, blocks in zip(counts.values(), plans, strict=True):
            issues = check_trajectory(case.inputs, case.simulate(blocks) * BLOCK, case.lanes, BLOCK).issue_count
            count[0] += issues > 0
            count[1] += issues > 0 and avoidable
    print("| planner | cases | with a clear step | although a plan without one exists |\n|---|---|---|---|")
    for name, (clear, could) in counts.items():
        print(f"| {name} | {cases} | {clear} | {could} |", flush=True)
    print()


def print_quality() -> None:
    print("| requests | groups x ranks | order | target | path | status | distance | unavoidable | first fit |")
    print("|---|---|---|---|---|---|---|---|---|")
    for count, groups, dp_size in ((40, 1, 2), (200, 3, 2), (10_000, 10, 4), (100_000, 100, 8)):
        for order in ("sequential", "interleave", "input_len_asc"):
            for target in (0.3, 0.6, 0.9):
                shape = {"groups": groups, "dp_size": dp_size, "target": target}
                plan = plan_and_summarise(count, "cold", order, **shape)
                trajectory = plan.trajectory
                found, unavoidable = 100 * trajectory.largest_distance, 100 * trajectory.smallest_possible_distance
                first_fit = 100 * first_fit_distance(plan)
                print(f"| {count:,} | {groups} x {dp_size} | {order} | {target} | {trajectory.path} ", end="")
                print(f"| {trajectory.status} | {found:.3f} | {unavoidable:.3f} | {first_fit:.3f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    options = parser.parse_args()
    print_optimality()
    print_clear_steps()
    print_quality()
    print()
    print_speed(options.requests)
