"""Length rules of conversations: reading them, and whether those that list lengths list as many as there are."""

from __future__ import annotations

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.strict_json import FieldPath
from ais_bench_prefix_cache.scenario.field_rules import CheckedFields
from ais_bench_prefix_cache.scenario.length_rules import check_count, listed_count, read_length_rule
from ais_bench_prefix_cache.scenario.model import CsvLengths, ExplicitLengths, FixedLength, LengthSpec

SECTION: FieldPath = ("conversation",)
PROMPTS: FieldPath = (*SECTION, "system_prompts")
BRANCHES: FieldPath = (*SECTION, "branches")
TOOLS: FieldPath = (*SECTION, "tool_results")
_MOST_LISTED = 1_000_000
"""More than a data set has; planning says so."""


def conversation_lengths(fields: CheckedFields) -> dict[FieldPath, LengthSpec]:
    """The sound length rules of conversations by their places.

    How many messages and answers there are is known where the numbers of turns are not drawn.
    """
    conversations = fields.get(*SECTION, "count")
    rules: dict[FieldPath, LengthSpec] = {}

    def read(path: FieldPath, count: int | None, whose: str) -> LengthSpec | None:
        rule = read_length_rule(fields, path)
        if rule is not None:
            rules[path] = rule
            if count is not None:
                check_count(fields, path, rule, count, whose)
        return rule

    def read_of_turns(path: FieldPath, count: int | None, whose: str) -> LengthSpec | None:
        rule = read(path, count, whose)
        if rule is not None and listed_count(rule) is not None and turns is not None and count is None:
            fields.findings.report(
                path,
                Code.NOT_ALLOWED,
                "lengths are listed although the numbers of turns are drawn, so that nobody knows how many there are",
                allowed="fixed, uniform or truncated_normal; or turns that are fixed, explicit or csv",
            )
        return rule

    turns = read((*SECTION, "turns"), conversations, "conversation.count is")
    read((*SECTION, "first_message_length"), conversations, "conversation.count is")
    # Without system prompts their length says nothing.
    read((*PROMPTS, "length"), fields.get(*PROMPTS, "count") or None, "conversation.system_prompts.count is")
    # Of each thread, a conversation or a branch, its first turn and the one where it ends.
    threads: list[tuple[int, int]] | None = None
    listed = _listed(turns, conversations)
    if listed is not None:
        threads = [(0, count) for count in listed]
    branches = fields.get(*BRANCHES)
    if branches is not None:
        after, own = branches["after_turn"], branches["message"] == "own"
        number = None
        if listed is not None:
            number = branches["count"] * sum(count >= after for count in listed)
        branch_turns = read_of_turns((*BRANCHES, "turns"), number, "the number of branches is")
        if own:
            # What is sent once more has no lengths of its own.
            ends = _listed(branch_turns, number)
            threads = None if threads is None or ends is None else [*threads, *((after, after + end) for end in ends)]
    tools = fields.get(*TOOLS)
    period = 1 if tools is None else tools["per_message"] + 1
    total = messages = results = None
    if threads is not None:
        total = sum(end - first for first, end in threads)
        # Of the turns from `first` on, the users' are multiples of the period; the first turn of all is no later one.
        messages = sum((end - 1) // period - (max(first, 1) - 1) // period for first, end in threads)
        results = total - messages - len(listed or ())
    for path, count, whose in (
        ((*SECTION, "message_length"), messages, "the number of later messages is"),
        ((*SECTION, "think_time_ms"), messages, "the number of later messages is"),
        ((*SECTION, "answer_length"), total, "the number of answers is"),
        ((*TOOLS, "length"), results, "the number of tool results is"),
        ((*TOOLS, "time_ms"), results, "the number of tool results is"),
    ):
        read_of_turns(path, count, whose)
    return rules


def _listed(rule: LengthSpec | None, count: int | None) -> list[int] | None:
    """What a rule gives each of ``count``; None where it is drawn."""
    if isinstance(rule, FixedLength) and count is not None and count <= _MOST_LISTED:
        return [rule.value] * count
    return list(rule.values) if isinstance(rule, (ExplicitLengths, CsvLengths)) else None
