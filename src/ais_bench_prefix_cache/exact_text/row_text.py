"""Natural text of an exact number of tokens, read off the rows of the corpus.

Rows are encoded once, as words; afterwards a text of n tokens is a slice of joined rows found by bisection, and the
last word that would not fit is exchanged for words that do.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.words import TextCleaner, WordTable

MAX_FILLERS_PER_COUNT = 512
TOKENS_READ_AHEAD = 4096

Position = tuple[int, int, int]
"""A place in a stream of rows: the first cycle that is held, a row in it, a word in the row."""

Span = tuple[int, int, int]
"""Words within a row: its slot, the first word, the one after the last."""


class Unfillable(Exception):
    """No text of exactly this many tokens can be made."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"no words of the corpus or the vocabulary add up to exactly {tokens} tokens")
        self.tokens = tokens


@dataclass
class Text:
    """A text as pieces: ``spans`` of words within rows, then ``fillers`` (word numbers)."""

    spans: list[Span] = field(default_factory=list)
    fillers: list[int] = field(default_factory=list)


class EncodedRows:
    """Rows of the corpus as words, in flat arrays; rows without a usable word are left out.

    ``slot[row]`` is a row's place; ``text[slot]``, ``tokens[slot]``, ``start[slot]`` … ``start[slot + 1]`` its words in
    ``words``, ``whole[slot]`` the span of all of them. ``token_sum`` and ``char_sum`` run over all words of all rows (a
    word counts its following space).
    """

    def __init__(self, table: WordTable, cleaner: TextCleaner) -> None:
        self.table = table
        self._cleaner = cleaner
        self.slot: dict[int, int] = {}
        self.row: list[int] = []
        self.text: list[str] = []
        self.tokens: list[int] = []
        self.start = array("q", [0])
        self.whole: list[Span] = []
        self.words = array("i")
        self.token_sum = array("q", [0])
        self.char_sum = array("q", [0])

    def add(self, numbers: Sequence[int], rows: Sequence[str]) -> None:
        """Encode further rows, given by their numbers and texts."""
        new = [(n, self._cleaner.words(text)) for n, text in zip(numbers, rows, strict=True) if n not in self.slot]
        self.table.add(word for _, words in new for word in words)
        index = self.table.number
        self._append([(number, [index[word] for word in words]) for number, words in new])

    def encode_again(self, known: int) -> None:
        """Make the rows from slot ``known`` on anew, after some of their words were found unusable."""
        bounds = zip(self.start[known:-1], self.start[known + 1 :], strict=True)
        again = [
            (number, self.words[first:last].tolist())
            for number, (first, last) in zip(self.row[known:], bounds, strict=True)
        ]
        for number, _ in again:
            del self.slot[number]
        words = self.start[known]
        del self.row[known:], self.text[known:], self.tokens[known:], self.start[known + 1 :], self.whole[known:]
        del self.words[words:], self.token_sum[words + 1 :], self.char_sum[words + 1 :]
        self._append(again)

    def _append(self, rows: Sequence[tuple[int, Sequence[int]]]) -> None:
        counts, texts = self.table.counts, self.table.texts
        for number, words in rows:
            usable = [i for i in words if counts[i]]
            if not usable:
                continue
            slot = self.slot[number] = len(self.row)
            self.row.append(number)
            self.text.append(" ".join([texts[i] for i in usable]))
            self.words.extend(usable)
            base = self.token_sum[-1]
            self.token_sum.extend([base + total for total in accumulate([counts[i] for i in usable])])
            base = self.char_sum[-1]
            self.char_sum.extend([base + total for total in accumulate([len(texts[i]) + 1 for i in usable])])
            self.tokens.append(self.token_sum[-1] - self.token_sum[self.start[-1]])
            self.start.append(len(self.words))
            self.whole.append((slot, self.start[slot], self.start[slot + 1]))

    def render(self, text: Text) -> str:
        """The text itself."""
        return " ".join(self.pieces(text))

    def pieces(self, text: Text) -> list[str]:
        """What single spaces join to the text: whole rows, parts of rows, fillers."""
        parts: list[str] = []
        for span in text.spans:
            slot, first, last = span
            if span == self.whole[slot]:
                parts.append(self.text[slot])
            else:
                start = self.start[slot]
                sums, base = self.char_sum, self.char_sum[start]
                parts.append(self.text[slot][sums[first] - base : sums[last] - base - 1])
        texts = self.table.texts
        parts.extend([texts[number] for number in text.fillers])
        return parts

    def word_numbers(self, text: Text) -> Iterator[int]:
        """The words of a text, in order."""
        for _, first, last in text.spans:
            yield from self.words[first:last]
        yield from text.fillers

    def first_word(self, text: Text) -> int:
        """The first word of a text that has one."""
        return self.words[text.spans[0][1]] if text.spans else text.fillers[0]

    def used_rows(self, text: Text) -> tuple[int, ...]:
        """The corpus rows that a text uses, in order of use."""
        row = self.row
        return tuple([row[slot] for slot, _, _ in text.spans])


