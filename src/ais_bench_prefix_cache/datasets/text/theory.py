"""What a data set adds up to, and the manifest's and analysis' sections that say so.

:func:`theory_of_plan` takes the sums from a plan's columns; verifying takes them from the rows of ``full.jsonl``. Both
hand the same :class:`Theory` to the same builders, so a claim in a file can be compared with what its rows prove.
Plain integers only: ``validate`` must not need numpy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.names import PASS, group_name, verdict

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from typing import Any

    from ais_bench_prefix_cache.planning.plan import Plan

BINS = 10


class Share:
    """Requests of a group or a rank, their input tokens, and how many of them theory says are hit."""

    def __init__(self, requests: int = 0, input_tokens: int = 0, hit_tokens: int = 0) -> None:
        self.requests = requests
        self.input_tokens = input_tokens
        self.hit_tokens = hit_tokens

    @property
    def hit_rate(self) -> float:
        return rate(self.hit_tokens, self.input_tokens)

    def add(self, input_tokens: int, hit_tokens: int) -> None:
        self.requests += 1
        self.input_tokens += input_tokens
        self.hit_tokens += hit_tokens

    def as_json(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "input_tokens": self.input_tokens,
            "hit_tokens": self.hit_tokens,
            "hit_rate": self.hit_rate,
        }


class GroupTheory(Share):
    """A group's share, the totals of hit tokens it could reach, and its prefix lengths in tokens."""

    def __init__(
        self,
        requests: int = 0,
        input_tokens: int = 0,
        hit_tokens: int = 0,
        *,
        min_hit_tokens: int = 0,
        max_hit_tokens: int = 0,
        canonical_prefix_tokens: int = 0,
        max_shared_prefix_tokens: int = 0,
    ) -> None:
        super().__init__(requests, input_tokens, hit_tokens)
        self.min_hit_tokens = min_hit_tokens
        self.max_hit_tokens = max_hit_tokens
        self.canonical_prefix_tokens = canonical_prefix_tokens
        self.max_shared_prefix_tokens = max_shared_prefix_tokens


class Theory:
    """Sums over a data set. ``ranks`` is empty in warm-up mode: the server's balancer may put a request anywhere.

    The lengths count how many requests have each of them.
    """

    def __init__(
        self,
        *,
        mode: str,
        requested_target_hit_rate: float,
        effective_hit_tokens: int,
        minimum_non_shared_tokens: int,
        groups: list[GroupTheory],
        ranks: list[Share],
        input_lengths: Counter[int] | None = None,
        output_lengths: Counter[int] | None = None,
    ) -> None:
        self.mode = mode
        self.requested_target_hit_rate = requested_target_hit_rate
        self.effective_hit_tokens = effective_hit_tokens
        self.minimum_non_shared_tokens = minimum_non_shared_tokens
        self.groups = groups
        self.ranks = ranks
        self.input_lengths: Counter[int] = Counter() if input_lengths is None else input_lengths
        self.output_lengths: Counter[int] = Counter() if output_lengths is None else output_lengths

    @property
    def requests(self) -> int:
        return sum(group.requests for group in self.groups)

    @property
    def input_tokens(self) -> int:
        return sum(group.input_tokens for group in self.groups)

    @property
    def hit_tokens(self) -> int:
        return sum(group.hit_tokens for group in self.groups)

    @property
    def reachable_min(self) -> float:
        return rate(sum(group.min_hit_tokens for group in self.groups), self.input_tokens)

    @property
    def reachable_max(self) -> float:
        return rate(sum(group.max_hit_tokens for group in self.groups), self.input_tokens)

    @property
    def theoretical_hit_rate(self) -> float:
        return rate(self.hit_tokens, self.input_tokens)

    @property
    def effective_target_hit_rate(self) -> float:
        return rate(self.effective_hit_tokens, self.input_tokens)

    @property
    def target_reachable(self) -> bool:
        return self.reachable_min <= self.requested_target_hit_rate <= self.reachable_max

    @property
    def target_signed_difference_pp(self) -> float:
        return (self.theoretical_hit_rate - self.requested_target_hit_rate) * 100


def rate(hit_tokens: int, input_tokens: int) -> float:
    """The division that is made last; 0.0 where there is nothing to divide."""
    return hit_tokens / input_tokens if input_tokens else 0.0


