"""Conversations in the forms that other benchmarks read: one object a conversation, made of its turns' texts.

Those benchmarks put the histories together themselves, from the answers of the server that they measure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ais_bench_prefix_cache.datasets.format.documents import is_count
from ais_bench_prefix_cache.datasets.format.rows import ANSWER
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.findings import shown
from ais_bench_prefix_cache.foundation.row_files import BadRow


@dataclass(frozen=True)
class Turn:
    """A row of ``full.jsonl``, as far as others can use it. ``answer`` is empty where there is no script."""

    conversation: int
    system_prompt: str
    question: str
    answer: str
    max_tokens: int
    think_ms: int


Conversation = Sequence[Turn]


def _aiperf(conversation: Conversation) -> dict[str, Any]:
    """A turn of the role ``system`` goes before all of them. ``ignore_eos`` makes answers as long as planned."""
    system = conversation[0].system_prompt
    turns: list[dict[str, Any]] = [{"role": "system", "text": system}] if system else []
    for turn in conversation:
        pause = {"delay": turn.think_ms} if turn.think_ms else {}
        extra = {"ignore_eos": True}
        turns.append({"text": turn.question, "output_length": turn.max_tokens, **pause, "extra": extra})
    return {"session_id": _name(conversation), "turns": turns}


def _vllm(conversation: Conversation) -> dict[str, Any]:
    """Messages of ``user`` and ``assistant`` in turn, where the system prompt begins the first message.

    The texts of ``assistant`` say only how many tokens an answer has.
    """
    messages = []
    for turn in conversation:
        text = f"{turn.system_prompt} {turn.question}" if turn.system_prompt else turn.question
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": turn.answer}]
    return {"id": _name(conversation), "messages": messages}


def _name(conversation: Conversation) -> str:
    return f"conversation-{conversation[0].conversation:08d}"


CONVERSATION_FORMS: dict[str, Callable[[Conversation], dict[str, Any]]] = {
    "aiperf-multi-turn": _aiperf,
    "vllm-multi-turn": _vllm,
}
"""What one conversation is in each format."""
SCRIPTED_FORMS = frozenset({"vllm-multi-turn"})
"""Those that tell the length of an answer by a text of that length."""
ARRAY_FORMS = frozenset({"vllm-multi-turn"})
"""Those whose file is one JSON array."""


def turn_of(row: Mapping[str, Any], form: str) -> tuple[int, int | None, Turn]:
    """A row's own number, that of the row which it continues, and its turn. Raises BadRow."""
    for key, right, allowed in (
        ("sequence_index", is_count, "a whole number from 0 up"),
        ("conversation", is_count, "a whole number from 0 up"),
        ("continues", lambda value: value is None or is_count(value), "a whole number from 0 up, or null"),
        ("system_prompt", _is_text, "a text"),
        ("question", lambda value: bool(value) and _is_text(value), "a text that is not empty"),
        ("answer", _is_text, "a text"),
        ("max_tokens", lambda value: is_count(value) and value > 0, "a whole number from 1 up"),
        ("think_ms", is_count, "a whole number from 0 up"),
    ):
        if key not in row:
            hint = "This format is made from the full.jsonl of a data set of conversations."
            raise BadRow(Code.MISSING_KEY, f"the field {key!r} is missing", hint=hint)
        if not right(row[key]):
            raise BadRow(Code.WRONG_TYPE, f"{key} says {shown(row[key])}", allowed)
    scripted = row["answer"] not in ("", ANSWER)
    if form in SCRIPTED_FORMS and not scripted:
        raise BadRow(
            Code.NOT_ALLOWED,
            "the row has no answer, and this format tells how long an answer is by a text",
            hint='Prepare with conversation.answers "scripted".',
        )
    answer = row["answer"] if scripted else ""
    turn = Turn(row["conversation"], row["system_prompt"], row["question"], answer, row["max_tokens"], row["think_ms"])
    return row["sequence_index"], row["continues"], turn


def whole_conversations(rows: Iterable[tuple[int, tuple[int, int | None, Turn]]]) -> Iterator[Conversation]:
    """The turns of each conversation together; ``rows`` come with the number of their line.

    Raises BadRow where a turn does not continue the one before it: no history of these formats has branches.
    """
    conversation: list[Turn] = []
    before: int | None = None
    for number, (index, continues, turn) in rows:
        if continues is None:
            if conversation:
                yield conversation
            conversation = []
        elif continues != before or turn.conversation != conversation[-1].conversation:
            raise BadRow(
                Code.NOT_ALLOWED,
                f"line {number} continues another turn than the one before it",
                hint="Conversations with branches have no place in this format.",
            )
        conversation.append(turn)
        before = index
    if conversation:
        yield conversation


def _is_text(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