class Fillers:
    """Words by their number of tokens, and sums of them for any count that can be reached."""

    def __init__(self, table: WordTable, numbers: Sequence[int]) -> None:
        self._table = table
        self._by_count: dict[int, list[int]] = {}
        for number in numbers:
            count = table.counts[number]
            if count:
                words = self._by_count.setdefault(count, [])
                if len(words) < MAX_FILLERS_PER_COUNT:
                    words.append(number)
        self._counts = sorted(self._by_count)
        # _step[n]: the largest word of a shortest sum of n tokens; 0 where no sum exists.
        self._step = [0]
        self._length = [0]

    def has(self, count: int) -> bool:
        return count in self._by_count

    def can_make(self, tokens: int) -> bool:
        return tokens == 0 or self._step_of(tokens) > 0

    def make(self, tokens: int, choice: int) -> list[int]:
        """Word numbers of exactly ``tokens`` tokens; ``choice`` picks among equals. Raises :class:`Unfillable`."""
        made: list[int] = []
        left = tokens
        while left:
            step = self._step_of(left)
            if not step:
                raise Unfillable(tokens)
            words = self._by_count[step]
            made.append(words[(choice + 7 * len(made)) % len(words)])
            left -= step
        return made

    def _step_of(self, tokens: int) -> int:
        while len(self._step) <= tokens:
            n = len(self._step)
            best, length = 0, 1 << 60
            for count in self._counts:
                if count > n:
                    break
                if self._length[n - count] + 1 <= length:
                    best, length = count, self._length[n - count] + 1
            self._step.append(best if length < 1 << 59 else 0)
            self._length.append(length)
        return self._step[tokens]


class RowReader:
    """Reads texts of exact token counts off the rows, one after another, cycle after cycle.

    ``cycle(n)`` is the order of rows (slots) in the n-th pass.
    """

    def __init__(self, rows: EncodedRows, fillers: Fillers, cycle: Callable[[int], Sequence[int]]) -> None:
        self._rows = rows
        self._fillers = fillers
        self._cycle = cycle
        self._cycle_number = -1
        self._next_cycle()
        self._word = 0

    def _next_cycle(self) -> None:
        """Several passes at once where one has few tokens, so that a text of thousands takes a few steps."""
        tokens = self._rows.tokens
        self._first_cycle = self._cycle_number + 1
        order: list[int] = []
        total = 0
        while total < TOKENS_READ_AHEAD:
            self._cycle_number += 1
            part = self._cycle(self._cycle_number)
            if not order:
                self._rows_in_a_pass = len(part)
            order += part
            added = sum([tokens[slot] for slot in part])
            total += added
            if not added:
                break
        self._order = order
        self._sum = list(accumulate([tokens[slot] for slot in order], initial=0))
        self._position = 0

    def seek(self, position: int) -> None:
        """Go to the start of a row of the present cycle."""
        self._position, self._word = position % self._rows_in_a_pass, 0

    @property
    def slot(self) -> int:
        """The row that is read next."""
        return self._order[self._position]

    def skip_words(self, count: int) -> None:
        """Go ``count`` words on, at most to the start of the next row."""
        slot = self._order[self._position]
        self._word += count
        if self._word >= self._rows.start[slot + 1] - self._rows.start[slot]:
            self._advance_row()

    def next_words(self) -> list[int]:
        """The words (their numbers) from here to the end of the row."""
        slot = self._order[self._position]
        return self._rows.words[self._rows.start[slot] + self._word : self._rows.start[slot + 1]].tolist()

    def skip_rest_of_row(self) -> None:
        """Go to the start of the next row, if not at a start already."""
        if self._word:
            self._advance_row()

    def _advance_row(self) -> None:
        self._word = 0
        self._position += 1
        if self._position == len(self._order):
            self._next_cycle()

    @property
    def position(self) -> Position:
        """Where the reader stands, for :meth:`go_to`."""
        return self._first_cycle, self._position, self._word

    def go_to(self, position: Position) -> None:
        """Stand where a reader of the same rows and cycles stood."""
        first_cycle, self._position, self._word = position
        if first_cycle != self._first_cycle:
            self._cycle_number = first_cycle - 1
            self._next_cycle()
            self._position = position[1]

    def take(self, tokens: int, choice: int) -> Text:
        """The next text of exactly ``tokens`` tokens; ``choice`` picks fillers. Raises :class:`Unfillable`."""
        spans, left = self._walk(tokens)
        text = Text(spans)
        if left:
            self._fill(text, left, choice)
        return text

    def skip(self, tokens: int) -> None:
        """Go on as :meth:`take` does."""
        self._walk(tokens)

    def _walk(self, tokens: int) -> tuple[list[Span], int]:
        """Go past the next text of ``tokens`` tokens: its words in the rows, and the tokens that fillers have to add.

        The word that does not fit is passed, too.
        """
        rows = self._rows
        spans: list[Span] = []
        left = tokens
        while left:
            slot = self._order[self._position]
            first = rows.start[slot] + self._word
            if self._word == 0:
                end = bisect_right(self._sum, self._sum[self._position] + left) - 1
                if end > self._position:
                    spans += [rows.whole[each] for each in self._order[self._position : end]]
                    left -= self._sum[end] - self._sum[self._position]
                    self._position = end
                    if end == len(self._order):
                        self._next_cycle()
                    continue
            stop = rows.start[slot + 1]
            last = bisect_right(rows.token_sum, rows.token_sum[first] + left, first, stop + 1) - 1
            if last > first:
                spans.append((slot, first, last))
                left -= rows.token_sum[last] - rows.token_sum[first]
            if last == stop:
                self._advance_row()
                continue
            # The next word does not fit: fillers take its place, unless nothing is missing.
            self._word = last - rows.start[slot]
            if left:
                self._word += 1
                if self._word == stop - rows.start[slot]:
                    self._advance_row()
            break
        return spans, left

    def _fill(self, text: Text, left: int, choice: int) -> None:
        """Add fillers of ``left`` tokens; where no such words exist, exchange words before them too."""
        token_sum = self._rows.token_sum
        wanted = left
        while not self._fillers.can_make(left):
            if not text.spans:
                raise Unfillable(wanted)
            slot, first, last = text.spans.pop()
            last -= 1
            left += token_sum[last + 1] - token_sum[last]
            if last > first:
                text.spans.append((slot, first, last))
        text.fillers.extend(self._fillers.make(left, choice))
