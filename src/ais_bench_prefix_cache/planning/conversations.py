"""The plan of conversations: whose turn says how much when, on which rank, and what of it a cache then knows.

The law, with N the tokens of a prompt, K those of its longest beginning that its rank knows, and B the block:
``hits = floor(min(K, N - 1) / B) * B``. K follows from numbers alone, although nobody knows what will be answered
(:mod:`.conversation_tree`). Seen to the token on vLLM and, with its page for a block, on SGLang.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ScenarioError
from ais_bench_prefix_cache.foundation.names import NO_RANK
from ais_bench_prefix_cache.foundation.random_streams import RandomStream
from ais_bench_prefix_cache.foundation.token_share import TokenShare
from ais_bench_prefix_cache.planning.conversation_tree import (
    NONE,
    ConversationRows,
    Sources,
    conversation_rows,
    has_branches,
    known_sources,
)
from ais_bench_prefix_cache.planning.lengths import sample_lengths
from ais_bench_prefix_cache.planning.ordering import assigned_groups, occurrence_in_group
from ais_bench_prefix_cache.planning.plan import Int64Column
from ais_bench_prefix_cache.scenario.groups import group_counts
from ais_bench_prefix_cache.scenario.model import ConversationConfig, ConversationRouting, LengthSpec, Scenario

MOST_TURNS = 1_000_000
"""Requests of one data set."""
MOST_TOKENS = 1_000_000
"""Of a system prompt or message that is made longer to come near a target."""

_MOST_ROWS_TRIED = 20_000_000
"""Rows of all plans together among which the nearest to a target is sought."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class PlannedTurn:
    """One request. ``turn`` counts from 0, ``branch`` is 0 for the conversation itself.

    ``dp_rank`` is :data:`NO_RANK` where the server or a router chooses; ``sticky_rank`` is where it then would stay.
    ``continues`` is the number of the request whose history it continues, ``repeats`` of the one whose prompt it sends
    once more, ``waits_for`` of one whose first token must have come before; None where there is none.
    ``new_tokens`` are those that it adds to its history: its message, for a first turn also the system prompt.
    ``known_tokens`` is K, ``think_ms`` is the pause after the answer before it.
    """

    conversation: int
    turn: int
    branch: int
    group: int
    dp_rank: int
    sticky_rank: int
    continues: int | None
    repeats: int | None
    waits_for: int | None
    message_tokens: int
    new_tokens: int
    input_tokens: int
    answer_tokens: int
    known_tokens: int
    hit_tokens: int
    think_ms: int


@dataclass(frozen=True)
class HitRange:
    """The fewest and the most tokens that hit, whoever routes the requests: ``least`` and ``most``."""

    least: int
    most: int


@dataclass(frozen=True)
class ConversationPlan:
    """All requests, conversation after conversation, and the tokens of each system prompt.

    Where the server or a router chooses the rank, the hits are those of conversations that stay on one, and ``range``
    is what any choice gives. ``target_hit_rate`` is what the lengths were chosen for, if anything. ``forks`` are the
    requests whose history is continued several times.
    """

    turns: tuple[PlannedTurn, ...]
    system_prompt_tokens: tuple[int, ...]
    conversations: int
    block_size: int
    dp_size: int
    scripted: bool
    routing: ConversationRouting
    range: HitRange | None
    target_hit_rate: float | None
    forks: frozenset[int]

    @cached_property
    def total(self) -> TokenShare:
        """All tokens, and those that hit."""
        return TokenShare(sum(each.input_tokens for each in self.turns), sum(each.hit_tokens for each in self.turns))

    def shares(self, key: Callable[[PlannedTurn], Key]) -> dict[Key, tuple[int, TokenShare]]:
        """Requests, and the share of their tokens that hits, for each value of ``key``, in order."""
        found: dict[Key, list[int]] = {}
        for each in self.turns:
            sums = found.setdefault(key(each), [0, 0, 0])
            sums[0] += 1
            sums[1] += each.input_tokens
            sums[2] += each.hit_tokens
        return {value: (found[value][0], TokenShare(*found[value][1:])) for value in sorted(found)}  # type: ignore[type-var]


def hit_tokens(
    known_tokens: npt.NDArray[np.int64], prompt_tokens: npt.NDArray[np.int64], block_size: int
) -> npt.NDArray[np.int64]:
    """The law: whole blocks of what is known, never the prompt's last token, whose logits are needed."""
    hits: npt.NDArray[np.int64] = np.minimum(known_tokens, prompt_tokens - 1) // block_size * block_size
    return hits


