"""Corpus texts of exactly one number of tokens, without prefix and seed: the words that go with images.

The endpoint is chat completions, so the server puts the model's chat template, with its special tokens, around the
text. Counted here is the text alone, encoded without special tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ais_bench_prefix_cache.exact_text.corpus import select_rows
from ais_bench_prefix_cache.exact_text.exact_rows import collect_fillers
from ais_bench_prefix_cache.exact_text.row_text import EncodedRows, Fillers, RowReader, Unfillable
from ais_bench_prefix_cache.exact_text.words import TextCleaner, WordTable
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import GenerationError
from ais_bench_prefix_cache.foundation.random_streams import derive_seed

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.corpus import Corpus
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer
    from ais_bench_prefix_cache.scenario.model import CorpusSelection

MAX_ATTEMPTS = 64
"""How often a text is corrected before the data set is refused."""
TEXTS_ENCODED_AT_ONCE = 512
ROWS_ENCODED_AT_ONCE = 4096


@dataclass(frozen=True)
class PlainText:
    """The text of one request, proven by encoding it whole."""

    text: str
    token_ids: tuple[int, ...]


class PlainTexts:
    """``count`` texts of exactly ``tokens`` tokens each; iterating makes them, the same ones each time.

    Each begins at the start of a corpus row, in the order of the selection, cycle after cycle.
    """

    def __init__(
        self,
        corpus: Corpus,
        selection: CorpusSelection,
        tokenizer: PromptTokenizer,
        *,
        random_seed: int,
        tokens: int,
        count: int,
    ) -> None:
        """Raises :class:`ScenarioError` for rows that do not exist, :class:`GenerationError` for an unusable corpus."""
        self._tokenizer = tokenizer
        self._random_seed = random_seed
        self._tokens = tokens
        self._count = count
        self._selection = select_rows(
            corpus, selection, random_seed=random_seed, labels=("corpus",), where="scenario: corpus.selection"
        )
        self._cleaner = TextCleaner(tokenizer)
        self._table = WordTable(tokenizer, self._cleaner)
        self._rows = EncodedRows(self._table, self._cleaner)
        self._encode_rows(corpus)
        self._fillers: Fillers = collect_fillers(self._table, tokenizer, self._cleaner)
        self._longer_at_start = self._first_word_differences()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[PlainText]:
        reader = self._reader()
        for start in range(0, self._count, TEXTS_ENCODED_AT_ONCE):
            numbers = range(start, min(start + TEXTS_ENCODED_AT_ONCE, self._count))
            texts = [self._first_draft(reader, number) for number in numbers]
            encoded = self._tokenizer.encode_plain_batch(texts)
            for number, text, ids in zip(numbers, texts, encoded, strict=True):
                yield self._exact(number, text, ids)

    def _encode_rows(self, corpus: Corpus) -> None:
        """As many rows as the texts can use: each begins at the start of one and leaves the rest of its last one."""
        order = list(dict.fromkeys(self._selection.cycle(0)))
        tokens = longest = 0
        for start in range(0, len(order), ROWS_ENCODED_AT_ONCE):
            part = order[start : start + ROWS_ENCODED_AT_ONCE]
            known = len(self._rows.tokens)
            self._rows.add(part, [corpus.rows[row] for row in part])
            tokens += sum(self._rows.tokens[known:])
            longest = max(longest, max(self._rows.tokens[known:], default=0))
            if tokens > self._count * (self._tokens + longest):
                break
        if not tokens:
            raise GenerationError.of(
                Code.CORPUS_NOT_USABLE,
                "scenario: corpus.path",
                f"no selected row of {str(corpus.path)!r} has a word that this tokenizer encodes alike in every place",
            )

    def _first_word_differences(self) -> list[int]:
        """By slot: how many tokens more the row's first word is at the start of a text than after a space."""
        rows, counts = self._rows, self._table.counts
        first_words = [rows.words[start] for start in rows.start[:-1]]
        different = list(dict.fromkeys(first_words))
        lengths = {
            word: len(ids) or counts[word]
            for word, ids in zip(different, self._table.first_ids(different), strict=True)
        }
        return [lengths[word] - counts[word] for word in first_words]

    def _reader(self) -> RowReader:
        slot = self._rows.slot

        def cycle(number: int) -> list[int]:
            return [slot[row] for row in self._selection.cycle(number) if row in slot]

        return RowReader(self._rows, self._fillers, cycle)

    def _first_draft(self, reader: RowReader, number: int) -> str:
        reader.skip_rest_of_row()
        return self._text(reader, max(1, self._tokens - self._longer_at_start[reader.slot]), number, 0)

    def _text(self, reader: RowReader, words_tokens: int, number: int, attempt: int) -> str:
        """The next text whose words have so many tokens, where each of them stands after a space."""
        choice = derive_seed(self._random_seed, "text", number, attempt) >> 75
        try:
            return reader.render(reader.take(words_tokens, choice))
        except Unfillable:
            raise self._not_reachable(number) from None

    def _exact(self, number: int, text: str, ids: list[int]) -> PlainText:
        """The text, or another one where it has not exactly the wanted length."""
        reader = self._reader()
        words_tokens = self._tokens
        for attempt in range(1, MAX_ATTEMPTS + 1):
            if len(ids) == self._tokens:
                return PlainText(text, tuple(ids))
            if attempt % 4 == 1:
                reader.seek(derive_seed(self._random_seed, "text", number, "row", attempt))
                words_tokens = self._tokens - self._longer_at_start[reader.slot]
            else:
                words_tokens -= len(ids) - self._tokens
            words_tokens = max(1, words_tokens)
            text = self._text(reader, words_tokens, number, attempt)
            (ids,) = self._tokenizer.encode_plain_batch([text])
            reader.skip_rest_of_row()
        raise self._not_reachable(number)

    def _not_reachable(self, number: int) -> GenerationError:
        return GenerationError.of(
            Code.LENGTH_NOT_REACHABLE,
            "scenario: requests.input_length.value",
            f"request {number} needs a text of exactly {self._tokens} token(s), and neither corpus nor "
            "vocabulary gives one",
            hint="Use a larger value or another corpus.",
        )
