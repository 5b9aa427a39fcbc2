"""Corpus texts of exactly one number of tokens, without prefix and seed: the words that go with images.

The endpoint is chat completions, so the server puts the model's chat template, with its special tokens, around the
text. Counted here is the text alone, encoded without special tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ais_bench_prefix_cache.exact_text.corpus import select_rows
from ais_bench_prefix_cache.exact_text.lexicon import Lexicon, made_exact
from ais_bench_prefix_cache.exact_text.row_text import RowReader, Unfillable
from ais_bench_prefix_cache.foundation.errors import GenerationError
from ais_bench_prefix_cache.foundation.random_streams import derive_seed

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.corpus import Corpus
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer
    from ais_bench_prefix_cache.scenario.model import CorpusSelection

TEXTS_ENCODED_AT_ONCE = 512


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
        """Read the corpus.

        Raises:
            ScenarioError: selected rows do not exist.
            GenerationError: no selected row can be used.
        """
        self._random_seed = random_seed
        self._tokens = tokens
        self._count = count
        self._selection = select_rows(
            corpus, selection, random_seed=random_seed, labels=("corpus",), where="scenario: corpus.selection"
        )
        self._lexicon = Lexicon(tokenizer, lengths_name="scenario: requests.input_length.value")
        order = list(dict.fromkeys(self._selection.cycle(0)))
        self._lexicon.read_corpus(corpus, order, tokens=count * tokens, starts=count)
        self._lexicon.collect_fillers()
        self._longer_at_start = self._first_word_differences()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[PlainText]:
        reader = self._reader()
        for start in range(0, self._count, TEXTS_ENCODED_AT_ONCE):
            numbers = range(start, min(start + TEXTS_ENCODED_AT_ONCE, self._count))
            texts = [self._first_draft(reader, number) for number in numbers]
            encoded = self._lexicon.tokenizer.encode_plain_batch(texts)
            for number, text, ids in zip(numbers, texts, encoded, strict=True):
                yield self._exact(number, PlainText(text, tuple(ids)))

    def _first_word_differences(self) -> list[int]:
        """By slot: how many tokens more the row's first word is at the start of a text than after a space."""
        rows, counts = self._lexicon.rows, self._lexicon.table.counts
        first_words = [rows.words[start] for start in rows.start[:-1]]
        different = list(dict.fromkeys(first_words))
        lengths = {
            word: len(ids) or counts[word]
            for word, ids in zip(different, self._lexicon.table.first_ids(different), strict=True)
        }
        return [lengths[word] - counts[word] for word in first_words]

    def _reader(self) -> RowReader:
        slot = self._lexicon.rows.slot

        def cycle(number: int) -> list[int]:
            return [slot[row] for row in self._selection.cycle(number) if row in slot]

        return RowReader(self._lexicon.rows, self._lexicon.fillers, cycle)

    def _first_draft(self, reader: RowReader, number: int) -> str:
        reader.skip_rest_of_row()
        return self._text(reader, max(1, self._tokens - self._longer_at_start[reader.slot]), number, 0)

    def _text(self, reader: RowReader, words_tokens: int, number: int, attempt: int) -> str:
        """The next text whose words have so many tokens, where each of them stands after a space."""
        choice = derive_seed(self._random_seed, "text", number, attempt) >> 75
        try:
            return self._lexicon.rows.render(reader.take(words_tokens, choice))
        except Unfillable:
            raise self._not_reachable(number) from None

    def _exact(self, number: int, first: PlainText) -> PlainText:
        """The text, or another one where it has not exactly the wanted length."""
        reader = self._reader()
        words_tokens = self._tokens

        def write(attempt: int, last: PlainText | None) -> PlainText:
            nonlocal words_tokens
            if last is None:
                return first
            if attempt % 4 == 1:
                reader.seek(derive_seed(self._random_seed, "text", number, "row", attempt))
                words_tokens = self._tokens - self._longer_at_start[reader.slot]
            else:
                words_tokens -= len(last.token_ids) - self._tokens
            words_tokens = max(1, words_tokens)
            text = self._text(reader, words_tokens, number, attempt)
            (ids,) = self._lexicon.tokenizer.encode_plain_batch([text])
            reader.skip_rest_of_row()
            return PlainText(text, tuple(ids))

        def problem_of(text: PlainText) -> str:
            return "" if len(text.token_ids) == self._tokens else f"has {len(text.token_ids)} tokens"

        return made_exact(write, problem_of, lambda _: self._not_reachable(number))

    def _not_reachable(self, number: int) -> GenerationError:
        return self._lexicon.not_reachable(f"request {number}", self._tokens)
