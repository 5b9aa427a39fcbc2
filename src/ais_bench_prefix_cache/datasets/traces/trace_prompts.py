"""Prompts for the requests of a trace: equal where the trace's blocks are equal, different from there on.

The content of a block is a function of its name in the trace and of the names before it, so nothing about earlier
blocks has to be kept. It begins with a code of 64 bits of that chain of names, in words of one token each; natural text
of the corpus follows. Two prompts are therefore equal up to the end of their last common block, and differ within the
next block of the server. The first words of a prompt are the special tokens that the endpoint adds and one fixed word,
because a word at the start of a text has other ids than after a space.

All words stand between single spaces. Where the tokenizer provably encodes such words one by one (:mod:`.join_proof`),
a prompt's ids are those of its words: its length and its blocks are exact by construction. Elsewhere every prompt is
encoded whole, and a block that turns out otherwise is written anew, unless an earlier prompt holds it already.

Tokens that the endpoint adds at the end take the place of a prompt's last words. They are in nobody's way but where
another request continues the very block that they close: such a trace is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import eq
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ais_bench_prefix_cache.exact_text.lexicon import Lexicon
from ais_bench_prefix_cache.exact_text.word_stream import WordStream
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import GenerationError
from ais_bench_prefix_cache.kvcache.block_hash import ROOT_HASH, BlockHash, block_hashes

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.corpus import Corpus
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer

CODE_BITS = 64

TokenIds = npt.NDArray[np.uint32]
_Written = tuple[str, list[int]]
"""A prompt's text, and the ids that it should have."""


