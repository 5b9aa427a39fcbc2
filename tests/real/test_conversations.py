"""Conversations on real servers: hits are as planned although nobody knew what would be answered."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.real.real_vllm import drive

from ais_bench_prefix_cache.planning.conversations import ConversationPlan, plan_conversations
from ais_bench_prefix_cache.scenario.loading import load_scenario

pytestmark = pytest.mark.real

CONVERSATION: dict[str, Any] = {
    "count": 12,
    "turns": {"mode": "uniform", "min": 3, "max": 5},
    "system_prompts": {"count": 2, "length": {"mode": "explicit", "values": [167, 90]}},
    "first_message_length": {"mode": "uniform", "min": 2, "max": 90},
    "message_length": {"mode": "uniform", "min": 1, "max": 79},
    "answer_length": {"mode": "uniform", "min": 1, "max": 40},
}
AGENTS: dict[str, Any] = {
    "branches": {"after_turn": 2, "count": 3, "turns": {"mode": "uniform", "min": 1, "max": 2}},
    "tool_results": {"length": {"mode": "uniform", "min": 40, "max": 120}, "time_ms": {"mode": "fixed", "value": 20}},
}
RETRIES: dict[str, Any] = {"branches": {"after_turn": 1, "count": 2, "message": "same"}}
IN_TURN: dict[str, Any] = {"routing": "round_robin"}
CASES: list[tuple[str, str, int, bool, dict[str, Any]]] = [
    ("one-engine", "generated", 1, False, {}),
    ("one-engine", "scripted", 32, True, AGENTS),
    ("two-engines", "generated", 12, True, {}),
    ("two-engines", "scripted", 12, False, {}),
    ("two-engines", "generated", 16, True, AGENTS | IN_TURN),
    ("two-engines", "scripted", 16, True, RETRIES | IN_TURN),
]


@pytest.mark.parametrize(("server", "answers", "batch_size", "stream", "more"), CASES, indirect=["server"])
def test_every_turn_hits_what_is_planned(
    server: Any,
    answers: str,
    batch_size: int,
    stream: bool,
    more: dict[str, Any],
    scenario_for: Callable[..., Path],
    judge: Callable[..., Any],
) -> None:
    model = {"batch_size": batch_size, "stream": stream, "generation_kwargs": {"temperature": 1}}
    scenario = scenario_for(
        server, conversation={**CONVERSATION, "answers": answers, **more}, aisbench={"model": model}
    )
    judged = judge(scenario)
    assert judged.requests_seen == judged.requests_planned
    assert judged.counted == judged.planned
    assert judged.analysis["findings"] == []
    assert judged.analysis["warnings"] == []


@pytest.mark.parametrize("server", ["one-engine"], indirect=True)
def test_texts_with_a_script_are_exact(
    server: Any, scenario_for: Callable[..., Path], judge: Callable[..., Any]
) -> None:
    model = {"batch_size": 8, "stream": True, "generation_kwargs": {"temperature": 1}}
    section = {**CONVERSATION, "form": "text", "answers": "scripted"}
    judged = judge(scenario_for(server, conversation=section, aisbench={"model": model}))
    assert (judged.counted, judged.requests_seen) == (judged.planned, judged.requests_planned)
    assert judged.analysis["findings"] == []


@pytest.mark.parametrize("server", ["two-engines"], indirect=True)
def test_the_server_s_own_choice_of_ranks_stays_within_its_range(
    server: Any, scenario_for: Callable[..., Path], judge: Callable[..., Any]
) -> None:
    conversation = {**CONVERSATION, "routing": "free"}
    judged = judge(scenario_for(server, conversation=conversation, aisbench={"model": {"batch_size": 6}}))
    (queries, hits), (planned, _) = judged.counted_total, judged.planned_total
    bounds = judged.analysis["theory"]["range"]
    assert queries == planned
    assert bounds["least_hit_tokens"] <= hits <= bounds["most_hit_tokens"]
    (finding,) = judged.analysis["findings"]
    assert finding["code"] == "FREE_ROUTING"
    assert finding["evidence"]["counted_hits"] == hits
    assert judged.analysis["warnings"] == []


@pytest.mark.parametrize("server", ["forty-blocks"], indirect=True)
def test_a_small_cache_hits_what_the_replay_in_the_order_of_sending_says(
    server: Any, scenario_for: Callable[..., Path], judge: Callable[..., Any]
) -> None:
    """Conversations go ahead of others that think, one request at a time."""
    conversation = {**CONVERSATION, "think_time_ms": {"mode": "uniform", "min": 1, "max": 1500}, **AGENTS}
    judged = judge(scenario_for(server, conversation=conversation, aisbench={"model": {"batch_size": 1}}))
    assert {finding["code"] for finding in judged.analysis["findings"]} == {"CACHE_TOO_SMALL"}
    (finding,) = judged.analysis["findings"]
    assert finding["evidence"]["predicted_hits"] == judged.counted_total[1] < judged.planned_total[1]


def traffic(plan: ConversationPlan) -> dict[str, Any]:
    """All conversations at once through the driver's scheduler, which answers request *i* with ``(31 i + n) % 50``.

    Every other token is used once.
    """
    unused = count(100)
    system = [[next(unused) for _ in range(tokens)] for tokens in plan.system_prompt_tokens]
    histories: dict[int, list[int]] = {}
    rounds: dict[int, list[list[Any]]] = {}
    known: set[int] = set()
    for index, turn in enumerate(plan.turns):
        before = system[turn.group] if turn.continues is None else histories[turn.continues]
        prompt = [*before, *(next(unused) for _ in range(turn.message_tokens))]
        answer = [(31 * index + number) % 50 for number in range(turn.answer_tokens)]
        histories[index] = [*prompt, *([next(unused) for _ in answer] if plan.scripted else answer)]
        # The first conversation of a system prompt goes ahead of the others.
        ahead = turn.group not in known
        known.add(turn.group)
        rounds.setdefault(-1 if ahead else turn.turn, []).append([index, prompt, turn.answer_tokens])
    idle: dict[str, Any] = {"add": [], "abort": [], "reset": None}
    steps = [[{**idle, "add": rounds[each]}, *[idle] * 80] for each in sorted(rounds)]
    limits = {"num_blocks": 4000, "max_num_seqs": 64, "max_num_batched_tokens": 256}
    return {"block_size": plan.block_size, **limits, "events": [event for each in steps for event in each]}


def test_vllms_own_scheduler_hits_what_is_planned(tmp_path: Path, tiny_model: Path) -> None:
    """Without a server: cheap enough for many plans."""
    plans = []
    for seed, answers in enumerate(["generated", "scripted"] * 5):
        path = tmp_path / "talk.json"
        document = {
            "run": {"random_seed": seed},
            "tokenizer": {"block_size": 16},
            "service": {"dp_size": 1},
            "conversation": {**CONVERSATION, "answers": answers},
        }
        path.write_text(json.dumps(document))
        plans.append(plan_conversations(load_scenario(path, rules="conversations", environment={})))
    observed = drive("drive_vllm_scheduler", map(traffic, plans), tiny_model)
    counted = [(sum(step[2] for step in steps), sum(step[3] for step in steps)) for steps in observed]
    assert counted == [(plan.total.total, plan.total.shared) for plan in plans]
    assert all(steps[-1][4:6] == [0, 0] for steps in observed)
