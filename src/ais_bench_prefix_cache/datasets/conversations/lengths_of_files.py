"""How long the conversations of a file are: of texts, counted by a tokenizer, or of a trace of block ids.

What was said is not taken over, only how much: the data set that is made of it has its own texts, whose hits are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.datasets.traces.reading import BATCH_ROWS, TraceRow, read_trace
from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.foundation.findings import shown
from ais_bench_prefix_cache.foundation.regular_files import open_regular
from ais_bench_prefix_cache.foundation.row_files import BadRow, RowFile
from ais_bench_prefix_cache.foundation.row_texts import has_half_character, texts_in
from ais_bench_prefix_cache.kvcache.block_hash import BlockHash

_LISTS = ("conversations", "messages")
_ROLES, _TEXTS = ("from", "role"), ("value", "content")
_ANSWER_ROLES = frozenset({"assistant", "gpt", "chatgpt", "bard", "bing", "model"})
_SYSTEM_ROLES = frozenset({"system", "developer"})

Message = tuple[str, str]
"""Its role, which is ``system``, ``answer`` or ``message``, and its text."""


@dataclass
class ConversationLengths:
    """Tokens of conversations: of each turn its message and its answer.

    ``system_prompt`` is what all of them begin with, 0 for nothing; it is not in their first messages. ``left_out``
    counts what was not taken over, by the reason.
    """

    turns: list[list[tuple[int, int]]] = field(default_factory=list)
    system_prompt: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def section(self) -> dict[str, Any]:
        """The fields of a Scenario's ``conversation`` that say the same."""
        first = [turns[0][0] for turns in self.turns]
        later = [message for turns in self.turns for message, _ in turns[1:]]
        answers = [answer for turns in self.turns for _, answer in turns]
        system = {"count": 1, "length": {"mode": "fixed", "value": self.system_prompt}}
        return {
            "count": len(self.turns),
            "turns": _listed([len(turns) for turns in self.turns]),
            "system_prompts": system if self.system_prompt else {"count": 0},
            "first_message_length": _listed(first),
            **({"message_length": _listed(later)} if later else {}),
            "answer_length": _listed(answers),
        }


def _listed(values: list[int]) -> dict[str, Any]:
    return {"mode": "explicit", "values": values}


def lengths_of_file(
    path: Path, load: Callable[[], PromptTokenizer], *, most: int | None = None, trace_block_size: int | None = None
) -> ConversationLengths:
    """The first ``most`` conversations of a file: rows of ``conversations`` or ``messages``, or of ``hash_ids``.

    ``load`` gives the tokenizer where there are texts.

    Raises:
        ArtifactError: a row cannot be used, or no conversation is left.
    """
    if _has_block_ids(path):
        found = lengths_of_trace(read_trace(path, trace_block_size=trace_block_size), most=most)
    else:
        found = _lengths_of_texts(path, load(), most)
    if not found.turns:
        reasons = "; ".join(f"{number} {reason}" for reason, number in sorted(found.left_out.items()))
        raise ArtifactError.of(
            Code.NO_REQUESTS, str(path), f"holds no conversation{f' ({reasons})' if reasons else ''}"
        )
    return found


def _has_block_ids(path: Path) -> bool:
    """Whether the first row is one of a trace."""
    with open_regular(path, follow_links=True) as stream:
        return next((row for _, row in RowFile(stream, path, ArtifactError).read(lambda row: "hash_ids" in row)), False)


# ---- traces ----------------------------------------------------------------------------------------------------------


@dataclass
class _Session:
    """A conversation as far as it was read: its first prompt's blocks, and what stands in its history by now."""

    first_blocks: Sequence[BlockHash]
    history: int
    turns: list[tuple[int, int]]


def lengths_of_trace(rows: Iterable[TraceRow], *, most: int | None = None) -> ConversationLengths:
    """Conversations put together from requests whose blocks are known by ids.

    A request continues the conversation of which it holds all whole blocks of the last prompt, the longest such, if it
    is longer than that prompt with its answer: the rest is its message. So Mooncake's traces, which name no sessions,
    are read as Qwen-Bailian's. What two conversations share at the beginning is the system prompt, in whole blocks,
    where all share it.
    """
    sessions: list[_Session] = []
    open_at: dict[BlockHash, _Session] = {}
    found, id_tokens = ConversationLengths(), 1
    for row in rows:
        id_tokens = row.id_tokens
        blocks = row.request(row.id_tokens).block_hashes
        session = _continued(open_at, blocks, row.prompt_tokens)
        if session is not None:
            session.turns.append((row.prompt_tokens - session.history, row.output_tokens))
        elif most is not None and len(sessions) >= most:
            found.left_out["requests of other conversations"] += 1
            continue
        else:
            session = _Session(blocks, 0, [(row.prompt_tokens, row.output_tokens)])
            sessions.append(session)
        session.history = row.prompt_tokens + row.output_tokens
        if blocks:
            open_at[blocks[-1]] = session
    shared = _shared_blocks([session.first_blocks for session in sessions]) * id_tokens
    if sessions and shared >= min(session.turns[0][0] for session in sessions):
        shared -= id_tokens
    found.system_prompt = max(shared, 0)
    for session in sessions:
        (message, answer), *later = session.turns
        found.turns.append([(message - found.system_prompt, answer), *later])
    return found


