"""A corpus as one stream of words, from any place of which a text of so many tokens can be taken; and code words.

What no whole word fills is filled with code words, which have one token each. They are a power of two of the
vocabulary's words, so that their numbers are digits of a code.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from ais_bench_prefix_cache.exact_text.lexicon import Lexicon
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import GenerationError

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.corpus import Corpus
    from ais_bench_prefix_cache.exact_text.words import WordTable

ENOUGH_CODE_WORDS = 2048
MOST_VOCABULARY_WORDS = 16384


class WordStream:
    """The rows ``order`` of a corpus, word after word, repeated so that ``longest`` tokens can begin anywhere.

    ``code_words[d]`` is the digit *d*, of ``code_bits`` bits, and ``code_ids[d]`` its token after a space; ``starts``
    is how many places there are to begin at.

    Raises:
        GenerationError: the corpus has no usable words, or the vocabulary none of one token.
    """

    def __init__(self, lexicon: Lexicon, corpus: Corpus, order: Sequence[int], longest: int) -> None:
        self._lexicon = lexicon
        self._read_corpus(corpus, order, longest)
        self._choose_code_words()

    def append(self, words: list[str], ids: list[int], start: int, tokens: int) -> None:
        """Add ``tokens`` tokens from the place ``start`` on, as words and as their ids after a space."""
        ends = self._token_ends
        before = ends[start]
        end = bisect_right(ends, before + tokens, start, min(start + tokens + 1, len(ends))) - 1
        words += self._words[start:end]
        ids += self._ids[before : ends[end]]
        for position in range(start, start + before + tokens - ends[end]):
            digit = position & self.code_mask
            words.append(self.code_words[digit])
            ids.append(self.code_ids[digit])

    def _choose_code_words(self) -> None:
        table = self._lexicon.table
        single = _words_of_one_token(table)
        if len(single) < ENOUGH_CODE_WORDS:
            self._lexicon.add_vocabulary(common=True, most=MOST_VOCABULARY_WORDS)
            single = _words_of_one_token(table)
        bits = min(len(single), ENOUGH_CODE_WORDS).bit_length() - 1
        if bits < 1:
            raise GenerationError.of(
                Code.NO_CODE_WORDS, "scenario: tokenizer.path", "the vocabulary has no words of one token after a space"
            )
        chosen = [single[token] for token in sorted(single)][: 1 << bits]
        self.code_words = [table.texts[number] for number in chosen]
        self.code_ids = [table.ids[number][0] for number in chosen]
        self.code_bits, self.code_mask = bits, (1 << bits) - 1

    def _read_corpus(self, corpus: Corpus, order: Sequence[int], longest: int) -> None:
        table, rows = self._lexicon.table, self._lexicon.rows
        self._lexicon.read_corpus(corpus, order, at_once=len(order))
        numbers = [word for slot in rows.slot.values() for word in rows.words[rows.start[slot] : rows.start[slot + 1]]]
        self.starts = len(numbers)
        repeated, tokens = list(numbers), 0
        while tokens <= longest:
            number = numbers[(len(repeated) - len(numbers)) % len(numbers)]
            repeated.append(number)
            tokens += table.counts[number]
        self._words = [table.texts[number] for number in repeated]
        self._ids = [token for number in repeated for token in table.ids[number]]
        # Tokens of the stream before its first, second … word, and in all.
        self._token_ends = list(accumulate((table.counts[number] for number in repeated), initial=0))


def _words_of_one_token(table: WordTable) -> dict[int, int]:
    """Their numbers by token."""
    return {table.ids[number][0]: number for number, count in enumerate(table.counts) if count == 1}
