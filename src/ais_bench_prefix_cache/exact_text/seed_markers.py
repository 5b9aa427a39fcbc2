"""The first word of each prompt's own part: different for every prompt of a file.

Where the vocabulary has enough words that are one token after a space, a marker is one such word, and no other prompt
of the file begins its own part with that token. Words that no corpus row holds come first, so that the token stands
nowhere else either. Elsewhere (tokens that are bytes or letters, more prompts than words) a marker is a code of several
words, unique as a whole: :mod:`ais_bench_prefix_cache.exact_text.seed_codes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ais_bench_prefix_cache.exact_text.seed_codes import SeedCodes, find_alphabets
from ais_bench_prefix_cache.exact_text.words import MAX_VOCABULARY_WORDS
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import GenerationError
from ais_bench_prefix_cache.foundation.random_streams import RandomStream

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.lexicon import Lexicon
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer
    from ais_bench_prefix_cache.exact_text.words import WordTable

CODE_DIGITS = 64
_FIRST_WORDS = 4096
"""Common words that are looked at before the whole vocabulary is, beside two for each prompt."""
_CODES_PER_PROMPT = 4
"""Codes for each prompt, so that corrections of unproven prompts find free ones."""


class SeedMarkers:
    """Markers 0, 1, …: ``text(n, at_start)`` and ``ids(n, at_start)``.

    ``single`` says whether each is one unique token. ``opening`` is what stands before a marker at the start of a text:
    a space where the tokenizer would otherwise see another word there than after a space.
    """

    def __init__(
        self,
        lexicon: Lexicon,
        *,
        prompts: int,
        block_size: int,
        seed: int,
    ) -> None:
        self._table = lexicon.table
        self.opening = _opening(lexicon)
        self._words: list[int] = []
        self._codes: SeedCodes | None = None
        if self.opening is not None:
            self._words = _single_words(lexicon, prompts, seed, self.opening)
        self.single = len(self._words) >= prompts
        if not self.single:
            self._codes = _codes(lexicon, prompts, block_size, seed)
            self.opening = ""

    @property
    def count(self) -> int:
        """How many different markers there are."""
        return self._codes.capacity if self._codes is not None else len(self._words)

    def tokens(self, *, at_start: bool) -> int:
        """Tokens of every marker at the start of a text, or after a space."""
        if self._codes is None:
            return 1
        return self._codes.first_tokens if at_start else self._codes.middle_tokens

    def text(self, number: int, *, at_start: bool) -> str:
        if self._codes is None:
            word = self._table.texts[self._words[number]]
            return f"{self.opening}{word}" if at_start else word
        return self._codes.text(self._codes.value(number))

    def ids(self, number: int, *, at_start: bool) -> tuple[int, ...]:
        if self._codes is None:
            return self._table.ids[self._words[number]]
        return tuple(self._codes.ids(self._codes.value(number), at_start=at_start))


def _opening(lexicon: Lexicon) -> str | None:
    """What makes a word at the start of a text the tokens that it is after a space; None where nothing does."""
    table = lexicon.table
    anchor = table.anchor
    for opening in ("", " "):
        (ids,) = lexicon.tokenizer.encode_plain_batch([f"{opening}{anchor} {anchor}"])
        if tuple(ids) == table.anchor_middle * 2:
            return opening
    return None


def _single_words(lexicon: Lexicon, prompts: int, seed: int, opening: str) -> list[int]:
    """Words of one token each, all different: those that no text holds first, common ones before others."""
    tokenizer, table = lexicon.tokenizer, lexicon.table
    in_texts = set(table.usable())
    found: dict[int, int] = {}
    for common, most in ((True, _FIRST_WORDS + 2 * prompts), (True, None), (False, None)):
        words = lexicon.add_vocabulary(common=common, most=most)
        numbers = [number for number in map(table.number.__getitem__, words) if table.counts[number] == 1]
        starts = tokenizer.encode_plain_batch([f"{opening}{table.texts[number]} {table.anchor}" for number in numbers])
        for number, start in zip(numbers, starts, strict=True):
            if tuple(start) == (*table.ids[number], *table.anchor_middle) and number not in in_texts:
                found.setdefault(table.ids[number][0], number)
        if len(found) >= prompts:
            break
    else:
        for number in sorted(in_texts):
            if table.counts[number] == 1 and _same_at_start(tokenizer, table, number, opening):
                found.setdefault(table.ids[number][0], number)
    numbers = list(found.values())
    return [numbers[place] for place in RandomStream(seed, "seed-markers").permutation(len(numbers)).tolist()]


def _same_at_start(tokenizer: PromptTokenizer, table: WordTable, number: int, opening: str) -> bool:
    (start,) = tokenizer.encode_plain_batch([f"{opening}{table.texts[number]} {table.anchor}"])
    return tuple(start) == (*table.ids[number], *table.anchor_middle)


def _codes(lexicon: Lexicon, prompts: int, block_size: int, seed: int) -> SeedCodes:
    """The shortest codes of which there are enough, after which the rest of a block can be filled if possible."""
    lexicon.add_vocabulary(common=True, most=MAX_VOCABULARY_WORDS)
    table, fillers, before = lexicon.table, lexicon.fillers, lexicon.before
    found: list[tuple[tuple[bool, int, int], SeedCodes]] = []
    for alphabet in find_alphabets(table, table.usable(), random_seed=seed):
        digits, capacity = 1, len(alphabet.words)
        while capacity < _CODES_PER_PROMPT * prompts and digits < CODE_DIGITS:
            digits, capacity = digits + 1, capacity * len(alphabet.words)
        codes = SeedCodes(alphabet, digits, seed)
        rests = (block_size - codes.middle_tokens, block_size - before - codes.first_tokens)
        fills = all(rest >= 0 and fillers.can_make(rest) for rest in rests)
        found.append(((not fills, codes.middle_tokens, codes.first_tokens), codes))
    if not found:
        raise GenerationError.of(
            Code.NO_SEED_MARKERS,
            "scenario: tokenizer.path",
            "corpus and vocabulary have no two words that can begin the own part of different prompts",
        )
    return min(found, key=lambda each: each[0])[1]