def theory_of_plan(plan: Plan) -> Theory:
    """The sums of a plan's columns."""
    import numpy as np

    def sums(key: Any, values: Any, size: int) -> list[int]:
        totals = np.zeros(size, dtype=np.int64)
        np.add.at(totals, key, values)
        return [int(total) for total in totals]

    counts = sums(plan.group, 1, plan.group_count)
    inputs = sums(plan.group, plan.input_tokens, plan.group_count)
    hits = sums(plan.group, plan.hit_tokens, plan.group_count)
    groups = [
        GroupTheory(
            requests=counts[number],
            input_tokens=inputs[number],
            hit_tokens=hits[number],
            min_hit_tokens=reachability.min_hit_tokens,
            max_hit_tokens=reachability.max_hit_tokens,
            canonical_prefix_tokens=int(plan.canonical_prefix_tokens[number]),
            max_shared_prefix_tokens=int(plan.max_shared_prefix_tokens[number]),
        )
        for number, reachability in enumerate(plan.group_reachability)
    ]
    ranks = []
    if plan.mode == "cold":
        ranks = [
            Share(*row)
            for row in zip(
                sums(plan.dp_rank, 1, plan.dp_size),
                sums(plan.dp_rank, plan.input_tokens, plan.dp_size),
                sums(plan.dp_rank, plan.hit_tokens, plan.dp_size),
                strict=True,
            )
        ]
    return Theory(
        mode=plan.mode,
        requested_target_hit_rate=float(plan.requested_target_hit_rate),
        effective_hit_tokens=plan.effective_hit_tokens,
        minimum_non_shared_tokens=plan.minimum_non_shared_tokens,
        groups=groups,
        ranks=ranks,
        input_lengths=_counts(plan.input_tokens),
        output_lengths=_counts(plan.max_tokens),
    )


def prefix_cache_section(theory: Theory, trajectory: Mapping[str, Any], target_warning_pp: float) -> dict[str, Any]:
    """``manifest.prefix_cache``. ``trajectory`` is ours: how the plan was made."""
    signed = theory.target_signed_difference_pp
    warnings = target_warnings(theory, trajectory, target_warning_pp)
    return {
        "mode": theory.mode,
        "requested_target_hit_rate": theory.requested_target_hit_rate,
        "effective_target_hit_rate": theory.effective_target_hit_rate,
        "theoretical_hit_rate": theory.theoretical_hit_rate,
        "reachable_min": theory.reachable_min,
        "reachable_max": theory.reachable_max,
        "target_reachable": theory.target_reachable,
        "minimum_non_shared_length": theory.minimum_non_shared_tokens,
        "adjusted": theory.effective_target_hit_rate != theory.requested_target_hit_rate,
        "reason": _adjustment_reason(theory),
        "validation_status": verdict(warnings),
        "target_signed_difference_pp": signed,
        "target_absolute_difference_pp": abs(signed),
        "trajectory": dict(trajectory),
    }


