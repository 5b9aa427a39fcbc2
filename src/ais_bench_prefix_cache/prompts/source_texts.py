"""How a prompt source writes: codes that no other number has, and natural text of so many tokens.

With a tokenizer every length is exact; without one, a word counts as a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING, Protocol, cast

from ais_bench_prefix_cache.exact_text.lexicon import Lexicon
from ais_bench_prefix_cache.exact_text.row_text import RowReader, Unfillable
from ais_bench_prefix_cache.exact_text.seed_codes import SeedCodes, find_alphabets
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import GenerationError
from ais_bench_prefix_cache.prompts.source_words import NONCE_WORDS, SENTENCES

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer

ESTIMATE = "words"
EXACT = "tokenizer"
MIN_CONTROLLED_TOKENS = 32
"""Without a tokenizer, shorter prompts cannot hold a nonce and a set share: what a token is, is only estimated."""
CODE_BITS = 64
LEAST_CODE_BITS = 32
"""Codes of fewer bits, where a block has no room for more, would meet by chance in other cases."""
_TWO_LETTERS = tuple(f"{first}{second}" for first in "bcdfghjklmnprstvwz" for second in "aeiouy")


@dataclass(frozen=True)
class TokenCount:
    """Tokens of a text; ``source`` says who counted, ``exact`` whether the server will count the same."""

    value: int
    source: str
    exact: bool


class CountsText(Protocol):
    """Counts tokens."""

    def count_text(self, text: str) -> TokenCount: ...


class TokenCounter(CountsText, Protocol):
    """Counts tokens and writes text of so many."""

    source: str
    exact: bool
    before: int
    """Special tokens that the endpoint puts before every text."""
    after: int
    block_size: int | None

    def codes(self, seed: int) -> Codes: ...

    def filler(self, tokens: int, seed: int) -> str:
        """Text of ``tokens`` tokens after a space. Raises :class:`GenerationError` where no words add up to them."""
        ...

    def opening(self, tokens: int, seed: int) -> str:
        """Text of ``tokens`` tokens at the start of a prompt."""
        ...

    def shared_tokens(self, wanted: float, least: int, most: int) -> int | None:
        """The prefix length nearest to ``wanted`` from ``least`` to ``most``; None where there is none."""
        ...


class Codes(Protocol):
    """A different text for every number below ``capacity``."""

    capacity: int

    @property
    def first_tokens(self) -> int: ...

    @property
    def middle_tokens(self) -> int: ...

    def value(self, number: int) -> int: ...

    def text(self, value: int) -> str: ...


class WordEstimate:
    """Without a tokenizer: a word counts as a token."""

    source: str = ESTIMATE
    exact: bool = False
    before = after = 0
    block_size: int | None = None

    def count_text(self, text: str) -> TokenCount:
        return TokenCount(len(text.split()), ESTIMATE, False)

    def codes(self, seed: int) -> Codes:
        return _WordCodes(seed)

    def filler(self, tokens: int, seed: int) -> str:
        first = seed % len(SENTENCES)
        words = cycle(" ".join([*SENTENCES[first:], *SENTENCES[:first]]).split())
        return " ".join(islice(words, tokens))

    opening = filler

    def shared_tokens(self, wanted: float, least: int, most: int) -> int | None:
        return min(max(round(wanted), least), most) if least <= most else None


class CountedWords(WordEstimate):
    """Words of which a counter of the user's own says how many tokens they are: texts come as near as words allow."""

    def __init__(self, counter: CountsText) -> None:
        self._counter = counter
        first = counter.count_text(SENTENCES[0])
        self.source, self.exact = first.source, False

    def count_text(self, text: str) -> TokenCount:
        return self._counter.count_text(text)

    def codes(self, seed: int) -> Codes:
        codes = _WordCodes(seed)
        codes.first_tokens = codes.middle_tokens = self.count_text(codes.text(codes.value(0))).value
        return codes

    def filler(self, tokens: int, seed: int) -> str:
        """The fewest words that have ``tokens`` tokens, found by halving."""
        words = 1
        while self.count_text(super().filler(words, seed)).value < tokens:
            words *= 2
        low, high = words // 2, words
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (
                (low, middle) if self.count_text(super().filler(middle, seed)).value >= tokens else (middle, high)
            )
        return super().filler(high, seed)

    opening = filler


def writing_counter(counter: CountsText) -> TokenCounter:
    """A counter that also writes: ``counter`` itself, or one around it where it only counts."""
    return cast("TokenCounter", counter) if hasattr(counter, "codes") else CountedWords(counter)


