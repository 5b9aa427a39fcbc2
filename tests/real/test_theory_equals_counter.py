"""The promise, judged by a real vLLM: planned queries and hits equal the counted ones, as integers, per rank.

Each case goes through the real command line and the real AISBench. The cases of :data:`PAIRWISE` bring every pair of
values of any two dimensions together on a real server.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.real

LENGTHS: dict[str, dict[str, Any]] = {
    "fixed": {"mode": "fixed", "value": 320},
    "spread": {"mode": "truncated_normal", "min": 96, "max": 640, "mean": 300, "std": 120},
}
GROUPS: dict[str, dict[str, Any]] = {
    "one": {"count": 1},
    "uniform": {"count": 5},
    "zipf": {"count": 5, "assignment": {"mode": "zipf", "exponent": 1.0}},
}
PLANNING_WARNINGS = {"TARGET_UNREACHABLE", "TARGET_DEVIATION", "TRAJECTORY_BEST_EFFORT"}


class Case(NamedTuple):
    mode: str
    target: float
    order: str
    groups: str
    lengths: str
    batch_size: int
    stream: bool

    def __str__(self) -> str:
        return "-".join(map(str, self))


VALUES: tuple[tuple[Any, ...], ...] = (
    ("one-engine", "two-engines"),
    ("warmup", "cold"),
    (0, 0.3, 0.6, 0.9),
    ("sequential", "within_group_shuffle", "interleave", "global_shuffle", "input_len_asc"),
    ("one", "uniform", "zipf"),
    ("fixed", "spread"),
    (1, 8, 32),
    (True, False),
)
PAIRWISE = [
    ("one-engine", Case("cold", 0, "interleave", "zipf", "fixed", 32, True)),
    ("one-engine", Case("cold", 0.3, "sequential", "uniform", "spread", 1, False)),
    ("one-engine", Case("cold", 0.6, "interleave", "uniform", "fixed", 32, True)),
    ("one-engine", Case("cold", 0.9, "input_len_asc", "zipf", "fixed", 8, False)),
    ("one-engine", Case("warmup", 0, "input_len_asc", "uniform", "spread", 32, True)),
    ("one-engine", Case("warmup", 0.3, "global_shuffle", "uniform", "spread", 1, False)),
    ("one-engine", Case("warmup", 0.6, "sequential", "one", "spread", 8, False)),
    ("one-engine", Case("warmup", 0.6, "within_group_shuffle", "zipf", "fixed", 1, False)),
    ("one-engine", Case("warmup", 0.6, "input_len_asc", "one", "fixed", 1, False)),
    ("one-engine", Case("warmup", 0.9, "interleave", "one", "spread", 1, False)),
    ("two-engines", Case("cold", 0, "global_shuffle", "one", "fixed", 1, True)),
    ("two-engines", Case("cold", 0, "within_group_shuffle", "uniform", "spread", 8, False)),
    ("two-engines", Case("cold", 0.3, "interleave", "uniform", "spread", 8, False)),
    ("two-engines", Case("cold", 0.6, "global_shuffle", "zipf", "spread", 32, True)),
    ("two-engines", Case("cold", 0.9, "within_group_shuffle", "one", "spread", 8, True)),
    ("two-engines", Case("cold", 0.9, "sequential", "uniform", "fixed", 32, False)),
    ("two-engines", Case("warmup", 0, "sequential", "zipf", "fixed", 32, True)),
    ("two-engines", Case("warmup", 0.3, "within_group_shuffle", "one", "fixed", 32, False)),
    ("two-engines", Case("warmup", 0.3, "input_len_asc", "zipf", "spread", 1, True)),
    ("two-engines", Case("warmup", 0.9, "global_shuffle", "uniform", "spread", 8, True)),
]
OTHER_SERVERS = [
    ("two-engines-one-api-process-bos", Case("warmup", 0.6, "interleave", "uniform", "spread", 32, True)),
    ("two-engines-one-api-process-bos", Case("cold", 0.6, "input_len_asc", "uniform", "spread", 32, True)),
    # 39 blocks, and 400 pass through: only what nobody needs any more is evicted.
    ("forty-blocks", Case("warmup", 0.6, "interleave", "one", "fixed", 1, True)),
]


def test_every_pair_of_values_meets_a_real_server() -> None:
    cases = [(server, *case) for server, case in PAIRWISE]
    missing = [
        pair
        for first, second in combinations(range(len(VALUES)), 2)
        for pair in product(VALUES[first], VALUES[second])
        if pair not in {(case[first], case[second]) for case in cases}
    ]
    assert missing == []


@pytest.mark.parametrize(("server", "case"), [*PAIRWISE, *OTHER_SERVERS], indirect=["server"], ids=str)
def test_theory_equals_counter(
    server: Any, case: Case, scenario_for: Callable[..., Path], judge: Callable[[Path], Any]
) -> None:
    judged = judge(
        scenario_for(
            server,
            requests={"input_length": LENGTHS[case.lengths]},
            prefix_cache={
                "mode": case.mode,
                "target_hit_rate": case.target,
                "groups": GROUPS[case.groups],
                "order": {"strategy": case.order},
            },
            aisbench={"model": {"batch_size": case.batch_size, "stream": case.stream}},
        )
    )
    assert judged.counted_total == judged.planned_total
    if case.mode == "cold":
        assert judged.counted == {rank: judged.planned.get(rank, (0, 0)) for rank in range(server.engines)}
    assert judged.requests_seen == judged.requests_planned
    assert judged.analysis["findings"] == []
    assert {warning["code"] for warning in judged.analysis["warnings"]} <= PLANNING_WARNINGS