def analysis_document(
    run_id: str,
    theory: Theory,
    trajectory: Mapping[str, Any],
    target_warning_pp: float,
    further_warnings: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """``analysis.json`` as ``prepare`` writes it (without its digest)."""
    signed = theory.target_signed_difference_pp
    warnings = [*target_warnings(theory, trajectory, target_warning_pp), *map(dict, further_warnings)]
    return {
        "schema_version": "1.0",
        "run_id": run_id,
        "status": "prepared",
        "requested_target_hit_rate": theory.requested_target_hit_rate,
        "effective_target_hit_rate": theory.effective_target_hit_rate,
        "theoretical_hit_rate": theory.theoretical_hit_rate,
        "target_difference_pp": abs(signed),
        "target_signed_difference_pp": signed,
        "target_absolute_difference_pp": abs(signed),
        "validation": {
            "target_reachable": theory.target_reachable,
            "status": verdict(warnings),
            "warning_only": True,
            "affects_exit_code": False,
        },
        "theory": theory_section(theory),
        "warnings": warnings,
    }


def theory_section(theory: Theory) -> dict[str, Any]:
    """``analysis.theory``; ``dp`` is empty in warm-up mode."""
    return {
        "input_tokens": theory.input_tokens,
        "hit_tokens": theory.hit_tokens,
        "hit_rate": theory.theoretical_hit_rate,
        "groups": {group_name(number): Share.as_json(group) for number, group in enumerate(theory.groups)},
        "dp": {str(rank): share.as_json() for rank, share in enumerate(theory.ranks)},
    }


def target_warnings(theory: Theory, trajectory: Mapping[str, Any], target_warning_pp: float) -> list[dict[str, Any]]:
    """The warnings that are known before anything is sent. They never change an exit code."""
    warnings: list[dict[str, Any]] = []
    requested = theory.requested_target_hit_rate
    if not theory.target_reachable:
        warnings.append(
            {
                "code": Code.TARGET_UNREACHABLE.value,
                "message": f"the requested hit rate {requested:.4f} lies outside of what these lengths, groups and "
                f"order can reach: {theory.reachable_min:.4f} to {theory.reachable_max:.4f}",
                "requested_target_hit_rate": requested,
                "reachable_min": theory.reachable_min,
                "reachable_max": theory.reachable_max,
            }
        )
    difference = abs(theory.target_signed_difference_pp)
    if difference > target_warning_pp:
        warnings.append(
            {
                "code": Code.TARGET_DEVIATION.value,
                "message": f"the theoretical hit rate {theory.theoretical_hit_rate:.4f} is {difference:.2f} percentage "
                f"points away from the requested {requested:.4f} (warning above {target_warning_pp:g})",
                "requested_target_hit_rate": requested,
                "theoretical_hit_rate": theory.theoretical_hit_rate,
                "difference_pp": difference,
                "threshold_pp": float(target_warning_pp),
            }
        )
    if trajectory["status"] != PASS:
        warnings.append(
            {
                "code": Code.TRAJECTORY_BEST_EFFORT.value,
                "message": "the total of hits is exact, but on the way there the cumulative hit rate may fall back or "
                "overshoot (manifest: prefix_cache.trajectory)",
                "issue_count": trajectory["issue_count"],
            }
        )
    return warnings


def length_summary(counts: Mapping[int, int]) -> dict[str, Any]:
    """Smallest, largest, mean, percentiles and up to ten non-empty bins of the lengths in ``counts``.

    ``counts`` maps a length in tokens to how many requests have it. The same figures as
    :func:`ais_bench_prefix_cache.planning.summary.length_summary`, without numpy.
    """
    lengths = sorted(counts)
    total = sum(counts.values())
    low, high = lengths[0], lengths[-1]
    width = max(1, -(-(high - low + 1) // BINS))
    bins: dict[int, int] = {}
    for length in lengths:
        number = (length - low) // width
        bins[number] = bins.get(number, 0) + counts[length]
    return {
        "min": low,
        "max": high,
        "mean": sum(length * counts[length] for length in lengths) / total,
        **{f"p{percent}": _percentile(lengths, counts, total, percent) for percent in (50, 90, 95, 99)},
        "bins": [
            {"min": low + number * width, "max": min(low + (number + 1) * width - 1, high), "count": count}
            for number, count in bins.items()
        ],
    }


def divergence_section(request_count: int) -> dict[str, Any]:
    """``manifest.divergence`` of a data set in which every request's first unshared block is unique."""
    return {
        "strategy": "globally_unique_seed_block",
        "unique_request_blocks": request_count,
        "request_count": request_count,
        "collision_status": "pass",
    }


def group_section(group: GroupTheory, prefix: Mapping[str, Any]) -> dict[str, Any]:
    """One entry of ``manifest.groups``. ``prefix``: sha256, corpus indices and digests of the canonical prefix."""
    return {
        "canonical_prefix_sha256": prefix["canonical_prefix_sha256"],
        "canonical_prefix_tokens": group.canonical_prefix_tokens,
        "max_shared_prefix_tokens": group.max_shared_prefix_tokens,
        "gsm_indices": prefix["gsm_indices"],
        "gsm_question_sha256": prefix["gsm_question_sha256"],
        "reachable_min": rate(group.min_hit_tokens, group.input_tokens),
        "reachable_max": rate(group.max_hit_tokens, group.input_tokens),
        "theoretical_hit_rate": group.hit_rate,
    }


def warmup_section(mode: str, dp_size: int, prompts: Sequence[tuple[int, str, int, int]]) -> dict[str, Any]:
    """``manifest.warmup``. ``prompts``: (group, text, input tokens, shared prefix tokens) of groups that share any."""
    if mode != "warmup":
        return {"enabled": False, "plan": []}
    plan = [
        {
            "request_id": f"warmup:{group_name(group)}:{rank}",
            "group_id": group_name(group),
            "dp_rank": rank,
            "prompt": text,
            "input_tokens": input_tokens,
            "shared_prefix_tokens": shared_prefix_tokens,
            "max_tokens": 1,
            "included_in_formal_statistics": False,
        }
        for group, text, input_tokens, shared_prefix_tokens in prompts
        for rank in range(dp_size)
    ]
    return {"enabled": True, "plan": plan}


def _percentile(lengths: Sequence[int], counts: Mapping[int, int], total: int, percent: int) -> int | float:
    rank, hundredths = divmod((total - 1) * percent, 100)
    below, above = _at_rank(lengths, counts, rank), _at_rank(lengths, counts, min(rank + 1, total - 1))
    scaled = below * 100 + (above - below) * hundredths
    return scaled // 100 if scaled % 100 == 0 else scaled / 100


def _at_rank(lengths: Sequence[int], counts: Mapping[int, int], rank: int) -> int:
    seen = 0
    for length in lengths:
        seen += counts[length]
        if rank < seen:
            return length
    raise ValueError("the rank lies beyond the last length")


def _adjustment_reason(theory: Theory) -> str | None:
    if theory.requested_target_hit_rate > theory.reachable_max:
        return "above_reachable_max"
    if theory.requested_target_hit_rate < theory.reachable_min:
        return "below_reachable_min"
    if theory.effective_target_hit_rate != theory.requested_target_hit_rate:
        return "block_rounding"
    return None


def _counts(column: Any) -> Counter[int]:
    import numpy as np

    values, counts = np.unique(column, return_counts=True)
    return Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))