class _WordCodes:
    """Eight of 256 words: 64 bits, spread over the numbers by an odd factor."""

    capacity = 1 << CODE_BITS
    first_tokens = middle_tokens = CODE_BITS // 8

    def __init__(self, seed: int) -> None:
        self._factor = (seed | 1) % self.capacity
        self._offset = (seed >> CODE_BITS) % self.capacity

    def value(self, number: int) -> int:
        return (self._factor * number + self._offset) % self.capacity

    def text(self, value: int) -> str:
        return " ".join([NONCE_WORDS[byte] for byte in value.to_bytes(self.first_tokens, "little")])


class ExactTokens:
    """With the server's tokenizer: every text has exactly the tokens that it should have.

    ``proven`` says whether words provably encode independently (``docs/exact-prompts.md``); otherwise a source encodes
    every prompt whole. ``block_size`` is the server's. Raises :class:`GenerationError` where text cannot be exact;
    :meth:`codes` does where a block has no room for one.
    """

    source = EXACT
    exact = True

    def __init__(self, tokenizer: PromptTokenizer, *, block_size: int = 16) -> None:
        self.lexicon = lexicon = Lexicon(tokenizer, tokenizer_name="tokenizer", lengths_name="input tokens")
        self.tokenizer = tokenizer
        self.block_size: int | None = block_size
        self._block = block_size
        self.before, self.after = lexicon.before, lexicon.after
        self.proven = lexicon.proof.proven
        if not lexicon.read(SENTENCES, range(len(SENTENCES))):
            raise lexicon.not_exact("no text keeps the tokens of its words")
        lexicon.collect_fillers()
        self._table, self._fillers = lexicon.table, lexicon.fillers
        # Pairs of letters serve tokenizers whose tokens are letters or bytes.
        self._shape = self._code_shape(NONCE_WORDS) or self._code_shape((*NONCE_WORDS, *_TWO_LETTERS))

    def count_text(self, text: str) -> TokenCount:
        return TokenCount(len(self.tokenizer.encode(text)), EXACT, True)

    def codes(self, seed: int) -> Codes:
        if self._shape is None:
            raise GenerationError.of(
                Code.BLOCK_SIZE_TOO_SMALL,
                "block size",
                f"a block of {self._block} tokens has no room for a nonce of {LEAST_CODE_BITS} bits",
                hint="Use a larger block size.",
            )
        return SeedCodes(self._shape.alphabet, self._shape.digits, seed)

    def filler(self, tokens: int, seed: int) -> str:
        rows = self.lexicon.rows
        slots = list(rows.slot.values())
        reader = RowReader(rows, self._fillers, lambda _cycle: slots)
        reader.seek(seed)
        try:
            return rows.render(reader.take(tokens, seed))
        except Unfillable as error:
            raise self.lexicon.not_reachable("a prompt", error.tokens) from error

    def opening(self, tokens: int, seed: int) -> str:
        words = self._table.usable()
        words = words[seed % len(words) :] + words[: seed % len(words)]
        for word, ids in zip(words, self._table.first_ids(words), strict=True):
            if ids and len(ids) <= tokens and self._fillers.can_make(tokens - len(ids)):
                return f"{self._table.texts[word]} {self.filler(tokens - len(ids), seed)}".rstrip()
        raise self.lexicon.not_reachable("the start of a prompt", tokens)

    def shared_tokens(self, wanted: float, least: int, most: int) -> int | None:
        first, last = -(-least // self._block), most // self._block
        return min(max(round(wanted / self._block), first), last) * self._block if first <= last else None

    def _code_shape(self, words: tuple[str, ...]) -> SeedCodes | None:
        """The shortest codes of 64 bits, or the most bits that fit into a block beside the special tokens."""
        self._table.add(words)
        numbers = [self._table.number[word] for word in words]
        best: SeedCodes | None = None
        room = self._block - self.before
        for alphabet in find_alphabets(self._table, numbers, random_seed=0):
            longest = max(alphabet.middle_tokens, alphabet.first_tokens)
            digits, capacity = 0, 1
            while capacity < 1 << CODE_BITS and digits * alphabet.middle_tokens + longest <= room:
                digits, capacity = digits + 1, capacity * len(alphabet.words)
            if capacity < 1 << LEAST_CODE_BITS:
                continue
            codes = SeedCodes(alphabet, digits, 0)
            if best is None or _rank(codes) < _rank(best):
                best = codes
        return best


def _rank(codes: SeedCodes) -> tuple[bool, int, int]:
    """Enough bits first, then few tokens, then many codes."""
    return codes.capacity < 1 << CODE_BITS, codes.middle_tokens + codes.first_tokens, -codes.capacity
