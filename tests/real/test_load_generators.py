"""Two load generators against a real vLLM of two engines: equal to theory per rank and request by request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real


@pytest.mark.parametrize("server", ["two-engines"], indirect=True)
@pytest.mark.parametrize(
    ("mode", "load"), [("warmup", {"generators": 2, "senders": 2}), ("cold", {"generators": 2})], ids=["warmup", "cold"]
)
def test_theory_equals_counter(
    server: Any, mode: str, load: dict[str, int], scenario_for: Callable[..., Path], judge: Callable[[Path], Any]
) -> None:
    judged = judge(
        scenario_for(
            server,
            requests={"input_length": {"mode": "fixed", "value": 320}},
            prefix_cache={
                "mode": mode,
                "target_hit_rate": 0.5,
                "groups": {"count": 4},
                "order": {"strategy": "sequential"},
            },
            aisbench={"model": {"batch_size": 8}, "load": load},
        )
    )
    assert judged.counted_total == judged.planned_total
    if mode == "cold":
        assert judged.counted == judged.planned
    requests = judged.analysis["requests"]
    assert (requests["matched"], judged.analysis["findings"]) == (len(judged.requests_planned), [])
    assert judged.requests_seen == judged.requests_planned
    assert len(judged.analysis["runtime"]["aisbench"]["load"]["generators"]) == 2
