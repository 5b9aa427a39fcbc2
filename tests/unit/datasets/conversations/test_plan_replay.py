"""Conversations on caches that forget, against vLLM's scheduler with tokens; and who sends when."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from ais_bench_prefix_cache.analysis.cache_prediction import predict_conversation_hits
from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
from ais_bench_prefix_cache.datasets.conversations.plan_replay import ReplayedTurn, replay_conversations, turn_by_turn
from ais_bench_prefix_cache.kvcache.prefix_cache import PrefixCache
from ais_bench_prefix_cache.kvcache.scheduler import BatchedRequest, BatchScheduler

BLOCK = 4
SYSTEM = {"group-0": 22, "group-1": 9}


def talks(seed: int, count: int = 14) -> list[ReplayedTurn]:
    chance = random.Random(seed)
    turns = []
    for conversation in range(count):
        group = f"group-{chance.randrange(2)}"
        tokens = SYSTEM[group] + chance.randrange(1, 20)
        for turn in range(chance.randrange(1, 6)):
            answer = chance.randrange(1, 12)
            turns.append(ReplayedTurn(conversation, turn, group, 0, SYSTEM[group], tokens, answer))
            tokens += answer + chance.randrange(1, 12)
    return turns


def hits_of_the_scheduler(turns: Sequence[ReplayedTurn], at_once: int, num_blocks: int, scripted: bool) -> int:
    """Tokens of which the first that differ are never used again; one request after the other."""
    unused = iter(range(100, 1_000_000))
    system = {group: [next(unused) for _ in range(tokens)] for group, tokens in SYSTEM.items()}
    histories: dict[int, list[int]] = {}
    scheduler = BatchScheduler(PrefixCache(BLOCK, num_blocks), max_num_seqs=8, max_num_batched_tokens=8192)
    for turn in turn_by_turn(turns, at_once):
        prompt = list(histories.get(turn.conversation, system[turn.group]))
        prompt += [next(unused) for _ in range(turn.prompt_tokens - len(prompt))]
        request = BatchedRequest(scheduler.cache.sequence(prompt), turn.answer_tokens)
        scheduler.add(request)
        while not request.finished:
            scheduler.finish_step(scheduler.schedule(), lambda _: next(unused))
        answer = request.sequence.token_ids[turn.prompt_tokens :]
        histories[turn.conversation] = [*prompt, *([next(unused) for _ in answer] if scripted else answer)]
    return scheduler.cache.hits


@pytest.mark.parametrize("scripted", [False, True], ids=["generated", "scripted"])
@pytest.mark.parametrize("at_once", [1, 3, 20])
def test_hits_are_those_of_vllms_scheduler_at_every_size(at_once: int, scripted: bool) -> None:
    turns = talks(at_once)
    largest = max(-(-(turn.prompt_tokens + turn.answer_tokens) // BLOCK) for turn in turns)
    options: dict[str, Any] = {"scripted": scripted, "at_once": at_once, "block_size": BLOCK, "ranks": 1}
    unbounded = replay_conversations(turns, **options, num_blocks=None)
    assert unbounded is not None
    curve = unbounded.capacity_curve()
    found = []
    for num_blocks in (largest, largest + 7, 2 * largest, 4 * largest, 4000):
        expected = hits_of_the_scheduler(turns, at_once, num_blocks, scripted)
        replay = replay_conversations(turns, **options, num_blocks=num_blocks)
        assert replay is not None
        assert replay.totals[0].hits == curve.hit_tokens(num_blocks) == expected
        found.append(expected)
    assert found == sorted(found) and found[-1] == unbounded.totals[0].hits
    assert found[0] < found[-1] or at_once == 1


def test_a_conversation_that_is_over_gives_its_place_to_the_next() -> None:
    turns = [
        ReplayedTurn(conversation, turn, "group-0", 0, 0, 1, 1)
        for conversation, count in enumerate((2, 3, 1, 1))
        for turn in range(count)
    ]
    order = [(turn.conversation, turn.turn) for turn in turn_by_turn(turns, 2)]
    assert order == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (1, 2), (3, 0)]
    assert list(turn_by_turn(turns, 1)) == turns


def test_a_run_is_told_what_a_cache_of_its_server_s_size_hits() -> None:
    turns = talks(5)
    columns = RequestColumns(
        group_ids=[turn.group for turn in turns],
        dp_ranks=[0] * len(turns),
        lane_sequences=[turn.turn for turn in turns],
        input_tokens=[turn.prompt_tokens for turn in turns],
        hit_tokens=[0] * len(turns),
        max_tokens=[turn.answer_tokens for turn in turns],
        are_turns=True,
    )
    options: dict[str, Any] = {"system_prompt_tokens": SYSTEM, "at_once": 4, "block_size": BLOCK, "dp_size": 1}
    prediction = predict_conversation_hits(columns, scripted=False, **options, capacity_tokens=41 * BLOCK)
    assert prediction is not None and prediction.evicted_blocks
    assert prediction.hit_tokens == hits_of_the_scheduler(turns, 4, 40, scripted=False)
    for tokens in (10 * BLOCK, 4000 * BLOCK):  # a turn does not fit; nothing is evicted
        assert predict_conversation_hits(columns, scripted=False, **options, capacity_tokens=tokens) is None
