"""The pieces of conversations: system prompts, messages and scripted answers, each a text with its token ids.

A piece is encoded on its own, without special tokens, and has exactly as many tokens as planned. What must differ from
everything else begins with a code: words of one token each, whose first already differs as long as there are enough of
them. So two conversations part with the first tokens after what they share, within the block in which that ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from ais_bench_prefix_cache.exact_text.exact_rows import MAX_ATTEMPTS
from ais_bench_prefix_cache.exact_text.lexicon import Lexicon
from ais_bench_prefix_cache.exact_text.word_stream import WordStream
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import GenerationError
from ais_bench_prefix_cache.foundation.random_streams import derive_seed, numbered_seeds

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.corpus import Corpus
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer

PIECES_CHECKED_AT_ONCE = 256


@dataclass(frozen=True)
class PieceOrder:
    """A piece to be made: ``number`` tells it from others of its ``name``; with a ``code`` it differs from all others.

    ``position`` is where it begins in its prompt. Pieces with different ``sibling`` begin with different tokens. What
    ``follows`` another piece in one text stands behind a space.
    """

    name: str
    number: int
    tokens: int
    code: int | None = None
    position: int = 0
    sibling: int | None = None
    follows: bool = False


@dataclass(frozen=True)
class Piece:
    """A text and its tokens. ``spare_token_id``, the word ``spare``, may stand in place of the first; it differs.

    Neither of both words begins with the other, so that no text begins with both.
    """

    text: str
    token_ids: tuple[int, ...]
    spare_token_id: int
    spare: str


class PieceBuilder:
    """Makes pieces of up to ``longest`` tokens, ``codes`` of them with a code, from the rows ``order`` of a corpus.

    ``check_each`` encodes every piece even where a proof says what comes out; without a proof that is always done.

    Raises:
        GenerationError: the vocabulary or the corpus has no words that can be used.
    """

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        corpus: Corpus,
        order: Sequence[int],
        *,
        longest: int,
        codes: int,
        block_size: int,
        random_seed: int,
        check_each: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._lexicon = Lexicon(tokenizer)
        self._stream = WordStream(self._lexicon, corpus, order, longest)
        self._check_each = check_each or not self._lexicon.proof.proven
        self._block_size, self._random_seed = block_size, random_seed
        self._first_words, self._first_ids = self._words_at_the_start()
        middle = dict(zip(self._stream.code_words, self._stream.code_ids, strict=True))
        self._first_ids_after_a_space = [middle[word] for word in self._first_words]
        self._code_length, self._capacity = 1, len(self._first_words)
        while self._capacity < codes:
            self._code_length, self._capacity = self._code_length + 1, self._capacity << self._stream.code_bits
        self._offset = derive_seed(random_seed, "conversations", "codes") % self._capacity

    def build(self, orders: Iterator[PieceOrder]) -> Iterator[Piece]:
        """The pieces in their order.

        Raises:
            GenerationError: a code has no room, or a piece cannot be made exact.
        """
        while part := list(islice(orders, PIECES_CHECKED_AT_ONCE)):
            pieces = [self._written(each, 0) for each in part]
            if self._check_each:
                for place, (order, ids) in enumerate(zip(part, self._encoded(part, pieces), strict=True)):
                    if ids != pieces[place].token_ids:
                        pieces[place] = self._written_anew(order)
            yield from pieces

    def _encoded(self, orders: Sequence[PieceOrder], pieces: Sequence[Piece]) -> list[tuple[int, ...]]:
        """The tokens of each piece where it stands."""
        anchor = self._lexicon.table.anchor
        before = len(self._tokenizer.encode_plain_batch([anchor])[0])
        texts = [
            f"{anchor} {piece.text}" if order.follows else piece.text
            for order, piece in zip(orders, pieces, strict=True)
        ]
        encoded = self._tokenizer.encode_plain_batch(texts)
        return [tuple(ids[before if order.follows else 0 :]) for order, ids in zip(orders, encoded, strict=True)]

    def _written(self, order: PieceOrder, attempt: int) -> Piece:
        stream = self._stream
        seed = numbered_seeds(self._random_seed, "conversations", order.name, attempt)(order.number)
        start, first = divmod(seed, len(self._first_words))
        digits = 0
        if order.code is not None:
            self._check_room(order)
            code, first = divmod((order.code + self._offset) % self._capacity, len(self._first_words))
            digits = self._code_length - 1
        elif order.sibling is not None:
            if order.sibling >= len(self._first_words):
                raise GenerationError.of(
                    Code.CODE_TOO_LONG,
                    "scenario: conversation.branches",
                    f"branch {order.sibling} of a history needs a first token of its own",
                    allowed=f"at most {len(self._first_words) - 1} branches with this tokenizer",
                )
            first = (order.sibling + self._offset) % len(self._first_words)
        first_ids = self._first_ids_after_a_space if order.follows else self._first_ids
        spare = self._spare(first)
        words, ids = [self._first_words[first]], [first_ids[first]]
        for place in range(digits):
            digit = code >> (place * stream.code_bits) & stream.code_mask
            words.append(stream.code_words[digit])
            ids.append(stream.code_ids[digit])
        stream.append(words, ids, start % stream.starts, order.tokens - len(ids))
        return Piece(" ".join(words), tuple(ids), first_ids[spare], self._first_words[spare])

    def _spare(self, first: int) -> int:
        """The number of the next word that does not begin with the first one, nor that with it."""
        words = self._first_words
        for step in range(1, len(words)):
            spare = (first + step) % len(words)
            if not words[spare].startswith(words[first]) and not words[first].startswith(words[spare]):
                return spare
        return (first + 1) % len(words)

    def _written_anew(self, order: PieceOrder) -> Piece:
        """From other places of the corpus, until one is encoded as its words are."""
        for attempt in range(1, MAX_ATTEMPTS):
            piece = self._written(order, attempt)
            if self._encoded([order], [piece]) == [piece.token_ids]:
                return piece
        raise self._lexicon.not_exact(f"{order.name} {order.number} is not encoded as its words are")

    def _check_room(self, order: PieceOrder) -> None:
        """The code must tell conversations apart before the block ends in which they part."""
        room = self._block_size - order.position % self._block_size
        needed = self._code_length
        if order.tokens < needed or (needed > 1 and room < needed):
            what = f"has {order.tokens}" if order.tokens < needed else f"begins {room} before the end of a block"
            raise GenerationError.of(
                Code.CODE_TOO_LONG,
                "scenario: conversation",
                f"a code that tells conversations apart needs {needed} tokens, but {order.name} {order.number} {what}",
                hint="Use longer messages, system prompts that end elsewhere in a block, or at most "
                f"{len(self._first_words)} conversations and system prompts together.",
            )

    def _words_at_the_start(self) -> tuple[list[str], list[int]]:
        """Code words that are one token at the start of a text, too, with their ids there, all different."""
        anchor, middle = self._lexicon.table.anchor, self._lexicon.table.anchor_middle
        words = self._stream.code_words
        found: dict[int, str] = {}
        for word, ids in zip(
            words, self._tokenizer.encode_plain_batch([f"{word} {anchor}" for word in words]), strict=True
        ):
            if len(ids) == 1 + len(middle) and tuple(ids[1:]) == tuple(middle):
                found.setdefault(ids[0], word)
        if len(found) < 2:
            raise GenerationError.of(
                Code.NO_CODE_WORDS, "scenario: tokenizer.path", "the vocabulary has no words of one token to begin with"
            )
        return list(found.values()), list(found)
