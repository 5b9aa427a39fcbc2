"""The Plan: the theory of a data set, as columns in final send order.

Token counts are integers to the very end; a rate is a division made last. All columns of a plan have length N, the
number of formal requests, and are read-only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Int64Column = npt.NDArray[np.int64]
Int32Column = npt.NDArray[np.int32]

PlanningPath = Literal["warmup", "beam", "scalable", "exact"]


@dataclass(frozen=True)
class Reachability:
    """The smallest and largest total of hit tokens that any plan can reach for these lengths, groups and order."""

    input_tokens: int
    min_hit_tokens: int
    max_hit_tokens: int

    @property
    def min_rate(self) -> float:
        """0 for a group without requests."""
        return self.min_hit_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def max_rate(self) -> float:
        """0 for a group without requests."""
        return self.max_hit_tokens / self.input_tokens if self.input_tokens else 0.0


@dataclass(frozen=True)
class Trajectory:
    """How the plan was made and how smoothly its cumulative hit rate runs.

    ``issues`` are JSON-ready objects with a ``code``, the lane and the numbers that show the problem, at most one of
    a code for each lane and a bounded number in all; ``issue_count`` counts the requests that they stand for and those
    that are not listed. ``fallback_reason`` says why a faster path was left. ``status`` is BEST_EFFORT where the lane
    check finds a fall or an overshoot, or the exact fallback was needed.

    ``largest_step`` is how far the worst issue is from its peak or goal, as a rate; none is up to ``clear_step``.

    ``largest_distance`` is the largest distance of the cumulative hit rate from its final value after the first
    tenth of the input tokens; ``smallest_possible_distance`` a bound below which no plan can bring it.
    """

    path: PlanningPath
    status: Literal["PASS", "BEST_EFFORT"]
    issues: tuple[Mapping[str, Any], ...] = ()
    fallback_reason: str | None = None
    issue_count: int = 0
    largest_step: float = 0.0
    clear_step: float = 0.0
    largest_distance: float = 0.0
    smallest_possible_distance: float = 0.0


@dataclass(frozen=True, eq=False)
class Plan:
    """Columns (see the module's docstring) and what they add up to.

    ``generation_index``: the request's number before ordering. ``group``: 0 … groups-1.
    ``occurrence_in_group``: n-th request of its group in send order. ``dp_rank``, ``lane_sequence``:
    ``names.NO_RANK`` in warm-up mode. ``watermark_before/after``: tokens of the group's canonical prefix that are
    cached in the lane. ``canonical_prefix_tokens``: per group, the longest shared prefix that the plan uses;
    ``max_shared_prefix_tokens``: per group, the longest that its lengths would allow.
    """

    mode: Literal["cold", "warmup"]
    block_size: int
    seed_tokens: int
    minimum_non_shared_tokens: int
    dp_size: int
    group_count: int

    generation_index: Int64Column
    group: Int32Column
    occurrence_in_group: Int64Column
    dp_rank: Int32Column
    lane_sequence: Int64Column
    input_tokens: Int64Column
    max_tokens: Int64Column
    shared_prefix_tokens: Int64Column
    hit_tokens: Int64Column
    watermark_before: Int64Column
    watermark_after: Int64Column

    canonical_prefix_tokens: Int64Column
    max_shared_prefix_tokens: Int64Column

    requested_target_hit_rate: float
    effective_hit_tokens: int
    reachability: Reachability
    group_reachability: tuple[Reachability, ...]
    trajectory: Trajectory

    def __len__(self) -> int:
        return int(self.input_tokens.size)

    @property
    def total_input_tokens(self) -> int:
        return int(self.input_tokens.sum())

    @property
    def total_hit_tokens(self) -> int:
        return int(self.hit_tokens.sum())

    @property
    def theoretical_hit_rate(self) -> float:
        return self.total_hit_tokens / self.total_input_tokens

    @property
    def effective_target_hit_rate(self) -> float:
        """The reachable rate nearest to the requested one."""
        return self.effective_hit_tokens / self.total_input_tokens

    @property
    def target_reachable(self) -> bool:
        """Whether the requested rate lies between the smallest and the largest reachable one."""
        return self.reachability.min_rate <= self.requested_target_hit_rate <= self.reachability.max_rate