@dataclass(frozen=True)
class _Lengths:
    """Drawn tokens: of each system prompt, and of each row's message and answer."""

    system: Int64Column
    message: Int64Column
    answer: Int64Column

    def scaled(self, system: int | None, message: int | None) -> _Lengths:
        """All in proportion, so that the longest system prompt, or message, has so many tokens; None: as drawn."""
        return _Lengths(
            self.system if system is None else self.system * system // self.system.max(),
            self.message if message is None else np.maximum(1, self.message * message // self.message.max()),
            self.answer,
        )


class _Traffic:
    """The rows of a plan, whose tokens follow from lengths and :class:`Sources`."""

    def __init__(self, rows: ConversationRows, group: Int64Column, block_size: int, scripted: bool) -> None:
        self.rows, self._block_size, self._scripted = rows, block_size, scripted
        self.group = group[np.asarray(rows.conversation)]
        self._continues = np.asarray(rows.continues)
        by_turn = np.argsort(rows.turn, kind="stable")
        ends = np.cumsum(np.bincount(rows.turn))
        self._turns = np.split(by_turn, ends[:-1])

    def input_tokens(self, lengths: _Lengths) -> Int64Column:
        first, *later = self._turns
        tokens = lengths.message.copy()
        tokens[first] += lengths.system[self.group[first]]
        for turn in later:
            before = self._continues[turn]
            tokens[turn] += tokens[before] + lengths.answer[before]
        return tokens

    def known_tokens(self, lengths: _Lengths, tokens: Int64Column, sources: Sources) -> Int64Column:
        known, of_row = np.asarray(sources.known), np.asarray(sources.of_row)
        prompt, answer = tokens[of_row], lengths.answer[of_row]
        choices = [
            np.zeros_like(prompt),
            lengths.system[self.group],
            prompt if self._scripted else prompt + answer - 1,
            prompt + answer,
            prompt,
        ]
        return np.choose(known, choices)

    def share(self, lengths: _Lengths, sources: Sources) -> TokenShare:
        """All tokens, and those that hit."""
        tokens = self.input_tokens(lengths)
        hits = hit_tokens(self.known_tokens(lengths, tokens, sources), tokens, self._block_size)
        return TokenShare(int(tokens.sum()), int(hits.sum()))


def plan_conversations(scenario: Scenario) -> ConversationPlan:
    """The plan of a Scenario that has a ``conversation`` section.

    ``sticky`` conversations stay on their rank, in turn by group; with ``round_robin`` row k goes to rank k mod
    ``dp_size``; with ``free`` nobody knows.

    Raises:
        ScenarioError: more turns are drawn than a data set can have.
    """
    config, seed, dp_size = scenario.conversation, scenario.run.random_seed, scenario.service.dp_size
    assert config is not None, "the Scenario was loaded with the rules of conversations"
    rows = _drawn_rows(scenario, config)
    count, prompts = len(rows), config.system_prompts
    group = assigned_groups(group_counts(max(prompts.count, 1), prompts.assignment, config.count), seed)
    sticky = ((occurrence_in_group(group) + group) % dp_size)[rows.conversation].tolist()
    rank = _one_after_another(rows, dp_size) if config.routing == "round_robin" else sticky
    groups = group.tolist()
    sources = known_sources(rows, groups, rank)
    traffic = _Traffic(rows, group.astype(np.int64), scenario.block_size, config.answers == "scripted")
    drawn, pauses = _drawn_lengths(rows, config, seed)
    lengths = drawn
    if config.target_hit_rate is not None:
        lengths = _nearest(config.target_hit_rate, traffic, drawn, sources, scenario.block_size)
    tokens = traffic.input_tokens(lengths)
    known = traffic.known_tokens(lengths, tokens, sources)
    hits = hit_tokens(known, tokens, scenario.block_size)
    bounds, waits_for = None, sources.waits_for
    if config.routing == "free":
        together = known_sources(rows, groups, [0] * count)
        bounds, waits_for = _range(traffic, lengths, groups, dp_size, together), together.waits_for
    new = np.where(np.asarray(rows.turn) == 0, lengths.system[traffic.group], 0) + lengths.message
    columns = (
        rows.conversation, rows.turn, rows.branch, traffic.group.tolist(),
        [NO_RANK] * count if config.routing == "free" else rank, sticky,
        _or_none(rows.continues), _or_none(rows.repeats), _or_none(np.where(known > 0, waits_for, NONE).tolist()),
        *(each.tolist() for each in (lengths.message, new, tokens, lengths.answer, known, hits)), pauses,
    )  # fmt: skip
    return ConversationPlan(
        tuple(PlannedTurn(*values) for values in zip(*columns, strict=True)),
        tuple(lengths.system.tolist()),
        config.count,
        scenario.block_size,
        dp_size,
        config.answers == "scripted",
        config.routing,
        bounds,
        config.target_hit_rate,
        frozenset(rows.fork) - {NONE},
    )


def _one_after_another(rows: ConversationRows, dp_size: int) -> list[int]:
    """The rank of each row. What is sent once more goes where it went: nobody knows whether the answers are alike."""
    rank: list[int] = []
    for row, repeats in enumerate(rows.repeats):
        rank.append(row % dp_size if repeats == NONE else rank[repeats])
    return rank


def _or_none(column: Sequence[int]) -> list[int | None]:
    return [None if row == NONE else row for row in column]


def _drawn_rows(scenario: Scenario, config: ConversationConfig) -> ConversationRows:
    seed, branches = scenario.run.random_seed, config.branches

    def refuse_more_than_fits(turns: int) -> None:
        if turns > MOST_TURNS:
            raise ScenarioError.of(
                Code.OUT_OF_RANGE,
                f"{scenario.path.name}: conversation",
                f"the conversations have {turns} turns in all",
                allowed=f"at most {MOST_TURNS}",
            )

    refuse_more_than_fits(config.count)
    turns = _sampled("turns", config.turns, config.count, seed).tolist()
    refuse_more_than_fits(sum(turns))
    branch_turns: list[int] = []
    if branches is not None:
        number = branches.count * sum(has_branches(each, branches) for each in turns)
        refuse_more_than_fits(sum(turns) + number)
        if branches.message == "own":
            branch_turns = _sampled("branch turns", branches.turns, number, seed).tolist()
        refuse_more_than_fits(sum(turns) + (sum(branch_turns) or number))
    return conversation_rows(turns, branches, iter(branch_turns))


def _sampled(name: str, spec: LengthSpec, count: int, seed: int) -> Int64Column:
    return sample_lengths(spec, count, RandomStream(seed, "conversations", name))


def _drawn_lengths(rows: ConversationRows, config: ConversationConfig, seed: int) -> tuple[_Lengths, list[int]]:
    """The lengths of all rows, and the pauses before them. What is sent once more is as it was."""
    count, prompts, tools = len(rows), config.system_prompts, config.tool_results
    turn, repeats = np.asarray(rows.turn), np.asarray(rows.repeats)
    own = repeats == NONE
    from_tools = own & (turn > 0) & (turn % (1 if tools is None else tools.per_message + 1) != 0)
    from_users = own & (turn > 0) & ~from_tools
    message, answer, pause = (np.zeros(count, dtype=np.int64) for _ in range(3))

    def draw(column: Int64Column, which: npt.NDArray[np.bool_], name: str, spec: LengthSpec | None) -> None:
        if spec is not None:
            column[which] = _sampled(name, spec, int(which.sum()), seed)

    draw(message, turn == 0, "first messages", config.first_message_length)
    draw(message, from_users, "messages", config.message_length)
    draw(answer, own, "answers", config.answer_length)
    draw(pause, from_users, "think times", config.think_time_ms)
    if tools is not None:
        draw(message, from_tools, "tool results", tools.length)
        draw(pause, from_tools, "tool times", tools.time_ms)
    for column in (message, answer, pause):
        column[~own] = column[repeats[~own]]
    system = _sampled("system prompts", prompts.length, prompts.count, seed) if prompts.count else np.zeros(1, np.int64)
    return _Lengths(system, message, answer), pause.tolist()


def _nearest(target: float, traffic: _Traffic, drawn: _Lengths, sources: Sources, block_size: int) -> _Lengths:
    """Lengths in the drawn proportions whose hit rate comes nearest to the target.

    System prompts are made longer or shorter. Without any, and where the rate is too high even without them, messages.
    """

    def scaled(system: int | None, message: int | None) -> tuple[float, int, _Lengths]:
        lengths = drawn.scaled(system, message)
        return abs(traffic.share(lengths, sources).rate - target), system or message or 0, lengths

    reach = 4 * block_size
    # Odd, so that a step is never a whole block.
    step = 2 * reach * len(traffic.rows) // _MOST_ROWS_TRIED | 1

    def around(size: int, least: int) -> range:
        """Sizes within some blocks: within one, rates fall."""
        return range(max(least, size - reach), min(MOST_TOKENS, size + reach) + 1, step)

    has_system_prompts = bool(drawn.system.any())
    if has_system_prompts and traffic.share(drawn.scaled(0, None), sources).rate <= target:
        low, high = 0, MOST_TOKENS
        while low < high:
            middle = (low + high) // 2
            if traffic.share(drawn.scaled(middle, None), sources).rate < target:
                low = middle + 1
            else:
                high = middle
        return min((scaled(size, None) for size in around(low, 0)), key=itemgetter(0, 1))[2]
    # Longer messages may do either: they make answers, which are hit, a smaller share, and fill their blocks better.
    system = 0 if has_system_prompts else None
    sizes = {int(1.25**power) for power in range(63)}
    _, best, _ = min((scaled(system, size) for size in sizes), key=itemgetter(0, 1))
    return min((scaled(system, size) for size in around(best, 1)), key=itemgetter(0, 1))[2]


def _range(traffic: _Traffic, lengths: _Lengths, groups: Sequence[int], dp_size: int, together: Sources) -> HitRange:
    """What the best and the worst routing hit.

    Nothing is better than all on one rank, which is ``together``. Nothing is worse than one rank after the other along
    the branches: whatever is shared is then shared by requests that follow each other, and those are on as many ranks
    as there can be. A system prompt counts as computed once on each rank.
    """
    rows = traffic.rows
    order = sorted(
        range(len(rows)),
        key=lambda row: (groups[rows.conversation[row]], rows.conversation[row], rows.branch[row], rows.turn[row]),
    )
    rank = [0] * len(rows)
    for place, row in enumerate(order):
        rank[row] = place % dp_size
    apart = known_sources(rows, groups, rank, order)
    return HitRange(traffic.share(lengths, apart).shared, traffic.share(lengths, together).shared)
