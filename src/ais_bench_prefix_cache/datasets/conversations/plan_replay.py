"""Planned conversations replayed through caches that forget, without their tokens.

No tokens are needed: a block of a system prompt is the same for all that have it, every other block belongs to one
conversation. Where a script stands in the history, what the server itself has answered is like no prompt.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ais_bench_prefix_cache.kvcache.block_hash import BlockHash
from ais_bench_prefix_cache.kvcache.trace_replay import TraceReplay, TraceRequest

MOST_BLOCKS = 5_000_000
"""Conversations of more blocks are not replayed: it would take longer than it tells."""


@dataclass(frozen=True)
class ReplayedTurn:
    """What a cache sees of one turn. All but ``conversation``, ``turn``, ``group`` and ``rank`` in tokens."""

    conversation: int
    turn: int
    group: str
    rank: int
    system_prompt_tokens: int
    prompt_tokens: int
    answer_tokens: int


def replay_conversations(
    turns: Sequence[ReplayedTurn], *, scripted: bool, at_once: int, block_size: int, ranks: int, num_blocks: int | None
) -> TraceReplay | None:
    """The replay of all ``turns``, which stand conversation after conversation; ``at_once`` of them are under way.

    Each rank has ``num_blocks`` usable blocks; with None nothing is forgotten, and the replay answers for every number.
    None where there are too many blocks.

    Raises:
        CalculationError: a turn can never fit.
    """
    if sum(turn.prompt_tokens for turn in turns) // block_size > MOST_BLOCKS:
        return None
    replay = TraceReplay(block_size=block_size, ranks=ranks, num_blocks=num_blocks)
    for turn in turn_by_turn(turns, at_once):
        named = turn.prompt_tokens if scripted else turn.prompt_tokens + turn.answer_tokens - 1
        names = [_block_name(turn, index, block_size) for index in range(named // block_size)]
        replay.send(TraceRequest(names, turn.prompt_tokens, turn.answer_tokens), rank=turn.rank)
    return replay


def turn_by_turn(turns: Iterable[ReplayedTurn], at_once: int) -> Iterator[ReplayedTurn]:
    """Each of ``at_once`` conversations sends a turn when its turn comes; one that is over gives its place to the next.

    This is how they are sent where all turns take equally long.
    """
    conversations: deque[deque[ReplayedTurn]] = deque()
    for turn in turns:
        if not turn.turn:
            conversations.append(deque())
        conversations[-1].append(turn)
    under_way: deque[deque[ReplayedTurn]] = deque()
    while conversations or under_way:
        while conversations and len(under_way) < at_once:
            under_way.append(conversations.popleft())
        conversation = under_way.popleft()
        yield conversation.popleft()
        if conversation:
            under_way.append(conversation)


def _block_name(turn: ReplayedTurn, index: int, block_size: int) -> BlockHash:
    shared = (index + 1) * block_size <= turn.system_prompt_tokens
    owner = turn.group if shared else str(turn.conversation)
    return BlockHash(hashlib.blake2b(f"{index} {owner}".encode(), digest_size=16).digest())
