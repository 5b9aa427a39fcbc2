"""The promise, judged by a real vLLM: planned queries and hits equal the counted ones, as integers, per rank.

Each case goes through the real command line and the real AISBench. The cases are chosen so that every value of every
dimension (mode, target, order, ranks, groups, lengths, batch size, streaming) meets a real server, and the pairs
that interact (mode × order, mode × batch size, mode × lengths) all do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real

FIXED = {"mode": "fixed", "value": 320}
SPREAD = {"mode": "truncated_normal", "min": 96, "max": 640, "mean": 300, "std": 120}
UNIFORM_5 = {"count": 5}
ZIPF_5 = {"count": 5, "assignment": {"mode": "zipf", "exponent": 1.0}}
ONE = {"count": 1}

# mode, target, order, groups, input lengths, batch size, stream
CASES: list[tuple[str, float, str, dict[str, Any], dict[str, Any], int, bool]] = [
    ("warmup", 0.6, "interleave", ONE, FIXED, 1, True),
    ("warmup", 0.9, "global_shuffle", UNIFORM_5, FIXED, 8, True),
    ("warmup", 0.3, "within_group_shuffle", ZIPF_5, SPREAD, 32, False),
    ("warmup", 0, "sequential", UNIFORM_5, SPREAD, 8, True),
    ("warmup", 0.6, "input_len_asc", ZIPF_5, SPREAD, 32, True),
    ("cold", 0.6, "interleave", ONE, FIXED, 1, True),
    ("cold", 0.6, "input_len_asc", ONE, SPREAD, 8, True),
    ("cold", 0.3, "global_shuffle", UNIFORM_5, SPREAD, 32, True),
    ("cold", 0.9, "sequential", ZIPF_5, FIXED, 32, False),
    ("cold", 0, "within_group_shuffle", ONE, SPREAD, 8, False),
    ("cold", 0.6, "interleave", ZIPF_5, SPREAD, 32, True),
]


@pytest.fixture(scope="module", params=["one-engine", "two-engines"])
def server(request: pytest.FixtureRequest, serving: Callable[..., Any], tiny_model: Path) -> Iterator[Any]:
    with serving(tiny_model, engines=2 if request.param == "two-engines" else 1) as running:
        yield running


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{c[0]}-{c[1]}-{c[2]}-{c[3]['count']}groups-{c[4]['mode']}-batch{c[5]}-{c[6]}" for c in CASES]
)
def test_theory_equals_counter(server: Any, case: tuple[Any, ...], scenario_for: Any, judge: Any) -> None:
    mode, target, order, groups, lengths, batch_size, stream = case
    judged = judge(
        scenario_for(
            server,
            requests={"input_length": lengths},
            prefix_cache={
                "mode": mode,
                "target_hit_rate": target,
                "groups": groups,
                "order": {"strategy": order},
            },
            aisbench={"model": {"batch_size": batch_size, "stream": stream}},
        )
    )
    assert judged.counted_total == judged.planned_total
    if mode == "cold":
        assert judged.counted == {rank: judged.planned.get(rank, (0, 0)) for rank in range(server.engines)}
    assert judged.analysis["warnings"] == [] or {w["code"] for w in judged.analysis["warnings"]} <= {
        "TARGET_UNREACHABLE",
        "TARGET_DEVIATION",
    }
