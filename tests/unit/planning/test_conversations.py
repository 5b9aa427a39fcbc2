"""The plan of conversations: figures by hand, and brute force over tokens on caches that know nothing of it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.doubles.radix_requests import run_alone

from ais_bench_prefix_cache.foundation.errors import ScenarioError
from ais_bench_prefix_cache.foundation.names import NO_RANK
from ais_bench_prefix_cache.kvcache.prefix_cache import PrefixCache
from ais_bench_prefix_cache.kvcache.radix_cache import RadixCache
from ais_bench_prefix_cache.kvcache.replay import SequentialReplay
from ais_bench_prefix_cache.kvcache.scheduler import BatchedRequest, BatchScheduler
from ais_bench_prefix_cache.planning.conversations import ConversationPlan, hit_tokens, plan_conversations
from ais_bench_prefix_cache.scenario.loading import load_scenario


def planned(
    directory: Path, *, block_size: int = 16, dp_size: int = 1, seed: int = 42, **conversation: Any
) -> ConversationPlan:
    document = {
        "run": {"random_seed": seed},
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
    known, prompts = np.array(cases).T
    assert hit_tokens(known, prompts, 16).tolist() == [0, 0, 16, 32, 32, 48, 48]
    assert hit_tokens(np.array([107]), np.array([113]), 1).tolist() == [107]


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
        self.prompts: dict[int, list[int]] = {}
        self.histories: dict[int, list[int]] = {}

    def tokens(self, count: int) -> list[int]:
        """The first is never used again, the others often are."""
        self.next_unique += 1
        return [self.next_unique, *(self.chance.randrange(3) for _ in range(count - 1))] if count else []

    def prompt(self, index: int) -> list[int]:
        turn = self.plan.turns[index]
        before = self.histories[turn.continues] if turn.continues is not None else self.system[turn.group]
        said = [*before, *self.tokens(turn.message_tokens)]
        self.prompts[index] = said if turn.repeats is None else self.prompts[turn.repeats]
        return self.prompts[index]

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


AGENTS: dict[str, Any] = {
    **RANDOM,
    "branches": {"after_turn": 2, "count": 3, "turns": {"mode": "uniform", "min": 1, "max": 3}},
    "tool_results": {"per_message": 2, "length": {"mode": "uniform", "min": 1, "max": 40}},
}
RETRIES: dict[str, Any] = {**RANDOM, "branches": {"after_turn": 1, "count": 2, "message": "same"}}
KINDS = pytest.mark.parametrize("section", [RANDOM, AGENTS, RETRIES], ids=["talk", "agents", "retries"])
ANSWERS = pytest.mark.parametrize("answers", ["generated", "scripted"])


@KINDS
@ANSWERS
@pytest.mark.parametrize("routing", ["sticky", "round_robin"])
@pytest.mark.parametrize("block_size", [4, 16])
def test_vllms_schedulers_with_all_conversations_at_once_hit_what_is_planned(
    tmp_path: Path, block_size: int, routing: str, answers: str, section: dict[str, Any]
) -> None:
    """Three ranks of different speed; whoever may be sent is, or a little later, in any order."""
    plan = planned(tmp_path, block_size=block_size, dp_size=3, **section, answers=answers, routing=routing)
    talk, chance = Talk(plan, block_size), random.Random(block_size)
    schedulers = [
        BatchScheduler(PrefixCache(block_size, 4000), max_num_seqs=64, max_num_batched_tokens=64) for _ in range(3)
    ]
    requests: dict[int, BatchedRequest[Any]] = {}
    hits: dict[int, int] = {}

    def may_be_sent(index: int) -> bool:
        turn = plan.turns[index]
        ahead = turn.waits_for
        started = ahead is None or (ahead in requests and requests[ahead].num_output_tokens > 0)
        return index not in requests and (turn.continues is None or turn.continues in hits) and started

    while len(hits) < len(plan.turns):
        for index in chance.sample(range(len(plan.turns)), len(plan.turns)):
            if may_be_sent(index) and chance.random() < 0.3:
                turn = plan.turns[index]
                scheduler = schedulers[turn.dp_rank]
                requests[index] = BatchedRequest(scheduler.cache.sequence(talk.prompt(index)), turn.answer_tokens)
                scheduler.add(requests[index])
        scheduler = chance.choice(schedulers)
        scheduler.finish_step(scheduler.schedule(), lambda request: talk.chance.randrange(2))
        for index, request in requests.items():
            if request.finished and index not in hits:
                hits[index] = request.hit_tokens or 0
                prompt = talk.prompts[index]
                talk.answered(index, prompt, list(request.sequence.token_ids)[len(prompt) :])
    assert [hits[index] for index in range(len(plan.turns))] == [turn.hit_tokens for turn in plan.turns]
    assert [scheduler.cache.hits for scheduler in schedulers] == [
        sum(turn.hit_tokens for turn in plan.turns if turn.dp_rank == rank) for rank in range(3)
    ]


@KINDS
@ANSWERS
@pytest.mark.parametrize("routing", ["sticky", "round_robin"])
@pytest.mark.parametrize("page", [1, 4])
def test_sglangs_trees_hit_what_is_planned(
    tmp_path: Path, page: int, routing: str, answers: str, section: dict[str, Any]
) -> None:
    plan = planned(tmp_path, block_size=page, dp_size=2, **section, answers=answers, routing=routing)
    talk, caches = Talk(plan, page), [RadixCache(page, None), RadixCache(page, None)]
    for index, turn in enumerate(plan.turns):
        prompt = talk.prompt(index)
        answer = talk.tokens(turn.answer_tokens)
        assert run_alone(caches[turn.dp_rank], prompt, answer) == turn.hit_tokens, turn
        talk.answered(index, prompt, answer)


def test_branches_by_hand(tmp_path: Path) -> None:
    """Of three turns, two branches of two turns after the first: turn by turn, the conversation's own before them."""
    section = {**SMALL, "count": 1, "first_message_length": fixed(20), "branches": {"count": 2, "turns": fixed(2)}}
    plan = planned(tmp_path, **section)
    columns = [(each.turn, each.branch, each.continues, each.waits_for) for each in plan.turns]
    assert columns == [
        (0, 0, None, None),
        (1, 0, 0, None), (1, 1, 0, 1), (1, 2, 0, 1),
        (2, 0, 1, None), (2, 1, 2, None), (2, 2, 3, None),
    ]  # fmt: skip
    # 120 and 8 answered. The first that continues finds 127 of them, the others 128: that one's prompt has them all.
    assert [each.known_tokens for each in plan.turns] == [0, 127, 128, 128, 145, 145, 145]
    assert [each.input_tokens for each in plan.turns] == [120, 138, 138, 138, 156, 156, 156]


