"""Prompts as they are put together, before anything is encoded: *canonical prefix · seed · natural suffix*.

A seed is a code that no other prompt has, filled up with corpus text; the suffix is corpus text from the start of a row
on. Lengths are in tokens, of words unless said otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ais_bench_prefix_cache.datasets.text.seeds import no_words_are_as_short
from ais_bench_prefix_cache.exact_text.row_text import EncodedRows, Text, Unfillable
from ais_bench_prefix_cache.exact_text.token_digests import token_ids_sha256

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ais_bench_prefix_cache.datasets.text.canonical import Canonical
    from ais_bench_prefix_cache.exact_text.lexicon import Lexicon
    from ais_bench_prefix_cache.exact_text.row_text import RowReader
    from ais_bench_prefix_cache.exact_text.seed_codes import SeedCodes


@dataclass(frozen=True)
class Request:
    """What the plan asks of one prompt, in tokens with special ones; ``random_seed`` chooses its texts.

    ``index`` is its place in the send order; -1 for a warm-up prompt.
    """

    index: int
    group: int
    shared: int
    input_tokens: int
    random_seed: int


@dataclass
class Draft:
    """A prompt put together.

    ``canonical`` is what its beginning is shared with, None where it shares nothing. ``seed_ids`` are those expected at
    the ``seed_tokens`` after the shared part, special ones included. ``window`` is the seed with the words beside it,
    whose ids without special tokens ``window_ids`` must be.
    """

    request: Request
    canonical: Canonical | None
    seed: str
    suffix: Text
    natural_suffix_tokens: int
    seed_ids: list[int]
    window: str
    window_ids: list[int]
    rows: EncodedRows = field(repr=False)
    ids: list[int] = field(default_factory=list)
    """The ids of :attr:`text`, once it has been encoded whole."""

    @property
    def text(self) -> str:
        """The whole prompt."""
        pieces = [self.seed, *self.rows.pieces(self.suffix)]
        if self.canonical is not None:
            pieces.insert(0, self.canonical.text(self.request.shared))
        return " ".join(pieces)

    def digests(self, block_size: int) -> tuple[str, str]:
        """The digests of the seed's tokens and of the first block of them."""
        seed = token_ids_sha256(self.seed_ids)
        one_block = block_size == len(self.seed_ids)
        return seed, seed if one_block else token_ids_sha256(self.seed_ids[:block_size])

    @property
    def used_rows(self) -> tuple[int, ...]:
        """The corpus rows of the suffix, in order of use."""
        return self.rows.used_rows(self.suffix)


class DraftWriter:
    """Puts prompts together. ``fill_readers[g]`` reads the rows that fill the seeds of group ``g``."""

    def __init__(
        self,
        lexicon: Lexicon,
        codes: SeedCodes,
        canonicals: Sequence[Canonical | None],
        fill_readers: Sequence[RowReader],
        seed_tokens: int,
    ) -> None:
        self._lexicon = lexicon
        self._codes = codes
        self._canonicals = canonicals
        self._fill_readers = fill_readers
        self._seed_tokens = seed_tokens

    def write(self, request: Request, code: int, suffix_reader: RowReader | None = None, correction: int = 0) -> Draft:
        """The prompt of a request with the seed ``code``; ``correction`` changes the words' tokens of its suffix.

        Raises:
            GenerationError: no words add up to its seed or suffix.
        """
        lexicon, seed_tokens = self._lexicon, self._seed_tokens
        table, rows, tokenizer = lexicon.table, lexicon.rows, lexicon.tokenizer
        shared = request.shared
        natural = request.input_tokens - shared - seed_tokens
        # How many of the special tokens after the prompt lie in the seed, because the suffix has no room for them.
        closing = max(0, lexicon.after - natural)
        suffix_tokens = max(0, natural - lexicon.after) + correction
        seed = self._codes.text(code)
        ids = self._codes.ids(code, at_start=not shared)
        rest = seed_tokens - closing - (0 if shared else lexicon.before) - len(ids)
        if no_words_are_as_short(lexicon, suffix_tokens):
            rest, suffix_tokens = rest + suffix_tokens, 0
        fill, suffix = self._texts(request, rest, suffix_tokens, suffix_reader)
        if rest:
            seed = f"{seed} {rows.render(fill)}"
            for word in rows.word_numbers(fill):
                ids += table.ids[word]
        seed_ids = ids if shared else [*tokenizer.prefix_ids, *ids]
        window, window_ids = seed, ids
        canonical = self._canonicals[request.group] if shared else None
        if canonical is not None:
            before = canonical.cuts[shared].last_word
            window = f"{table.anchor} {table.texts[before]} {seed}"
            window_ids = [*table.anchor_first, *table.ids[before], *ids]
        if suffix.spans or suffix.fillers:
            after = rows.first_word(suffix)
            window = f"{window} {table.texts[after]}"
            window_ids = [*window_ids, *table.ids[after]]
        return Draft(
            request=request,
            canonical=canonical,
            seed=seed,
            suffix=suffix,
            natural_suffix_tokens=natural,
            seed_ids=[*seed_ids, *tokenizer.suffix_ids[:closing]][:seed_tokens],
            window=window,
            window_ids=window_ids,
            rows=rows,
        )

    def suffix_tokens(self, natural: int) -> int:
        """How many tokens of corpus text follow the seed of a prompt with so many tokens after it."""
        tokens = max(0, natural - self._lexicon.after)
        return 0 if no_words_are_as_short(self._lexicon, tokens) else tokens

    def _texts(
        self, request: Request, rest: int, suffix_tokens: int, suffix_reader: RowReader | None
    ) -> tuple[Text, Text]:
        """What fills the seed, and the suffix."""
        filling = self._fill_readers[request.group]
        filling.seek(request.random_seed)
        suffix = Text()
        try:
            fill = filling.take(rest, request.random_seed) if rest else Text()
            if suffix_tokens and suffix_reader is not None:
                suffix_reader.skip_rest_of_row()
                suffix = suffix_reader.take(suffix_tokens, request.random_seed)
        except Unfillable as error:
            raise self._lexicon.not_reachable(f"request {request.index}", error.tokens) from error
        return fill, suffix