class TracePrompts:
    """Builds prompts whose trace blocks have ``trace_block_size`` tokens, for a server with ``block_size``.

    ``check_each`` encodes every prompt whole even where a proof says what comes out; without a proof that is always
    done.

    Raises:
        GenerationError: the tokenizer needs more tokens for a code than a block has, or its vocabulary has no words for
            one; the corpus has no usable words; the server's blocks do not divide the trace's.
    """

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        corpus: Corpus,
        *,
        trace_block_size: int,
        block_size: int,
        check_each: bool = False,
    ) -> None:
        if trace_block_size % block_size:
            raise GenerationError.of(
                Code.TRACE_BLOCK_SIZE,
                "scenario: tokenizer.block_size",
                f"blocks of {block_size} tokens do not divide the trace's blocks of {trace_block_size}",
                allowed=f"a divisor of {trace_block_size}",
            )
        self._lexicon = Lexicon(tokenizer)
        self._proven = self._lexicon.proof.proven
        self._check_each = check_each or not self._proven
        self.trace_block_size = trace_block_size
        self._tokenizer = tokenizer
        # Of unproven tokenizers: how often a block was written anew, and the blocks that a finished prompt holds.
        self._attempts: dict[BlockHash, int] = {}
        self._finished: set[BlockHash] = set()
        # Where a tokenizer adds tokens at the end: how many words each block has, and which line said so.
        self._closed: dict[BlockHash, tuple[int, int]] = {}
        table = self._lexicon.table
        self._first_word = table.anchor
        self._first_ids = [*tokenizer.prefix_ids, *table.anchor_first]
        self._stream = WordStream(self._lexicon, corpus, range(len(corpus)), trace_block_size)
        self._code_length = -(-CODE_BITS // self._stream.code_bits)
        room = block_size - len(self._first_ids) - len(tokenizer.suffix_ids)
        if self._code_length > room:
            raise GenerationError.of(
                Code.CODE_TOO_LONG,
                "scenario: tokenizer.block_size",
                f"a code that tells blocks apart needs {self._code_length} tokens, but the first block has {room}",
                hint="Use a larger block size, or a tokenizer with more words of one token.",
            )

    @property
    def one_by_one(self) -> bool:
        """Whether a prompt needs nothing of the prompts before it."""
        return self._proven and not self._tokenizer.suffix_ids

    def build(self, names: Sequence[int], prompt_tokens: int, line: int) -> tuple[str, TokenIds]:
        """The text of a prompt and its ids, ``prompt_tokens`` of them.

        ``names`` are the trace's ids, one a block; tokens after the last named block are this request's own. ``line``
        tells those of different requests apart.

        Raises:
            GenerationError: the prompt is shorter than what every prompt begins with, cannot be made exact, or ends in
                a block that another one continues although the tokenizer closes it.
        """
        closing = self._tokenizer.suffix_ids
        least = len(self._first_ids) + len(closing)
        if prompt_tokens < least:
            raise GenerationError.of(
                Code.PROMPT_TOO_SHORT,
                f"trace line {line}",
                f"{prompt_tokens} tokens cannot hold the special tokens and a word",
                allowed=f"at least {least}",
            )
        chain = block_hashes(names, 1)
        blocks = -(-(prompt_tokens - len(closing)) // self.trace_block_size)
        chain = [*chain[:blocks], *[_own_name(chain, line)] * (blocks - len(chain))]
        if closing:
            self._refuse_closed_blocks(chain[: len(names)], prompt_tokens, line)
        difference: int | None = None

        def write(attempt: int, last: _Written | None) -> _Written | None:
            if difference is not None and not self._write_anew(chain, difference):
                return None
            words, ids = self._written(chain, prompt_tokens - len(closing))
            return " ".join(words), [*ids, *closing]

        def problem_of(written: _Written) -> str:
            nonlocal difference
            text, ids = written
            if not self._check_each:
                return ""
            difference = _first_difference(ids, self._tokenizer.encode_batch([text])[0])
            return "" if difference is None else f"is not encoded as its words are, from token {difference} on"

        text, ids = self._lexicon.exact(f"the prompt of trace line {line}", write, problem_of)
        if not self._proven:
            self._finished.update(chain)
        return text, np.array(ids, dtype=np.uint32)

    def _written(self, chain: Sequence[BlockHash], tokens: int) -> tuple[list[str], list[int]]:
        """Words and ids of a prompt, without what the tokenizer adds at its end."""
        words = [self._first_word]
        ids = list(self._first_ids)
        for number, name in enumerate(chain):
            attempt = self._attempts.get(name) if self._attempts else None
            end = min(tokens, (number + 1) * self.trace_block_size)
            self._append_block(words, ids, name if attempt is None else _written_anew(name, attempt), end - len(ids))
        return words, ids

    def _write_anew(self, chain: Sequence[BlockHash], place: int) -> bool:
        """Give the block of the token ``place`` another text, or the one after it, where no finished prompt has it."""
        number = min(place // self.trace_block_size, len(chain) - 1)
        for name in chain[number : number + 2]:
            if name not in self._finished:
                self._attempts[name] = self._attempts.get(name, 0) + 1
                return True
        return False

    def _refuse_closed_blocks(self, chain: Sequence[BlockHash], prompt_tokens: int, line: int) -> None:
        """A whole block that closing tokens end must not be continued by anybody, before or after."""
        end = prompt_tokens - len(self._tokenizer.suffix_ids)
        for number, name in enumerate(chain[: prompt_tokens // self.trace_block_size]):
            words = min(end, (number + 1) * self.trace_block_size) - number * self.trace_block_size
            known, other = self._closed.setdefault(name, (words, line))
            if known != words:
                ended, longer = (line, other) if words < known else (other, line)
                raise GenerationError.of(
                    Code.TRACE_NOT_EXACT,
                    f"trace line {longer}",
                    f"it continues the block in which line {ended} ends, but there the tokenizer adds tokens at the "
                    "end of the prompt, so the two cannot share it",
                    hint="Tokenizers of language models seldom add tokens at the end: is this the server's own?",
                )

    def _append_block(self, words: list[str], ids: list[int], name: BlockHash, tokens: int) -> None:
        stream = self._stream
        value = int.from_bytes(name[:8], "little")
        start = int.from_bytes(name[8:], "little") % stream.starts
        code = min(self._code_length, tokens)
        for _ in range(code):
            digit = value & stream.code_mask
            value >>= stream.code_bits
            words.append(stream.code_words[digit])
            ids.append(stream.code_ids[digit])
        stream.append(words, ids, start, tokens - code)


def _first_difference(expected: Sequence[int], found: Sequence[int]) -> int | None:
    """The first place in which two lists differ; None where they are equal."""
    if len(expected) == len(found) and all(map(eq, expected, found)):
        return None
    pairs = zip(expected, found, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(expected), len(found)))


def _written_anew(name: BlockHash, attempt: int) -> BlockHash:
    """What stands for a block's name in its next text."""
    return block_hashes([*np.frombuffer(name, dtype="<u4").tolist(), attempt], 5)[0]


def _own_name(chain: Sequence[BlockHash], line: int) -> BlockHash:
    """A name for the tokens that the trace does not name: no other request has it."""
    parent = chain[-1] if chain else ROOT_HASH
    own = [*np.frombuffer(parent, dtype="<u4").tolist(), 0xFFFFFFFF, line]
    return block_hashes(own, len(own))[0]
