"""Who continues whom in conversations, and which earlier request of its rank knows the most of a request.

Prompts of one conversation form a tree: each continues the history of another, and branches continue one history
several times. What a rank knows of a prompt is the longest beginning that it shares with what was computed there:

- where the turn itself whose history it continues was computed on that rank, all but the answer's last token, after
  which nothing was computed (where another answer stands in the history, its prompt);
- where another branch of that history was, the whole history, which stood in that branch's prompt;
- else what is known of the turn before, and in the end the system prompt.

All of this follows from numbers of turns and ranks, not from lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from ais_bench_prefix_cache.scenario.model import BranchesConfig

NONE = -1
"""No row."""


class Known(IntEnum):
    """What of a prompt is known: nothing; its system prompt; of another row what it computed, its history, its prompt.

    A row's history is its prompt and the answer that stands in its continuations.
    """

    NOTHING = 0
    SYSTEM_PROMPT = 1
    COMPUTED = 2
    HISTORY = 3
    PROMPT = 4


@dataclass
class ConversationRows:
    """The requests of all conversations as columns, one conversation after another, in each turn by turn.

    ``branch`` is 0 for the conversation itself. ``continues`` is the row whose history a row continues, ``repeats`` the
    row whose prompt it sends once more; else :data:`NONE`. ``fork`` is, of each conversation, the row whose history is
    continued several times.
    """

    conversation: list[int] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    branch: list[int] = field(default_factory=list)
    continues: list[int] = field(default_factory=list)
    repeats: list[int] = field(default_factory=list)
    fork: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.turn)


def conversation_rows(
    turns: Sequence[int], branches: BranchesConfig | None, branch_turns: Iterator[int]
) -> ConversationRows:
    """The rows of conversations of so many ``turns``; every branch takes its number from ``branch_turns``."""
    rows = ConversationRows()
    for conversation, count in enumerate(turns):
        # Of each thread its branch, its first turn, and the turn where it is over.
        threads = [(0, 0, count)]
        after = 0 if branches is None else branches.after_turn
        repeated = branches is not None and branches.message == "same"
        if branches is not None and has_branches(count, branches):
            threads += [
                (number + 1, after, after + (1 if repeated else next(branch_turns))) for number in range(branches.count)
            ]
        last: dict[int, int] = {}
        rows.fork.append(NONE)
        for turn in range(max(end for _, _, end in threads)):
            before = last.get(0, NONE)
            if len(threads) > 1 and turn == after:
                rows.fork[-1] = before
            for branch, first, end in threads:
                if not first <= turn < end:
                    continue
                begins = turn == first
                rows.conversation.append(conversation)
                rows.turn.append(turn)
                rows.branch.append(branch)
                rows.continues.append(before if begins else last[branch])
                rows.repeats.append(last[0] if begins and branch and repeated else NONE)
                last[branch] = len(rows) - 1
    return rows


def has_branches(turns: int, branches: BranchesConfig) -> bool:
    """Whether a conversation of so many turns is long enough: a message can be repeated only where there is one."""
    return turns >= branches.after_turn + (branches.message == "same")


@dataclass(frozen=True)
class Sources:
    """Of each row what is known of it (:class:`Known`), of which row, and on whose first token it relies.

    ``waits_for`` is that of a row which it does not continue; the order of others' turns is given anyway.
    """

    known: list[int]
    of_row: list[int]
    waits_for: list[int]


def known_sources(
    rows: ConversationRows, group: Sequence[int], rank: Sequence[int], order: Sequence[int] | None = None
) -> Sources:
    """What is known of each row where they are computed in ``order``, on the ``rank`` of each.

    ``group`` is each conversation's. Where a row waits for the first token of its ``waits_for`` and for the end of the
    turn that it continues, it finds the same whatever is sent meanwhile: who shares more with it waits for it.
    """
    count = len(rows)
    found = Sources([Known.NOTHING] * count, [NONE] * count, [NONE] * count)
    openers: dict[tuple[int, int], int] = {}
    below_fork: dict[tuple[int, int], int] = {}
    sent: dict[tuple[int, int], int] = {}
    has_repeats = set(rows.repeats)
    for row in range(count) if order is None else order:
        here = rank[row]
        fork = rows.fork[rows.conversation[row]]
        known, of_row, first = Known.NOTHING, NONE, NONE
        repeats = rows.repeats[row]
        if repeats != NONE and (repeats, here) in sent:
            known, of_row, first = Known.PROMPT, repeats, sent[repeats, here]
        before = rows.continues[row]
        while known is Known.NOTHING and before != NONE:
            if before == fork and (before, here) in below_fork:
                known, of_row, first = Known.HISTORY, before, below_fork[before, here]
            elif rank[before] == here:
                known, of_row = Known.COMPUTED, before
            elif (before, here) in sent:
                known, of_row, first = Known.PROMPT, before, sent[before, here]
            before = rows.continues[before]
        lane = (group[rows.conversation[row]], here)
        if known is Known.NOTHING and lane in openers:
            known, first = Known.SYSTEM_PROMPT, openers[lane]
        found.known[row], found.of_row[row], found.waits_for[row] = known, of_row, first
        openers.setdefault(lane, row)
        sent_as = row if repeats == NONE else repeats
        if sent_as in has_repeats:
            sent.setdefault((sent_as, here), row)
        if fork != NONE and rows.turn[row] > rows.turn[fork]:
            below_fork.setdefault((fork, here), row)
    return found
