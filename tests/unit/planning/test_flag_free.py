"""The exhaustive search on cases whose plans can be followed on paper; random ones are in test_trajectory_laws."""

from __future__ import annotations

import numpy as np
from tests.doubles.cold_cases import BLOCK, cold_case

from ais_bench_prefix_cache.planning.flag_free import flag_free_plan
from ais_bench_prefix_cache.planning.trajectory import check_trajectory


def test_one_lane_of_equal_requests_catches_up_and_stays() -> None:
    case = cold_case([40] * 6, [0] * 6, 1)
    shared = flag_free_plan(case.inputs, case.capacity, case.lanes, np.array([24]), 24, BLOCK)
    assert shared is not None
    hits = case.simulate(shared)
    assert (int(hits[0]), int(hits.sum())) == (0, 24)
    assert check_trajectory(case.inputs, hits * BLOCK, case.lanes, BLOCK).issue_count == 0


def test_lanes_share_the_total_as_near_to_their_parts_as_they_can() -> None:
    case = cold_case([40] * 8, [0, 1] * 4, 1)
    shared = flag_free_plan(case.inputs, case.capacity, case.lanes, np.array([7, 5]), 12, BLOCK)
    assert shared is not None
    hits = case.simulate(shared)
    assert [int(hits[lane::2].sum()) for lane in (0, 1)] == [7, 5]


def test_what_no_plan_can_do_and_what_is_too_much_to_look_at() -> None:
    # All that can be hit must be: then the long request falls far below the rate of the short ones.
    case = cold_case([40, 40, 40, 4000], [0] * 4, 1)
    assert flag_free_plan(case.inputs, case.capacity, case.lanes, np.array([27]), 27, BLOCK) is None
    large = cold_case([4000] * 50, [0] * 50, 1)
    assert flag_free_plan(large.inputs, large.capacity, large.lanes, np.array([9000]), 9000, BLOCK) is None
