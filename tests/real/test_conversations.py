"""Conversations on real servers: hits are as planned although nobody knew what would be answered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real

CONVERSATION: dict[str, Any] = {
    "count": 12,
    "turns": {"mode": "uniform", "min": 3, "max": 5},
    "system_prompts": {"count": 2, "length": {"mode": "explicit", "values": [167, 90]}},
    "first_message_length": {"mode": "uniform", "min": 2, "max": 90},
    "message_length": {"mode": "uniform", "min": 1, "max": 79},
    "answer_length": {"mode": "uniform", "min": 1, "max": 40},
}
CASES = [
    ("one-engine", "generated", 1, False),
    ("one-engine", "scripted", 32, True),
    ("two-engines", "generated", 12, True),
    ("two-engines", "scripted", 12, False),
]


@pytest.mark.parametrize(("server", "answers", "batch_size", "stream"), CASES, indirect=["server"])
def test_every_turn_hits_what_is_planned(
    server: Any,
    answers: str,
    batch_size: int,
    stream: bool,
    scenario_for: Callable[..., Path],
    judge: Callable[..., Any],
) -> None:
    model = {"batch_size": batch_size, "stream": stream, "generation_kwargs": {"temperature": 1}}
    scenario = scenario_for(server, conversation={**CONVERSATION, "answers": answers}, aisbench={"model": model})
    judged = judge(scenario)
    assert judged.requests_seen == judged.requests_planned
    assert judged.counted == judged.planned
    assert judged.analysis["findings"] == []
    assert judged.analysis["warnings"] == []
