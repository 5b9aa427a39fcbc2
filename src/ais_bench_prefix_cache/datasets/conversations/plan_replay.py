"""Planned conversations replayed through caches that forget, without their tokens.

No tokens are needed: a block of a system prompt is the same for all that have it, every other block belongs to one
conversation, or to one branch of it. Where a script stands in the history, what the server itself has answered is like
no prompt.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ais_bench_prefix_cache.kvcache.block_hash import BlockHash
from ais_bench_prefix_cache.kvcache.trace_replay import TraceReplay, TraceRequest

MOST_BLOCKS = 5_000_000
"""Conversations of more blocks are not replayed: it would take longer than it tells."""


class TurnLinks(NamedTuple):
    """How a turn hangs together with others: the columns of those names of ``full.jsonl``."""

    branch: int = 0
    continues: int | None = None
    repeats: int | None = None
    think_ms: int = 0


class TurnTokens(NamedTuple):
    """Where a turn goes, and its tokens."""

    group: str
    rank: int
    system_prompt_tokens: int
    prompt_tokens: int
    answer_tokens: int


@dataclass(frozen=True)
class ReplayedTurn:
    """What a cache sees of one turn. ``shared_tokens`` at its beginning are its conversation's, not its branch's."""

    conversation: int
    links: TurnLinks
    tokens: TurnTokens
    shared_tokens: int


def replayed_turns(turns: Iterable[tuple[TurnLinks, TurnTokens]]) -> list[ReplayedTurn]:
    """The turns of a data set, in its order."""
    found: list[ReplayedTurn] = []
    conversation = -1
    for links, tokens in turns:
        conversation += links.continues is None
        shared = tokens.prompt_tokens + tokens.answer_tokens
        if links.repeats is not None:
            shared = tokens.prompt_tokens
        elif links.branch and links.continues is not None:
            before = found[links.continues]
            begins = before.links.branch != links.branch
            shared = before.tokens.prompt_tokens + before.tokens.answer_tokens if begins else before.shared_tokens
        found.append(ReplayedTurn(conversation, links, tokens, shared))
    return found


def replay_conversations(
    turns: Sequence[ReplayedTurn],
    order: Iterable[int],
    *,
    scripted: bool,
    block_size: int,
    ranks: int,
    num_blocks: int | None,
) -> TraceReplay | None:
    """The replay of all ``turns`` in an ``order`` of their numbers.

    Each rank has ``num_blocks`` usable blocks; with None nothing is forgotten, and the replay answers for every number.
    None where there are too many blocks.

    Raises:
        CalculationError: a turn can never fit.
    """
    if sum(turn.tokens.prompt_tokens for turn in turns) // block_size > MOST_BLOCKS:
        return None
    replay = TraceReplay(block_size=block_size, ranks=ranks, num_blocks=num_blocks)
    for row in order:
        turn = turns[row]
        prompt, answer = turn.tokens.prompt_tokens, turn.tokens.answer_tokens
        named = prompt if scripted else prompt + answer - 1
        names = [_block_name(turn, index, block_size) for index in range(named // block_size)]
        replay.send(TraceRequest(names, prompt, answer), rank=turn.tokens.rank)
    return replay


def turn_by_turn(turns: Sequence[ReplayedTurn], at_once: int) -> Iterator[int]:
    """The order in which they are sent where all turns take equally long, and no time beside the pauses.

    ``at_once`` are under way; the one that was sent first is answered first, and of those that may be sent the first of
    the data set is.
    """
    followers: dict[int, list[int]] = defaultdict(list)
    for row, turn in enumerate(turns):
        if turn.links.continues is not None:
            followers[turn.links.continues].append(row)
    ready = [row for row, turn in enumerate(turns) if turn.links.continues is None]
    thinking: list[tuple[int, int]] = []
    under_way: deque[int] = deque()
    now = 0
    while ready or thinking or under_way:
        while ready and len(under_way) < at_once:
            under_way.append(heapq.heappop(ready))
            yield under_way[-1]
        if under_way:
            for row in followers[under_way.popleft()]:
                heapq.heappush(thinking, (now + turns[row].links.think_ms, row))
        else:
            now = thinking[0][0]
        while thinking and thinking[0][0] <= now:
            heapq.heappush(ready, heapq.heappop(thinking)[1])


def _block_name(turn: ReplayedTurn, index: int, block_size: int) -> BlockHash:
    end = (index + 1) * block_size
    owner = str(turn.conversation) if end <= turn.shared_tokens else f"{turn.conversation} {turn.links.branch}"
    if end <= turn.tokens.system_prompt_tokens:
        owner = turn.tokens.group
    return BlockHash(hashlib.blake2b(f"{index} {owner}".encode(), digest_size=16).digest())
