"""What the assembly of prompts hands to the artifacts: canonical prefixes, warm-up prompts, one prompt a request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class CanonicalPrefix:
    """The prefix that a group's requests share.

    ``token_ids`` begin with the special tokens that the endpoint adds (BOS); their number is a multiple of the block
    size. ``sha256`` is :func:`~ais_bench_prefix_cache.exact_text.token_digests.token_ids_sha256` of them.
    ``corpus_indices`` and ``corpus_sha256`` name the corpus rows whose text it uses.
    """

    group: int
    text: str
    token_ids: tuple[int, ...]
    sha256: str
    corpus_indices: tuple[int, ...]
    corpus_sha256: tuple[str, ...]


@dataclass(frozen=True)
class BuiltPrompt:
    """The prompt of the request at ``sequence_index``, exact to the token.

    ``actual_input_tokens`` counts the special tokens that the endpoint adds. The token positions of a prompt are:
    ``shared_prefix_tokens`` of the canonical prefix, ``seed_tokens`` of a globally unique seed, and the natural suffix;
    a BOS lies in whichever comes first, an EOS in the last. ``divergence_block_sha256`` digests the first block after
    the shared prefix.
    """

    sequence_index: int
    text: str
    actual_input_tokens: int
    natural_suffix_tokens: int
    seed_sha256: str
    divergence_block_sha256: str
    request_random_seed: int
    corpus_indices: tuple[int, ...]
    corpus_sha256: tuple[str, ...]


@dataclass(frozen=True)
class WarmupPrompt:
    """Fills the cache with one group's canonical prefix: that prefix and a unique seed after it.

    Sent a second time, it hits ``(input_tokens - 1) // block_size * block_size`` tokens on a warm rank.
    """

    group: int
    text: str
    input_tokens: int
    shared_prefix_tokens: int


class PromptSet(Protocol):
    """All prompts of one plan. Iterating builds them one by one, in send order, in constant memory."""

    canonical_prefixes: tuple[CanonicalPrefix, ...]
    warmup_prompts: tuple[WarmupPrompt, ...]

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[BuiltPrompt]: ...
