"""The words that exact texts are made of, opened once for every builder of prompts.

A :class:`Lexicon` holds a tokenizer's words with their ids, the rows of a corpus as words, and words that fill what is
left of a length; it words the two refusals that every builder shares, and repeats what is not exact yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ais_bench_prefix_cache.exact_text.exact_rows import MAX_ATTEMPTS, UnlikeRow, collect_fillers, settle_rows
from ais_bench_prefix_cache.exact_text.row_text import EncodedRows, Fillers
from ais_bench_prefix_cache.exact_text.words import TextCleaner, WordTable, vocabulary_words
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import GenerationError

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.corpus import Corpus
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer

ROWS_ENCODED_AT_ONCE = 4096
CORPUS_NAME = "scenario: corpus.path"

Draft = TypeVar("Draft")


class Lexicon:
    """One tokenizer's words, the rows read with :meth:`read`, and the fillers that are then collected from them.

    ``before`` and ``after`` are how many special tokens the endpoint puts around every text. ``tokenizer_name`` and
    ``lengths_name`` are where errors say that the tokenizer, and lengths that no words add up to, are at fault.

    Raises:
        GenerationError: the tokenizer joins words across a space.
    """

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        *,
        tokenizer_name: str = "scenario: tokenizer.path",
        lengths_name: str = CORPUS_NAME,
    ) -> None:
        self.tokenizer = tokenizer
        self.proof = tokenizer.join_proof
        self.before, self.after = len(tokenizer.prefix_ids), len(tokenizer.suffix_ids)
        self.cleaner = TextCleaner(tokenizer)
        self.table = WordTable(tokenizer, self.cleaner)
        self.rows = EncodedRows(self.table, self.cleaner)
        self.fillers = Fillers(self.table, ())
        self._tokenizer_name, self._lengths_name = tokenizer_name, lengths_name

    def collect_fillers(self) -> None:
        """Set :attr:`fillers`, words for every length, from the rows read so far."""
        self.fillers = collect_fillers(self.table, self.tokenizer, self.cleaner)

    def add_vocabulary(self, *, common: bool, most: int | None = None) -> list[str]:
        """Encode words of the vocabulary too, and return them (see :func:`~.words.vocabulary_words`)."""
        words = vocabulary_words(self.tokenizer, self.cleaner, common=common, most=most)
        self.table.add(words)
        return words

    def read(
        self,
        texts: Sequence[str],
        order: Sequence[int],
        *,
        tokens: int | None = None,
        starts: int = 0,
        at_once: int = ROWS_ENCODED_AT_ONCE,
    ) -> int:
        """Encode the rows ``texts[order[0]]``, ``texts[order[1]]`` …; returns how many tokens they hold.

        All of them, or as many as ``starts`` texts of ``tokens`` tokens in sum can use: each text begins at the start
        of a row and leaves the rest of its last one.

        Raises:
            GenerationError: a row is not encoded as its words are although that was proven.
        """
        slot, tokens_of = self.rows.slot, self.rows.tokens
        held = longest = 0
        for start in range(0, len(order), at_once):
            part = order[start : start + at_once]
            known = len(tokens_of)
            self.rows.add(part, [texts[row] for row in part])
            try:
                settle_rows(self.rows, self.tokenizer, known, proven=self.proof.proven)
            except UnlikeRow as error:
                raise self.not_exact(str(error)) from error
            counts = [tokens_of[slot[row]] for row in part if row in slot]
            held += sum(counts)
            longest = max([longest, *counts])
            if tokens is not None and held > tokens + starts * longest:
                break
        return held

    def read_corpus(
        self,
        corpus: Corpus,
        order: Sequence[int],
        *,
        tokens: int | None = None,
        starts: int = 0,
        at_once: int = ROWS_ENCODED_AT_ONCE,
    ) -> None:
        """:meth:`read` rows of a corpus.

        Raises:
            GenerationError: as :meth:`read` does, and where no row has a usable word.
        """
        if self.read(corpus.rows, order, tokens=tokens, starts=starts, at_once=at_once):
            return
        reason = "" if self.proof.proven else f"; {self.proof.reason}"
        raise GenerationError.of(
            Code.CORPUS_NOT_USABLE,
            CORPUS_NAME,
            f"no selected row of {str(corpus.path)!r} has a word that this tokenizer encodes the same in every place"
            f"{reason}",
        )

    # ---- refusals ---------------------------------------------------------------------------------------------------

    def not_exact(self, what: str) -> GenerationError:
        """``what`` was encoded otherwise than planned."""
        return GenerationError.of(
            Code.PROMPTS_NOT_EXACT,
            self._tokenizer_name,
            f"{what}, so its length cannot be guaranteed ({self.proof.reason})",
            hint="docs/exact-prompts.md says which tokenizers can be made exact.",
        )

    def not_reachable(self, what: str, tokens: int) -> GenerationError:
        """No words add up to the ``tokens`` that ``what`` needs."""
        return GenerationError.of(
            Code.LENGTH_NOT_REACHABLE,
            self._lengths_name,
            f"{what} needs a text of exactly {tokens} token(s), and neither the corpus nor the vocabulary of the "
            "tokenizer has words of that many",
            hint="Use longer prompts, a larger block size or another corpus.",
        )

    def exact(
        self, what: str, write: Callable[[int, Draft | None], Draft | None], problem_of: Callable[[Draft], str]
    ) -> Draft:
        """The first draft without a problem; see :func:`made_exact`. Where a proof holds there is one attempt only.

        Raises:
            GenerationError: ``PROMPTS_NOT_EXACT`` with ``what`` and the last draft's problem.
        """
        attempts = 1 if self.proof.proven else MAX_ATTEMPTS
        return made_exact(write, problem_of, lambda problem: self.not_exact(f"{what} {problem}"), attempts)


def made_exact(
    write: Callable[[int, Draft | None], Draft | None],
    problem_of: Callable[[Draft], str],
    refusal: Callable[[str], GenerationError],
    attempts: int = MAX_ATTEMPTS,
) -> Draft:
    """The first draft without a problem.

    ``write(attempt, last)`` writes the next draft, given its number from 0 on and the draft before it; None where there
    is no other. ``problem_of(draft)`` says what is wrong with it, or nothing.

    Raises:
        GenerationError: what ``refusal`` makes of the last problem.
    """
    draft: Draft | None = None
    problem = ""
    for attempt in range(attempts):
        draft = write(attempt, draft)
        if draft is None:
            break
        problem = problem_of(draft)
        if not problem:
            return draft
    raise refusal(problem)
