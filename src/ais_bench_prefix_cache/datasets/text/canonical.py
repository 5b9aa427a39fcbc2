"""The canonical prefix of each group: the text that its requests share up to lengths that the plan names.

It begins with a code of its own; corpus text follows that ends with a word at each length at which a request stops
sharing, so that any of these beginnings is a prompt's beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ais_bench_prefix_cache.datasets.text.prompt_set import CanonicalPrefix
from ais_bench_prefix_cache.exact_text.row_text import Unfillable
from ais_bench_prefix_cache.exact_text.token_digests import token_ids_sha256
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import GenerationError
from ais_bench_prefix_cache.foundation.names import group_name
from ais_bench_prefix_cache.foundation.random_streams import derive_seed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ais_bench_prefix_cache.datasets.text.row_streams import RowStreams
    from ais_bench_prefix_cache.exact_text.corpus import Corpus
    from ais_bench_prefix_cache.exact_text.lexicon import Lexicon
    from ais_bench_prefix_cache.exact_text.row_text import RowReader
    from ais_bench_prefix_cache.exact_text.seed_codes import SeedCodes
    from ais_bench_prefix_cache.planning.plan import Plan


@dataclass(frozen=True)
class Cut:
    """Where a canonical prefix may end: the characters of its text up to there, and its last word's number."""

    characters: int
    last_word: int


@dataclass(frozen=True)
class Canonical:
    """A group's canonical prefix. ``ids`` begin with the tokens that the endpoint adds; ``cuts`` go by tokens."""

    public: CanonicalPrefix
    ids: list[int]
    cuts: dict[int, Cut]

    def text(self, tokens: int) -> str:
        """Its first ``tokens`` tokens, one of the lengths in ``cuts``."""
        return self.public.text[: self.cuts[tokens].characters]

    def blocks(self, block_size: int) -> Iterator[list[int]]:
        """The ids of each block."""
        for start in range(0, len(self.ids), block_size):
            yield self.ids[start : start + block_size]


def write_canonicals(
    lexicon: Lexicon, plan: Plan, codes: SeedCodes, streams: RowStreams, corpus: Corpus, random_seed: int
) -> tuple[list[Canonical | None], int]:
    """Each group's canonical prefix, None where it has none, and the first code number that is not used up.

    Raises:
        GenerationError: a prefix is not encoded as its words are, or no words fill it.
    """
    readers = [streams.reader(lexicon, stream, reshuffle=False) for stream in range(len(streams))]
    number = 0
    canonicals: list[Canonical | None] = []
    for group, total in enumerate(plan.canonical_prefix_tokens.tolist()):
        if not total:
            canonicals.append(None)
            continue
        mine = plan.shared_prefix_tokens[plan.group == group]
        lengths = sorted({*np.unique(mine[mine > 0]).tolist(), total})

        def write(attempt: int, last: Canonical | None, group: int = group, lengths: list[int] = lengths) -> Canonical:
            nonlocal number
            number, value = codes.next_code(number)
            number += 1
            start = derive_seed(random_seed, "canonical", group, attempt)
            reader = readers[streams.of_group[group]]
            return _compose(lexicon, codes, reader, corpus, group, lengths, value, start)

        what = f"the canonical prefix of {group_name(group)}"
        canonicals.append(lexicon.exact(what, write, lambda canonical: _problem_of(lexicon, canonical)))
    return canonicals, number


def _compose(
    lexicon: Lexicon,
    codes: SeedCodes,
    reader: RowReader,
    corpus: Corpus,
    group: int,
    lengths: list[int],
    code: int,
    start: int,
) -> Canonical:
    """The code, then text from the row ``start`` on, with the end of a word at each of ``lengths`` (tokens)."""
    rows = lexicon.rows
    parts = [codes.text(code)]
    ids = [*lexicon.tokenizer.prefix_ids, *codes.ids(code, at_start=True)]
    last_word = codes.last_word(code)
    characters = len(parts[0])
    cuts: dict[int, Cut] = {}
    used: dict[int, None] = {}
    reader.seek(start)
    for length in lengths:
        try:
            text = reader.take(length - len(ids), start + length)
        except Unfillable as error:
            raise lexicon.not_reachable(f"the canonical prefix of {group_name(group)}", error.tokens) from error
        for word in rows.word_numbers(text):
            ids += lexicon.table.ids[word]
            last_word = word
        rendered = rows.render(text)
        if rendered:
            parts.append(rendered)
            characters += 1 + len(rendered)
        used.update(dict.fromkeys(rows.used_rows(text)))
        cuts[length] = Cut(characters, last_word)
    public = CanonicalPrefix(
        group=group,
        text=" ".join(parts),
        token_ids=tuple(ids),
        sha256=token_ids_sha256(ids),
        corpus_indices=tuple(used),
        corpus_sha256=tuple([corpus.row_sha256[row] for row in used]),
    )
    return Canonical(public, ids, cuts)


def _problem_of(lexicon: Lexicon, canonical: Canonical) -> str:
    """What is wrong with a canonical prefix when it is encoded before another word, or nothing."""
    ids, anchor = canonical.ids, lexicon.table.anchor
    lengths = [len(ids)] if lexicon.proof.proven else list(canonical.cuts)
    tail = [*lexicon.table.anchor_middle, *lexicon.tokenizer.suffix_ids]
    encoded = lexicon.tokenizer.encode_batch([f"{canonical.text(length)} {anchor}" for length in lengths])
    for length, found in zip(lengths, encoded, strict=True):
        if found != [*ids[:length], *tail]:
            return f"is not the same, cut at {length} tokens, before another word"
    return ""


def forbid_canonical_blocks(
    codes: SeedCodes, canonicals: Iterable[Canonical | None], *, block_size: int, before: int, needed: int
) -> None:
    """No seed begins as a block of a canonical prefix does; ``before`` special tokens begin its first block.

    Raises:
        GenerationError: fewer than ``needed`` codes are left.
    """
    for canonical in filter(None, canonicals):
        first, *others = canonical.blocks(block_size)
        codes.forbid(first[before:])
        for block in others:
            codes.forbid(block)
    if codes.free < needed:
        raise GenerationError.of(
            Code.SEEDS_EXHAUSTED,
            "scenario: tokenizer.block_size",
            f"{needed} seeds must differ in their first block of {block_size} token(s), but corpus and vocabulary "
            f"give only {codes.free} that no canonical prefix uses",
            hint="Use a larger block size or fewer requests.",
        )


def empty_prefix(group: int) -> CanonicalPrefix:
    """The canonical prefix of a group whose requests share nothing."""
    return CanonicalPrefix(group, "", (), token_ids_sha256(()), (), ())
