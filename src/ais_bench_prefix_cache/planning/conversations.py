"""The plan of conversations: whose turn says how much when, on which rank, and what of it a cache then knows.

The law, with N the tokens of a prompt, K those of its longest beginning that its rank knows, and B the block:
``hits = floor(min(K, N - 1) / B) * B``. K follows from numbers alone, although nobody knows what will be answered:

- a first turn knows its system prompt, once another conversation of the same rank has had it computed;
- a later turn knows everything that was computed before it. Where the server's own answer stands in the history, that
  is the turn before and its answer, but for the answer's last token: nothing was ever computed after it. Where another
  answer stands there, it is the prompt of the turn before.

Seen to the token on vLLM and, with its page for a block, on SGLang.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import TypeVar

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ScenarioError
from ais_bench_prefix_cache.foundation.random_streams import RandomStream
from ais_bench_prefix_cache.foundation.token_share import TokenShare
from ais_bench_prefix_cache.planning.lengths import sample_lengths
from ais_bench_prefix_cache.planning.ordering import assigned_groups, occurrence_in_group
from ais_bench_prefix_cache.scenario.groups import group_counts
from ais_bench_prefix_cache.scenario.model import LengthSpec, Scenario

MOST_TURNS = 1_000_000
"""Requests of one data set."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class PlannedTurn:
    """One request. ``continues`` is the number of the request whose history it continues; None for a first turn.

    ``new_tokens`` are those that it adds to its history: its message, for a first turn also the system prompt.
    ``known_tokens`` is K, ``turn`` counts from 0, ``think_ms`` is the pause after the answer before it.
    """

    conversation: int
    turn: int
    group: int
    dp_rank: int
    continues: int | None
    message_tokens: int
    new_tokens: int
    input_tokens: int
    answer_tokens: int
    known_tokens: int
    hit_tokens: int
    think_ms: int


@dataclass(frozen=True)
class ConversationPlan:
    """All requests, conversation after conversation, and the tokens of each system prompt."""

    turns: tuple[PlannedTurn, ...]
    system_prompt_tokens: tuple[int, ...]
    conversations: int
    block_size: int
    dp_size: int
    scripted: bool

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


def hit_tokens(known_tokens: int, prompt_tokens: int, block_size: int) -> int:
    """The law: whole blocks of what is known, never the prompt's last token, whose logits are needed."""
    return min(known_tokens, prompt_tokens - 1) // block_size * block_size


def plan_conversations(scenario: Scenario) -> ConversationPlan:
    """The plan of a Scenario that has a ``conversation`` section. Conversations stay on their rank, in turn by group.

    Raises:
        ScenarioError: more turns are drawn than a data set can have.
    """
    config, seed, dp_size = scenario.conversation, scenario.run.random_seed, scenario.service.dp_size
    assert config is not None, "the Scenario was loaded with the rules of conversations"
    prompts = config.system_prompts

    def refuse_more_than_fits(turns: int) -> None:
        if turns > MOST_TURNS:
            raise ScenarioError.of(
                Code.OUT_OF_RANGE,
                f"{scenario.path.name}: conversation",
                f"the conversations have {turns} turns in all",
                allowed=f"at most {MOST_TURNS}",
            )

    def drawn(name: str, spec: LengthSpec, count: int) -> Iterator[int]:
        return iter(sample_lengths(spec, count, RandomStream(seed, "conversations", name)).tolist())

    refuse_more_than_fits(config.count)
    group = assigned_groups(group_counts(max(prompts.count, 1), prompts.assignment, config.count), seed)
    dp_rank = (occurrence_in_group(group) + group) % dp_size
    turns = list(drawn("turns", config.turns, config.count))
    refuse_more_than_fits(sum(turns))
    system = tuple(drawn("system prompts", prompts.length, prompts.count)) if prompts.count else (0,)
    first_messages = drawn("first messages", config.first_message_length, config.count)
    messages = drawn("messages", config.message_length, sum(turns) - config.count)
    answers = drawn("answers", config.answer_length, sum(turns))
    pauses: Iterator[int] = repeat(0)
    if config.think_time_ms is not None:
        pauses = drawn("think times", config.think_time_ms, sum(turns) - config.count)
    planned: list[PlannedTurn] = []
    computed: set[tuple[int, int]] = set()
    for conversation, count in enumerate(turns):
        lane = (int(group[conversation]), int(dp_rank[conversation]))
        before: PlannedTurn | None = None
        for turn in range(count):
            if before is None:
                message = next(first_messages)
                new = system[lane[0]] + message
                history, known = 0, system[lane[0]] if lane in computed else 0
            else:
                message = new = next(messages)
                history = before.input_tokens + before.answer_tokens
                known = before.input_tokens if config.answers == "scripted" else history - 1
            pause = 0 if before is None else next(pauses)
            tokens = history + new
            continues = None if before is None else len(planned) - 1
            hits = hit_tokens(known, tokens, scenario.block_size)
            before = PlannedTurn(
                conversation, turn, *lane, continues, message, new, tokens, next(answers), known, hits, pause
            )
            planned.append(before)
        computed.add(lane)
    return ConversationPlan(
        tuple(planned), system, config.count, scenario.block_size, dp_size, config.answers == "scripted"
    )