def test_retries_by_hand(tmp_path: Path) -> None:
    section = {
        **SMALL,
        "turns": explicit(1, 3),
        "message_length": explicit(10, 11),
        "answer_length": explicit(8, 8, 9, 7),
        "think_time_ms": explicit(50, 60),
        "branches": {"count": 2, "message": "same"},
    }
    plan = planned(tmp_path, **section)
    assert [(each.conversation, each.turn, each.branch, each.continues, each.repeats) for each in plan.turns] == [
        (0, 0, 0, None, None),
        (1, 0, 0, None, None), (1, 1, 0, 1, None), (1, 1, 1, 1, 2), (1, 1, 2, 1, 2), (1, 2, 0, 2, None),
    ]  # fmt: skip
    assert [each.waits_for for each in plan.turns] == [None, 0, None, 2, 2, None]
    assert [each.known_tokens for each in plan.turns] == [0, 100, 137, 148, 148, 156]
    assert [each.input_tokens for each in plan.turns] == [120, 130, 148, 148, 148, 168]
    assert [each.answer_tokens for each in plan.turns] == [8, 8, 9, 9, 9, 7]
    assert [each.think_ms for each in plan.turns] == [0, 0, 50, 50, 50, 60]


def test_tool_results_have_lengths_and_pauses_of_their_own(tmp_path: Path) -> None:
    tools = {"per_message": 2, "length": explicit(201, 202, 203), "time_ms": fixed(7)}
    section = {**SMALL, "count": 1, "first_message_length": fixed(20), "turns": fixed(5), "tool_results": tools}
    plan = planned(tmp_path, **{**section, "message_length": explicit(10)}, think_time_ms=fixed(90))
    assert [each.message_tokens for each in plan.turns] == [20, 201, 202, 10, 203]
    assert [each.think_ms for each in plan.turns] == [0, 7, 7, 90, 7]


def test_round_robin_by_hand(tmp_path: Path) -> None:
    """Row by row; a rank that has missed a turn knows its last one, or the system prompt."""
    plan = planned(tmp_path, dp_size=2, **{**SMALL, "turns": fixed(4)}, routing="round_robin")
    assert [each.dp_rank for each in plan.turns] == [0, 1, 0, 1, 0, 1, 0, 1]
    # The first of rank 1 finds nothing; the third and fourth what the turn two before left.
    assert [each.known_tokens for each in plan.turns] == [0, 0, 127, 145, 100, 100, 137, 155]
    assert [each.waits_for for each in plan.turns] == [None, None, None, None, 0, 1, None, None]


