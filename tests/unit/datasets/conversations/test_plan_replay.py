"""Conversations on caches that forget, against vLLM's scheduler with tokens; and who sends when."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from ais_bench_prefix_cache.analysis.cache_prediction import predict_conversation_hits
from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
from ais_bench_prefix_cache.datasets.conversations.plan_replay import (
    ReplayedTurn,
    TurnLinks,
    TurnTokens,
    replay_conversations,
    replayed_turns,
    turn_by_turn,
)
from ais_bench_prefix_cache.kvcache.prefix_cache import PrefixCache
from ais_bench_prefix_cache.kvcache.scheduler import BatchedRequest, BatchScheduler

BLOCK = 4
SYSTEM = {"group-0": 22, "group-1": 9}


def talks(seed: int, count: int = 14, think_ms: int = 0) -> list[ReplayedTurn]:
    """Conversations of which every other one has two branches after its first turn, or sends that once more."""
    chance = random.Random(seed)
    turns: list[tuple[TurnLinks, TurnTokens]] = []

    def add(links: TurnLinks, group: str, tokens: int) -> int:
        turns.append((links, TurnTokens(group, 0, SYSTEM[group], tokens, chance.randrange(1, 12))))
        return len(turns) - 1

    def history(row: int) -> int:
        return turns[row][1].prompt_tokens + turns[row][1].answer_tokens

    for conversation in range(count):
        group = f"group-{chance.randrange(2)}"
        last = first = add(TurnLinks(), group, SYSTEM[group] + chance.randrange(1, 20))
        for _ in range(chance.randrange(5)):
            pause = chance.randrange(think_ms + 1)
            last = add(TurnLinks(0, last, None, pause), group, history(last) + chance.randrange(1, 12))
            if turns[last][0].continues == first and conversation % 2:
                for branch in (1, 2):
                    again = conversation % 4 == 1
                    tokens = turns[last][1].prompt_tokens if again else history(first) + chance.randrange(1, 12)
                    row = add(TurnLinks(branch, first, last if again else None, pause if again else 0), group, tokens)
                    if not again:
                        add(TurnLinks(branch, row, None, 0), group, history(row) + chance.randrange(1, 12))
    return replayed_turns(turns)


def hits_of_the_scheduler(turns: Sequence[ReplayedTurn], at_once: int, num_blocks: int, scripted: bool) -> int:
    """Tokens of which the first that differ are never used again; one request after the other."""
    unused = iter(range(100, 1_000_000))
    system = {group: [next(unused) for _ in range(tokens)] for group, tokens in SYSTEM.items()}
    prompts: dict[int, list[int]] = {}
    histories: dict[int, list[int]] = {}
    scheduler = BatchScheduler(PrefixCache(BLOCK, num_blocks), max_num_seqs=8, max_num_batched_tokens=8192)
    for row in turn_by_turn(turns, at_once):
        links, tokens = turns[row].links, turns[row].tokens
        if links.repeats is not None:
            prompt = prompts[links.repeats]
        else:
            prompt = list(system[tokens.group] if links.continues is None else histories[links.continues])
            prompt += [next(unused) for _ in range(tokens.prompt_tokens - len(prompt))]
        prompts[row] = prompt
        request = BatchedRequest(scheduler.cache.sequence(prompt), tokens.answer_tokens)
        scheduler.add(request)
        while not request.finished:
            scheduler.finish_step(scheduler.schedule(), lambda _: next(unused))
        answer = request.sequence.token_ids[tokens.prompt_tokens :]
        histories[row] = [*prompt, *([next(unused) for _ in answer] if scripted else answer)]
    return scheduler.cache.hits


@pytest.mark.parametrize("scripted", [False, True], ids=["generated", "scripted"])
@pytest.mark.parametrize("think_ms", [0, 3])
@pytest.mark.parametrize("at_once", [1, 3, 20])
def test_hits_are_those_of_vllms_scheduler_at_every_size(at_once: int, think_ms: int, scripted: bool) -> None:
    turns = talks(at_once, think_ms=think_ms)
    largest = max(-(-(turn.tokens.prompt_tokens + turn.tokens.answer_tokens) // BLOCK) for turn in turns)
    options: dict[str, Any] = {"scripted": scripted, "block_size": BLOCK, "ranks": 1}
    unbounded = replay_conversations(turns, turn_by_turn(turns, at_once), **options, num_blocks=None)
    assert unbounded is not None
    curve = unbounded.capacity_curve()
    found = []
    for num_blocks in (largest, largest + 7, 2 * largest, 4 * largest, 4000):
        expected = hits_of_the_scheduler(turns, at_once, num_blocks, scripted)
        replay = replay_conversations(turns, turn_by_turn(turns, at_once), **options, num_blocks=num_blocks)
        assert replay is not None
        assert replay.totals[0].hits == expected
        # A last block that is computed again lies there twice: kvcache/stack_distances says what that costs the curve.
        assert abs(curve.hit_tokens(num_blocks) - expected) <= BLOCK
        found.append(expected)
    assert found == sorted(found) and found[-1] == unbounded.totals[0].hits
    assert found[0] < found[-1] or at_once == 1


def order_of(counts: Sequence[int], pauses: Sequence[int], at_once: int) -> list[tuple[int, int]]:
    """(conversation, turn) in the order of sending: of each conversation its turns, and the pause before each."""
    turns: list[tuple[TurnLinks, TurnTokens]] = []
    for count, pause in zip(counts, pauses, strict=True):
        for turn in range(count):
            before = len(turns) - 1 if turn else None
            turns.append((TurnLinks(0, before, None, pause if turn else 0), TurnTokens("group-0", 0, 0, 1 + turn, 1)))
    rows = replayed_turns(turns)
    return [(rows[row].conversation, rows[row].tokens.prompt_tokens - 1) for row in turn_by_turn(rows, at_once)]


def test_a_conversation_that_is_over_gives_its_place_to_the_next() -> None:
    order = order_of((2, 3, 1, 1), (0, 0, 0, 0), 2)
    assert order == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (1, 2), (3, 0)]
    assert order_of((2, 3), (0, 0), 1) == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]


def test_others_go_ahead_of_a_conversation_that_thinks() -> None:
    assert order_of((3, 2, 1), (5, 7, 0), 1) == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (0, 2)]


def test_a_run_is_told_what_a_cache_of_its_server_s_size_hits() -> None:
    turns = talks(5)
    columns = RequestColumns(
        group_ids=[turn.tokens.group for turn in turns],
        dp_ranks=[0] * len(turns),
        lane_sequences=[0] * len(turns),
        input_tokens=[turn.tokens.prompt_tokens for turn in turns],
        hit_tokens=[0] * len(turns),
        max_tokens=[turn.tokens.answer_tokens for turn in turns],
        links=[turn.links for turn in turns],
    )
    options: dict[str, Any] = {"system_prompt_tokens": SYSTEM, "at_once": 4, "block_size": BLOCK, "dp_size": 1}
    prediction = predict_conversation_hits(columns, scripted=False, **options, capacity_tokens=41 * BLOCK)
    assert prediction is not None and prediction.evicted_blocks
    assert prediction.hit_tokens == hits_of_the_scheduler(turns, 4, 40, scripted=False)
    order = list(turn_by_turn(turns, 14))
    as_sent = predict_conversation_hits(columns, scripted=False, **options, capacity_tokens=41 * BLOCK, order=order)
    assert as_sent is not None
    assert as_sent.hit_tokens == hits_of_the_scheduler(turns, 14, 40, scripted=False) != prediction.hit_tokens
    for tokens in (10 * BLOCK, 4000 * BLOCK):  # a turn does not fit; nothing is evicted
        assert predict_conversation_hits(columns, scripted=False, **options, capacity_tokens=tokens) is None
