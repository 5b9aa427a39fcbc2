"""Rows and fillers that are proven to be encoded as their words are."""

from __future__ import annotations

from itertools import pairwise
from string import ascii_lowercase
from typing import TYPE_CHECKING

from ais_bench_prefix_cache.exact_text.row_text import EncodedRows, Fillers
from ais_bench_prefix_cache.exact_text.words import MAX_VOCABULARY_WORDS, cuts, vocabulary_words

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer
    from ais_bench_prefix_cache.exact_text.words import TextCleaner, WordTable

MAX_ATTEMPTS = 64
"""How often an unproven prompt, or row, is corrected before it is refused or left out."""
ROWS_CHECKED_AT_ONCE = 512
MOST_CHARACTERS_OF_A_BEGINNING = 8


class UnlikeRow(Exception):
    """A corpus row whose ids are not those of its words, although a proof says that they are."""

    def __init__(self, row: int) -> None:
        super().__init__(f"corpus row {row} is not encoded as its words are")
        self.row = row


def settle_rows(rows: EncodedRows, tokenizer: PromptTokenizer, known: int, *, proven: bool) -> None:
    """Re-encode the rows from slot ``known`` on, whole.

    A difference from their words refutes a proof: :class:`UnlikeRow`. Without one, the first differing word of each row
    is taken out of the corpus (a Unigram model has words with two equally likely divisions, for instance) and, if that
    does not help, the row.
    """
    for _ in range(MAX_ATTEMPTS):
        unlike = _unlike_rows(rows, tokenizer, known)
        if not unlike:
            return
        if proven:
            raise UnlikeRow(rows.row[next(iter(unlike))])
        for word in unlike.values():
            rows.table.counts[word] = 0
        rows.encode_again(known)
    for slot in _unlike_rows(rows, tokenizer, known):
        del rows.slot[rows.row[slot]]


def _unlike_rows(rows: EncodedRows, tokenizer: PromptTokenizer, known: int) -> dict[int, int]:
    """The slots from ``known`` on whose ids are not those of their words, with the first word that differs."""
    table = rows.table
    texts = [f"{table.anchor} {text} {table.anchor}" for text in rows.text[known:]]
    unlike: dict[int, int] = {}
    for start in range(0, len(texts), ROWS_CHECKED_AT_ONCE):
        batch = texts[start : start + ROWS_CHECKED_AT_ONCE]
        for slot, ids in enumerate(tokenizer.encode_plain_batch(batch), start=known + start):
            expected = list(table.anchor_first)
            words = rows.words[rows.start[slot] : rows.start[slot + 1]]
            for word in words:
                expected += table.ids[word]
            if ids == [*expected, *table.anchor_middle]:
                continue
            position = len(table.anchor_first)
            for word in words:
                end = position + table.counts[word]
                unlike[slot] = word
                if tuple(ids[position:end]) != table.ids[word]:
                    break
                position = end
    return unlike


def collect_fillers(table: WordTable, tokenizer: PromptTokenizer, cleaner: TextCleaner) -> Fillers:
    """The words of the corpus and beginnings of its long words, and the vocabulary's where those do not suffice."""
    long_words = [table.texts[number] for number in table.usable() if table.counts[number] > 4][:1024]
    table.add(word[:cut] for word in long_words for cut in cuts(word) if cut <= MOST_CHARACTERS_OF_A_BEGINNING)
    fillers = Fillers(table, table.usable())
    if not fillers.has(1):
        table.add(vocabulary_words(tokenizer, cleaner, common=True, most=MAX_VOCABULARY_WORDS))
        fillers = Fillers(table, table.usable())
    if not fillers.has(1):
        # Characters or bytes are the tokens: one letter and two differ by one.
        table.add([*ascii_lowercase, *map("".join, pairwise(ascii_lowercase))])
        fillers = Fillers(table, table.usable())
    return fillers