def hits_routed(plan: ConversationPlan, ranks: Sequence[int]) -> int:
    """What caches with tokens hit where each row goes to its rank, one after another."""
    talk, caches = Talk(plan, 1), SequentialReplay(block_size=plan.block_size, ranks=plan.dp_size)
    for index, turn in enumerate(plan.turns):
        prompt = talk.prompt(index)
        answer = talk.tokens(turn.answer_tokens)
        caches.run(ranks[index], prompt, output=answer)
        talk.answered(index, prompt, answer)
    return sum(caches.hits)


@KINDS
@ANSWERS
@pytest.mark.parametrize("dp_size", [1, 2, 3])
def test_the_range_of_free_routing_is_that_of_all_routings(
    tmp_path: Path, dp_size: int, answers: str, section: dict[str, Any]
) -> None:
    """Every routing of a few rows, by brute force."""
    for seed in range(6):
        few = {**section, "count": 2, "turns": {"mode": "uniform", "min": 1, "max": 3}}
        if "branches" in section:
            few["branches"] = {**section["branches"], "after_turn": 1, "count": 1}
        few["system_prompts"] = {"count": 1 + seed % 2, "length": {"mode": "uniform", "min": 1, "max": 40}}
        plan = planned(tmp_path, seed=seed, block_size=4, dp_size=dp_size, **few, answers=answers, routing="free")
        if dp_size ** len(plan.turns) > 800:
            continue
        hits = [hits_routed(plan, ranks) for ranks in product(range(dp_size), repeat=len(plan.turns))]
        assert plan.range is not None
        assert (plan.range.least, plan.range.most) == (min(hits), max(hits))
        sticky = planned(tmp_path, seed=seed, block_size=4, dp_size=dp_size, **few, answers=answers)
        assert plan.total == sticky.total
        assert {each.dp_rank for each in plan.turns} == {NO_RANK}
        assert [each.sticky_rank for each in plan.turns] == [each.dp_rank for each in sticky.turns]


@pytest.mark.parametrize("section", [RANDOM, AGENTS], ids=["talk", "agents"])
def test_system_prompts_are_made_for_a_target(tmp_path: Path, section: dict[str, Any]) -> None:
    """No other size of the longest comes nearer; the others are in proportion."""
    section = {**section, "count": 20}
    given = planned(tmp_path, dp_size=2, **section)
    first, longest = given.system_prompt_tokens, max(given.system_prompt_tokens)
    sizes = [[max(1, tokens * size // longest) for tokens in first] for size in range(5, 500, 7)]
    prompts = [{"count": len(each), "length": explicit(*each)} for each in sizes]
    rates = [planned(tmp_path, dp_size=2, **{**section, "system_prompts": each}).total.rate for each in prompts]
    for target in (0.75, 0.8, 0.9):
        plan = planned(tmp_path, dp_size=2, **section, target_hit_rate=target)
        assert [(each.message_tokens, each.answer_tokens) for each in plan.turns] == [
            (each.message_tokens, each.answer_tokens) for each in given.turns
        ]
        assert abs(plan.total.rate - target) <= min(abs(rate - target) for rate in rates)


@pytest.mark.parametrize("system_prompts", [RANDOM["system_prompts"], {"count": 0}], ids=["two", "none"])
def test_messages_are_made_for_a_target_where_system_prompts_cannot_be(
    tmp_path: Path, system_prompts: dict[str, Any]
) -> None:
    section = {**RANDOM, "count": 20, "answer_length": fixed(90)}
    given = planned(tmp_path, **{**section, "system_prompts": {"count": 0}})
    plan = planned(tmp_path, **{**section, "system_prompts": system_prompts}, target_hit_rate=0.65)
    as_given, messages = ([each.message_tokens for each in each.turns] for each in (given, plan))
    assert not any(plan.system_prompt_tokens)
    assert messages == [max(1, length * max(messages) // max(as_given)) for length in as_given]
    assert given.total.rate > 0.7
    assert plan.total.rate == pytest.approx(0.65, abs=0.002)


def test_a_target_meets_what_a_brute_force_over_sizes_meets(tmp_path: Path) -> None:
    section = {**SMALL, "count": 6, "first_message_length": fixed(25)}
    rates = [
        planned(tmp_path, **{**section, "system_prompts": {"count": 1, "length": fixed(size)}}).total.rate
        for size in range(1, 220)
    ]
    for target in (0.7, 0.8):
        plan = planned(tmp_path, **section, target_hit_rate=target)
        assert abs(plan.total.rate - target) <= min(abs(rate - target) for rate in rates) + 1e-4
