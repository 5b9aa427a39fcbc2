"""Whether prompts are encoded as they were put together, and how those that are not are written again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ais_bench_prefix_cache.datasets.text.canonical import Canonical
from ais_bench_prefix_cache.exact_text.token_digests import token_ids_sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ais_bench_prefix_cache.datasets.text.drafts import Draft, DraftWriter
    from ais_bench_prefix_cache.exact_text.lexicon import Lexicon
    from ais_bench_prefix_cache.exact_text.row_text import RowReader
    from ais_bench_prefix_cache.exact_text.seed_codes import SeedCodes


def check_seeds(lexicon: Lexicon, drafts: Sequence[Draft]) -> None:
    """Where a proof holds: re-encode each seed with its joins.

    Raises:
        GenerationError: one is not encoded as its words are.
    """
    encoded = lexicon.tokenizer.encode_plain_batch([draft.window for draft in drafts])
    for draft, ids in zip(drafts, encoded, strict=True):
        if ids != draft.window_ids:
            raise lexicon.not_exact(f"the seed of request {draft.request.index} is not encoded as its words are")


class WholePrompts:
    """Judges whole prompts by their ids, and writes those anew that are not as planned.

    ``used_blocks`` are digests of blocks that no prompt may have after its shared prefix; ``number`` is the first code
    number for corrections; ``reader_of(group)`` makes a reader for suffixes of corrected prompts.
    """

    def __init__(
        self,
        lexicon: Lexicon,
        codes: SeedCodes,
        canonicals: Sequence[Canonical | None],
        writer: DraftWriter,
        reader_of: Callable[[int], RowReader],
        *,
        seed_tokens: int,
        block_size: int,
        used_blocks: set[str],
        number: int,
    ) -> None:
        self._lexicon = lexicon
        self._codes = codes
        self._canonicals = canonicals
        self._writer = writer
        self._reader_of = reader_of
        self._seed_tokens = seed_tokens
        self._block_size = block_size
        self._used_blocks = used_blocks
        self._number = number

    def encode(self, drafts: Sequence[Draft]) -> None:
        """Set the drafts' ``ids``."""
        encoded = self._lexicon.tokenizer.encode_batch([draft.text for draft in drafts])
        for draft, ids in zip(drafts, encoded, strict=True):
            draft.ids = ids

    def check(self, drafts: Iterable[Draft]) -> None:
        """Compare encoded drafts with what was planned.

        Raises:
            GenerationError: one differs.
        """
        for draft in drafts:
            problem = self.problem_of(draft)
            if problem:
                raise self._lexicon.not_exact(f"{_name(draft)} {problem}")

    def problem_of(self, draft: Draft) -> str:
        """How the ids of an encoded draft differ from what was planned, or nothing."""
        ids, shared = draft.ids, draft.request.shared
        canonical = self._canonicals[draft.request.group]
        if shared and (canonical is None or ids[:shared] != canonical.ids[:shared]):
            return "does not begin with its canonical prefix"
        if ids[shared : shared + self._seed_tokens] != draft.seed_ids:
            return "does not hold its seed"
        if len(ids) != draft.request.input_tokens:
            return f"has {len(ids)} tokens instead of {draft.request.input_tokens}"
        return ""

    def made_exact(self, drafts: Sequence[Draft]) -> Iterator[Draft]:
        """Without a proof: each draft, corrected until its text is exact and its first own block is unique.

        Raises:
            GenerationError: one cannot be made exact.
        """
        self.encode(drafts)
        for first in drafts:
            correction = 0

            def write(attempt: int, last: Draft | None, first: Draft = first) -> Draft | None:
                nonlocal correction
                if last is None:
                    return first
                self._number, code = self._codes.next_code(self._number)
                self._number += 1
                if self._number > self._codes.capacity:
                    return None
                # A length that is off by a little is often right after moving the cut by as much.
                correction -= len(last.ids) - first.request.input_tokens
                if attempt % 4 == 0:
                    correction = 0
                again = self._again(first, code, attempt, correction)
                self.encode([again])
                return again

            draft = self._lexicon.exact(_name(first), write, self._problem_or_block)
            self._used_blocks.add(self._own_block(draft))
            draft.request = first.request
            yield draft

    def _problem_or_block(self, draft: Draft) -> str:
        problem = self.problem_of(draft)
        if not problem and self._own_block(draft) in self._used_blocks:
            return "has a seed that is not unique"
        return problem

    def _own_block(self, draft: Draft) -> str:
        shared = draft.request.shared
        return token_ids_sha256(draft.ids[shared : shared + self._block_size])

    def _again(self, draft: Draft, code: int, attempt: int, correction: int) -> Draft:
        """Another prompt for the same request: a new seed, and a suffix from other rows."""
        random_seed = draft.request.random_seed + attempt
        reader = self._reader_of(draft.request.group)
        reader.seek(random_seed)
        words = max(0, draft.natural_suffix_tokens - self._lexicon.after)
        return self._writer.write(
            replace(draft.request, random_seed=random_seed), code, reader, max(correction, -words)
        )


def _name(draft: Draft) -> str:
    return f"the prompt of request {draft.request.index}"