def _continued(open_at: dict[BlockHash, _Session], blocks: Sequence[BlockHash], prompt_tokens: int) -> _Session | None:
    for block in reversed(blocks):
        session = open_at.get(block)
        if session is not None and session.history < prompt_tokens:
            # What else begins with this prompt is a conversation of its own.
            del open_at[block]
            return session
    return None


def _shared_blocks(firsts: Sequence[Sequence[BlockHash]]) -> int:
    """Blocks at the beginning that two or more conversations all have."""
    if len(firsts) < 2:
        return 0
    return next(
        (place for place, blocks in enumerate(zip(*firsts, strict=False)) if len(set(blocks)) > 1),
        min(len(first) for first in firsts),
    )


# ---- texts -----------------------------------------------------------------------------------------------------------


def _lengths_of_texts(path: Path, tokenizer: PromptTokenizer, most: int | None) -> ConversationLengths:
    found = ConversationLengths()
    systems: set[str] = set()
    with open_regular(path, follow_links=True) as stream:
        talks = (talk for _, talk in RowFile(stream, path, ArtifactError).read(_messages))
        while (most is None or len(found.turns) < most) and (batch := list(islice(talks, BATCH_ROWS))):
            encoded = iter(tokenizer.encode_plain_batch([text for talk in batch for _, text in talk]))
            for talk in batch:
                counted = [(role, text, len(next(encoded))) for role, text in talk]
                if most is not None and len(found.turns) >= most:
                    break
                turns = _turns(counted, found.left_out)
                if not turns:
                    found.left_out["conversations without an answered message"] += 1
                    continue
                systems.add("\n".join(text for role, text, _ in counted if role == "system"))
                found.system_prompt = sum(tokens for role, _, tokens in counted if role == "system")
                found.turns.append(turns)
    if len(systems) > 1:
        found.left_out["system prompts, which differ"] = len(systems)
        found.system_prompt = 0
    return found


def _turns(talk: Iterable[tuple[str, str, int]], left_out: Counter[str]) -> list[tuple[int, int]]:
    """Messages that follow each other without an answer are one, and so are answers."""
    turns: list[tuple[int, int]] = []
    message = answer = 0
    for role, _, tokens in talk:
        if role == "message":
            if message and answer:
                turns.append((message, answer))
                message = answer = 0
            message += tokens
        elif role == "answer" and message:
            answer += tokens
        elif role == "answer":
            left_out["answers to nothing"] += 1
    if message and answer:
        turns.append((message, answer))
    elif message:
        left_out["messages without an answer"] += 1
    return turns


def _messages(row: Mapping[str, Any]) -> list[Message]:
    """The messages of a row in the form of ShareGPT, or of chats. Raises BadRow."""
    name = next((name for name in _LISTS if isinstance(row.get(name), list)), None)
    if name is None:
        allowed = f"{' or '.join(_LISTS)}: a list of messages; or hash_ids and input_length"
        raise BadRow(Code.NO_PROMPT, "has no conversation", allowed, f"The row has {', '.join(map(repr, row))}.")
    return [message for each in row[name] for message in _message(name, each)]


def _message(name: str, message: Any) -> Iterator[Message]:
    role, content = (
        next((message[key] for key in keys if key in message), None) if isinstance(message, dict) else None
        for keys in (_ROLES, _TEXTS)
    )
    if isinstance(content, list):
        content = "\n".join(texts_in(content))
    if not isinstance(role, str) or not isinstance(content, str):
        allowed = f"an object with {' or '.join(_ROLES)}, and {' or '.join(_TEXTS)}, which are texts"
        raise BadRow(Code.BAD_PROMPT, f"{name} holds {shown(message)}", allowed)
    if has_half_character(content):
        raise BadRow(Code.BAD_PROMPT, f"{name} holds half of a character (a lone surrogate)")
    if content:
        yield "answer" if role in _ANSWER_ROLES else "system" if role in _SYSTEM_ROLES else "message", content
