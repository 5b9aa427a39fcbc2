"""Warm-up prompts for the shorter parts of canonical prefixes, which hybrid models do not keep by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import GenerationError
from ais_bench_prefix_cache.service.warming import WarmupEntry

_END_CHARACTERS = 64


@dataclass(frozen=True)
class SharedLength:
    """A number of tokens that some requests of a group share, and the prompt of one of them."""

    group_id: str
    shared_prefix_tokens: int
    prompt: str


def shared_lengths(rows: Iterable[Mapping[str, Any]]) -> list[SharedLength]:
    """Every distinct (group, shared length) of the formal requests above 0, longest first within a group."""
    found: dict[tuple[str, int], SharedLength] = {}
    for row in rows:
        key = (row["group_id"], row["shared_prefix_tokens"])
        if key[1] and key not in found:
            found[key] = SharedLength(*key, row["question"])
    return sorted(found.values(), key=lambda each: (each.group_id, -each.shared_prefix_tokens))


def sharers(
    lengths: Sequence[SharedLength], tokenizer: PromptTokenizer, dp_size: int, unique_text: Callable[[int], str]
) -> list[tuple[WarmupEntry, WarmupEntry]]:
    """For each length and rank two prompts that share exactly that much of the prefix and nothing else.

    ``unique_text`` gives a text of that many characters that was never used. Raises GenerationError where a prefix
    cannot be cut at its last token.
    """
    pairs = []
    for length in lengths:
        ids = tokenizer.encode(length.prompt)[: length.shared_prefix_tokens]
        head = _text_of(ids, length, tokenizer)
        for dp_rank in range(dp_size):
            first, second = (
                _entry(f"{head} {unique_text(_END_CHARACTERS)}", ids, length, dp_rank, turn, tokenizer)
                for turn in (1, 2)
            )
            pairs.append((first, second))
    return pairs


def _text_of(ids: Sequence[int], length: SharedLength, tokenizer: PromptTokenizer) -> str:
    """The text of the first tokens of a prompt."""
    if tokenizer.backend is None:
        raise GenerationError.of(
            Code.HYBRID_WARMUP,
            "service.hybrid_warmup",
            f"the tokenizer {tokenizer.class_name} does not tell where its tokens end in a text",
            hint="Leave service.hybrid_warmup out.",
        )
    offsets = tokenizer.backend.encode(length.prompt, add_special_tokens=True).offsets
    return length.prompt[: offsets[len(ids) - 1][1]]


def _entry(
    prompt: str, shared: Sequence[int], length: SharedLength, dp_rank: int, turn: int, tokenizer: PromptTokenizer
) -> WarmupEntry:
    ids = tokenizer.encode(prompt)
    if ids[: len(shared)] != list(shared):
        raise GenerationError.of(
            Code.HYBRID_WARMUP,
            "service.hybrid_warmup",
            f"no prompt can be made that shares exactly {len(shared)} tokens of the prefix of {length.group_id}",
            hint="Use one fixed input length, or leave service.hybrid_warmup out.",
        )
    return WarmupEntry(
        request_id=f"warmup:{length.group_id}:{dp_rank}:{len(shared)}:{turn}",
        group_id=length.group_id,
        dp_rank=dp_rank,
        prompt=prompt,
        input_tokens=len(ids),
        shared_prefix_tokens=len(shared),
        max_tokens=1,
    )
