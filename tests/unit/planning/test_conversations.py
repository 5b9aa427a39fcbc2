"""The plan of conversations: figures by hand, and brute force over tokens on caches that know nothing of it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.radix_requests import run_alone

from ais_bench_prefix_cache.foundation.errors import ScenarioError
from ais_bench_prefix_cache.kvcache.prefix_cache import PrefixCache
from ais_bench_prefix_cache.kvcache.radix_cache import RadixCache
from ais_bench_prefix_cache.kvcache.scheduler import BatchedRequest, BatchScheduler
from ais_bench_prefix_cache.planning.conversations import ConversationPlan, hit_tokens, plan_conversations
from ais_bench_prefix_cache.scenario.loading import load_scenario


def planned(directory: Path, *, block_size: int = 16, dp_size: int = 1, **conversation: Any) -> ConversationPlan:
    document = {
        "tokenizer": {"block_size": block_size},
        "service": {"dp_size": dp_size},
        "conversation": conversation,
    }
    path = directory / "talk.json"
    path.write_text(json.dumps(document))
    return plan_conversations(load_scenario(path, rules="conversations", environment={}))


def fixed(value: int) -> dict[str, Any]:
    return {"mode": "fixed", "value": value}


def explicit(*values: int) -> dict[str, Any]:
    return {"mode": "explicit", "values": list(values)}


SMALL: dict[str, Any] = {
    "count": 2,
    "turns": fixed(3),
    "system_prompts": {"count": 1, "length": fixed(100)},
    "first_message_length": explicit(20, 30),
    "message_length": fixed(10),
    "answer_length": fixed(8),
}


def test_the_law_leaves_out_the_last_token_and_what_fills_no_block() -> None:
    cases = [(0, 50), (15, 50), (16, 50), (47, 48), (48, 48), (48, 49), (60, 60)]
    assert [hit_tokens(known, prompt, 16) for known, prompt in cases] == [0, 0, 16, 32, 32, 48, 48]
    assert hit_tokens(107, 113, 1) == 107


@pytest.mark.parametrize(
    ("answers", "known"),
    [
        # 120 and 8 answered, of which the last is not computed: 127; 138 + 8 - 1 = 145. The other one shares 100.
        ("generated", [0, 127, 145, 100, 137, 155]),
        # The prompts of the turns before, whatever was answered.
        ("scripted", [0, 120, 138, 100, 130, 148]),
    ],
)
def test_figures_by_hand(tmp_path: Path, answers: str, known: list[int]) -> None:
    plan = planned(tmp_path, **SMALL, answers=answers)
    assert [turn.input_tokens for turn in plan.turns] == [120, 138, 156, 130, 148, 166]
    assert [turn.new_tokens for turn in plan.turns] == [120, 10, 10, 130, 10, 10]
    assert [turn.known_tokens for turn in plan.turns] == known
    assert [turn.hit_tokens for turn in plan.turns] == [known // 16 * 16 for known in known]
    assert [turn.continues for turn in plan.turns] == [None, 0, 1, None, 3, 4]
    assert (plan.total.total, plan.total.shared) == (858, sum(known // 16 * 16 for known in known))
    assert {turn: share.total for turn, (_, share) in plan.shares(lambda each: each.turn).items()} == {
        0: 250,
        1: 286,
        2: 322,
    }


def test_an_answer_of_one_token_leaves_only_the_prompt(tmp_path: Path) -> None:
    plan = planned(tmp_path, **{**SMALL, "answer_length": fixed(1)})
    assert [turn.known_tokens for turn in plan.turns] == [0, 120, 131, 100, 130, 141]


def test_pauses_stand_before_later_messages_and_change_no_hits(tmp_path: Path) -> None:
    plan = planned(tmp_path, **SMALL, think_time_ms=explicit(5, 6, 7, 8))
    assert [turn.think_ms for turn in plan.turns] == [0, 5, 6, 0, 7, 8]
    assert plan.total == planned(tmp_path, **SMALL).total


def test_conversations_stay_on_a_rank_and_each_rank_computes_a_system_prompt_once(tmp_path: Path) -> None:
    prompts = {"count": 3, "length": explicit(64, 32, 48), "assignment": {"mode": "weights", "weights": [5, 2, 1]}}
    plan = planned(tmp_path, dp_size=2, count=16, turns={"mode": "uniform", "min": 1, "max": 4}, system_prompts=prompts)
    first_turns = [turn for turn in plan.turns if turn.turn == 0]
    ranks = {turn.conversation: turn.dp_rank for turn in first_turns}
    assert all(turn.dp_rank == ranks[turn.conversation] for turn in plan.turns)
    lanes: dict[tuple[int, int], list[int]] = {}
    for turn in first_turns:
        lanes.setdefault((turn.group, turn.dp_rank), []).append(turn.known_tokens)
    assert {lane: len(known) for lane, known in lanes.items()} == {
        (0, 0): 5, (0, 1): 5, (1, 0): 2, (1, 1): 2, (2, 0): 1, (2, 1): 1,
    }  # fmt: skip
    for (group, _), known in lanes.items():
        assert known == [0] + [(64, 32, 48)[group]] * (len(known) - 1)


def test_without_system_prompts_conversations_share_nothing(tmp_path: Path) -> None:
    plan = planned(tmp_path, count=5, turns=fixed(1), system_prompts={"count": 0})
    assert plan.system_prompt_tokens == (0,)
    assert plan.total.shared == 0


def test_more_turns_than_a_data_set_has_are_refused(tmp_path: Path) -> None:
    sections: list[dict[str, Any]] = [
        {"count": 1001, "turns": fixed(1000)},
        {"count": 1_000_001, "turns": fixed(1)},
    ]
    for section in sections:
        with pytest.raises(ScenarioError, match=r"talk.json: conversation: .* 100\d00[01] turns .*at most 1000000"):
            planned(tmp_path, **section)


class Talk:
    """The plan's conversations in made-up tokens, with what a server makes of them in answers that nobody knows."""

    def __init__(self, plan: ConversationPlan, seed: int) -> None:
        self.plan = plan
        self.chance = random.Random(seed)
        self.next_unique = 1000
        self.system = [self.tokens(count) for count in plan.system_prompt_tokens]
        self.histories: dict[int, list[int]] = {}

    def tokens(self, count: int) -> list[int]:
        """The first is never used again, the others often are."""
        self.next_unique += 1
        return [self.next_unique, *(self.chance.randrange(3) for _ in range(count - 1))] if count else []

    def prompt(self, index: int) -> list[int]:
        turn = self.plan.turns[index]
        before = self.histories[turn.continues] if turn.continues is not None else self.system[turn.group]
        return [*before, *self.tokens(turn.message_tokens)]

    def answered(self, index: int, prompt: list[int], answer: list[int]) -> None:
        scripted = self.tokens(len(answer)) if self.plan.scripted else answer
        self.histories[index] = [*prompt, *scripted]


