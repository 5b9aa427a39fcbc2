"""Word sequences that are different for every number, in the middle of a text and at its start.

A number is spread over ``M = R**d`` by an affine bijection drawn from the user's seed and written with ``d`` digits,
each digit one of ``R`` words. All words have the same number of tokens in the middle of a text and the same at its
start, and no word's ids there begin another word's ids here, so the ids of two different numbers differ within their
codes however the two are placed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

from ais_bench_prefix_cache.foundation.random_streams import RandomStream, derive_seed

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.words import WordTable


@dataclass(frozen=True)
class Alphabet:
    """Words for digits: their numbers in the table, texts, ids in the middle and at the start of a text."""

    words: tuple[int, ...]
    texts: tuple[str, ...]
    middle: tuple[tuple[int, ...], ...]
    first: tuple[tuple[int, ...], ...]

    @property
    def middle_tokens(self) -> int:
        return len(self.middle[0])

    @property
    def first_tokens(self) -> int:
        return len(self.first[0])


def find_alphabets(table: WordTable, candidates: Sequence[int], *, random_seed: int) -> list[Alphabet]:
    """The usable alphabets among the candidate words, one per pair of token counts."""
    usable = [number for number in candidates if table.counts[number]]
    starts = table.first_ids(usable)
    by_shape: dict[tuple[int, int], list[_Entry]] = {}
    for number, first in zip(usable, starts, strict=True):
        if first:
            by_shape.setdefault((table.counts[number], len(first)), []).append((number, table.ids[number], first))
    alphabets: list[Alphabet] = []
    for shape in sorted(by_shape):
        entries = _prefix_free(by_shape[shape])
        if len(entries) < 2:
            continue
        order = RandomStream(random_seed, "seed-words", *shape).permutation(len(entries)).tolist()
        chosen = [entries[i] for i in order]
        alphabets.append(
            Alphabet(
                words=tuple([number for number, _, _ in chosen]),
                texts=tuple([table.texts[number] for number, _, _ in chosen]),
                middle=tuple([middle for _, middle, _ in chosen]),
                first=tuple([first for _, _, first in chosen]),
            )
        )
    return alphabets


_Entry = tuple[int, tuple[int, ...], tuple[int, ...]]


def _prefix_free(entries: list[_Entry]) -> list[_Entry]:
    """Entries whose ids name their word, wherever it stands.

    All middle ids are distinct and all start ids are; ids at a start never begin (or are begun by) ids in the middle,
    except that one word may have the same ids in both places.
    """
    kept: list[_Entry] = []
    middles: dict[tuple[int, ...], int] = {}
    firsts: dict[tuple[int, ...], int] = {}
    for number, middle, first in entries:
        common = min(len(middle), len(first))
        same = middle == first
        if middle in middles or first in firsts:
            continue
        middle_head, first_head = middle[:common], first[:common]
        if not same and (middle_head == first_head or middle_head in firsts or first_head in middles):
            continue
        if len(middle) != len(first):
            # Heads of the longer kind are not distinct among themselves; remember them for the crossing check only.
            firsts.setdefault(first_head, number)
            middles.setdefault(middle_head, number)
        kept.append((number, middle, first))
        middles[middle] = number
        firsts[first] = number
    return kept


class SeedCodes:
    """Codes of ``digits`` words for numbers 0 … ``capacity - 1``.

    :meth:`forbid` takes out the codes that begin a given block of tokens; :meth:`next_code` hands out the others.
    """

    def __init__(self, alphabet: Alphabet, digits: int, random_seed: int) -> None:
        self.alphabet = alphabet
        self.digits = digits
        self._radix = len(alphabet.words)
        self.capacity: int = self._radix**digits
        factor = derive_seed(random_seed, "seed-code-factor") % self.capacity
        while gcd(factor, self.capacity) != 1:
            factor += 1
        self._factor = factor
        self._offset = derive_seed(random_seed, "seed-code-offset") % self.capacity
        self._middle_digit = {ids: digit for digit, ids in enumerate(alphabet.middle)}
        self._first_digit = {ids: digit for digit, ids in enumerate(alphabet.first)}
        self._forbidden: set[int] = set()

    @property
    def middle_tokens(self) -> int:
        return self.digits * self.alphabet.middle_tokens

    @property
    def first_tokens(self) -> int:
        return self.alphabet.first_tokens + (self.digits - 1) * self.alphabet.middle_tokens

    @property
    def forbidden(self) -> int:
        return len(self._forbidden)

    @property
    def free(self) -> int:
        return self.capacity - len(self._forbidden)

    def forbid(self, ids: Sequence[int]) -> None:
        """Never hand out a code that these ids begin with, be it in the middle or at the start of a text."""
        for first in (False, True):
            value = self._decode(ids, first)
            if value is not None:
                self._forbidden.add(value)

    def next_code(self, number: int) -> tuple[int, int]:
        """The first allowed number from ``number`` on, and its code value; there must be one (see ``free``)."""
        while True:
            value = (self._factor * number + self._offset) % self.capacity
            if value not in self._forbidden:
                return number, value
            number += 1

    def value(self, number: int) -> int:
        """The code value of the first allowed number from ``number`` on."""
        return self.next_code(number)[1]

    def text(self, value: int) -> str:
        """The words of a code value."""
        texts = self.alphabet.texts
        return " ".join([texts[place] for place in self.places(value)])

    def ids(self, value: int, *, at_start: bool) -> list[int]:
        """The ids of :meth:`text` at the start of a text, or after a space."""
        head, *tail = self.places(value)
        middle = self.alphabet.middle
        ids = list(self.alphabet.first[head] if at_start else middle[head])
        for place in tail:
            ids += middle[place]
        return ids

    def last_word(self, value: int) -> int:
        """The number in the table of the last word of a code value."""
        return self.alphabet.words[self.places(value)[-1]]

    def places(self, value: int) -> list[int]:
        """The digit words of a code value, as places in the alphabet."""
        radix = self._radix
        places: list[int] = []
        for _ in range(self.digits):
            places.append(value % radix)
            value //= radix
        return places

    def _decode(self, ids: Sequence[int], first: bool) -> int | None:
        position, value, weight = 0, 0, 1
        for digit_number in range(self.digits):
            at_start = first and digit_number == 0
            length = self.alphabet.first_tokens if at_start else self.alphabet.middle_tokens
            known = self._first_digit if at_start else self._middle_digit
            digit = known.get(tuple(ids[position : position + length]))
            if digit is None:
                return None
            position += length
            value += digit * weight
            weight *= self._radix
        return value