RANDOM: dict[str, Any] = {
    "count": 12,
    "turns": {"mode": "uniform", "min": 1, "max": 5},
    "system_prompts": {"count": 2, "length": {"mode": "uniform", "min": 1, "max": 40}},
    "first_message_length": {"mode": "uniform", "min": 1, "max": 30},
    "message_length": {"mode": "uniform", "min": 1, "max": 20},
    "answer_length": {"mode": "uniform", "min": 1, "max": 20},
}


@pytest.mark.parametrize("answers", ["generated", "scripted"])
@pytest.mark.parametrize("block_size", [4, 16])
def test_vllms_scheduler_with_all_conversations_at_once_hits_what_is_planned(
    tmp_path: Path, block_size: int, answers: str
) -> None:
    plan = planned(tmp_path, block_size=block_size, **RANDOM, answers=answers)
    talk = Talk(plan, block_size)
    scheduler = BatchScheduler(PrefixCache(block_size, 4000), max_num_seqs=64, max_num_batched_tokens=64)
    prompts: dict[int, list[int]] = {}
    under_way: dict[int, BatchedRequest[Any]] = {}
    openers = {
        (turn.group, turn.dp_rank): index for index, turn in reversed(list(enumerate(plan.turns))) if not turn.turn
    }
    hits: dict[int, int] = {}
    while len(hits) < len(plan.turns):
        for index, turn in enumerate(plan.turns):
            opener = openers[turn.group, turn.dp_rank]
            ready = turn.continues in hits if turn.turn else opener in (index, *hits)
            if ready and index not in prompts:
                prompts[index] = talk.prompt(index)
                under_way[index] = BatchedRequest(scheduler.cache.sequence(prompts[index]), turn.answer_tokens)
                scheduler.add(under_way[index])
        step = scheduler.schedule()
        scheduler.finish_step(step, lambda request: talk.chance.randrange(3))
        for index, request in list(under_way.items()):
            if request.finished:
                hits[index] = request.hit_tokens or 0
                ids = list(request.sequence.token_ids)
                talk.answered(index, prompts[index], ids[len(prompts[index]) :])
                del under_way[index]
    assert [hits[index] for index in range(len(plan.turns))] == [turn.hit_tokens for turn in plan.turns]
    assert scheduler.cache.hits == plan.total.shared


@pytest.mark.parametrize("answers", ["generated", "scripted"])
@pytest.mark.parametrize("page", [1, 4])
def test_sglangs_tree_hits_what_is_planned(tmp_path: Path, page: int, answers: str) -> None:
    plan = planned(tmp_path, block_size=page, **RANDOM, answers=answers)
    talk, cache = Talk(plan, page), RadixCache(page, None)
    for index, turn in enumerate(plan.turns):
        prompt = talk.prompt(index)
        answer = talk.tokens(turn.answer_tokens)
        assert run_alone(cache, prompt, answer) == turn.hit_tokens, turn
        talk.answered(index, prompt, answer)
