"""Prompts that copy the beginning of earlier ones, exact to the token.

A prompt is *copied prefix · marker · natural text*, words joined by single spaces (``docs/exact-prompts.md``). Which
lengths later prompts copy is known beforehand, so every text has the end of a word at each of them: a copy is a slice
of the parent's text. Every text is encoded whole and compared with its parent before it is handed out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ais_bench_prefix_cache.datasets.copies.copy_plan import COLD, CopyPlan, CopyRules, PrefixAlgorithm, plan_copies
from ais_bench_prefix_cache.exact_text.lexicon import Lexicon
from ais_bench_prefix_cache.exact_text.row_text import RowReader, Unfillable
from ais_bench_prefix_cache.exact_text.seed_markers import SeedMarkers
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import GenerationError
from ais_bench_prefix_cache.foundation.random_streams import RandomStream

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.corpus import Corpus
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer
    from ais_bench_prefix_cache.planning.plan import Int64Column

PROMPTS_ENCODED_AT_ONCE = 64
ROWS_ENCODED_AT_ONCE = 1024
MOST_CORPUS_TOKENS = 1 << 22
"""Corpus text beyond this is not read: it is enough for any tail to begin at another place."""
MOST_UNFILLABLE = 65

TokenIds = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class CopiedPrompt:
    """A checked prompt. ``prefix_tokens`` of it are those of the prompt ``parent`` (-1: none).

    ``seed_tokens`` follow the prefix, at most a block, then ``tail_tokens``; all are 0 for the cold first prompt.
    ``token_ids`` are of the whole text with the special tokens that the endpoint adds.
    """

    index: int
    text: str
    parent: int
    prefix_tokens: int
    seed_tokens: int
    tail_tokens: int
    marker_token_id: int | None
    token_ids: TokenIds


@dataclass
class _Written:
    """A prompt's text with the characters at which a copy of so many tokens ends."""

    text: str
    cuts: dict[int, int]
    marker_ids: tuple[int, ...] = ()
    token_ids: TokenIds = field(default_factory=lambda: np.empty(0, dtype=np.uint32))


class CopiedPrompts:
    """All prompts of a plan, one by one; the texts that later ones still copy are kept, no others."""

    def __init__(
        self,
        input_tokens: Int64Column,
        rate: float,
        *,
        tokenizer: PromptTokenizer,
        corpus: Corpus,
        block_size: int,
        window: int,
        algorithm: PrefixAlgorithm = "uniform",
        exponent: float = 1.0,
        seed: int,
    ) -> None:
        """Plan and encode the corpus. Raises :class:`GenerationError` where prompts cannot be exact."""
        self._tokenizer = tokenizer
        self._block = block_size
        self._seed = seed
        self._lexicon = lexicon = Lexicon(tokenizer)
        self._before, self._after = lexicon.before, lexicon.after
        if block_size <= self._before:
            raise GenerationError.of(
                Code.BLOCK_SIZE_TOO_SMALL,
                "scenario: tokenizer.block_size",
                f"the tokenizer puts {self._before} special token(s) before every prompt, so with blocks of "
                f"{block_size} every prompt would hit them",
                allowed=f"at least {self._before + 1}",
            )
        self._proven = lexicon.proof.proven
        order = RandomStream(seed, "corpus-rows").permutation(len(corpus)).tolist()
        lexicon.read_corpus(corpus, order, tokens=MOST_CORPUS_TOKENS, at_once=ROWS_ENCODED_AT_ONCE)
        lexicon.collect_fillers()
        self._table, self._rows, self._fillers = lexicon.table, lexicon.rows, lexicon.fillers
        self._markers = SeedMarkers(lexicon, prompts=len(input_tokens), block_size=block_size, seed=seed)
        self._check_lengths(input_tokens)
        rules = CopyRules(
            block_size=block_size,
            window=window,
            own_tokens=self._markers.tokens(at_start=False) + self._after + self._least_rest(),
            first_tokens=self._before,
            closing_tokens=self._after + self._least_rest(),
            copy_short=self._markers.single,
        )
        self.plan: CopyPlan = plan_copies(input_tokens, rate, rules, algorithm=algorithm, exponent=exponent, seed=seed)
        self._cuts = _cuts_of(self.plan)
        self._last_use = _last_use(self.plan.parent)

    @property
    def unique_marker_tokens(self) -> bool:
        """Whether every marker is one token that no other prompt's own part begins with."""
        return self._markers.single

    def __len__(self) -> int:
        return len(self.plan.input_tokens)

    def __iter__(self) -> Iterator[CopiedPrompt]:
        reader = RowReader(self._rows, self._fillers, self._cycle)
        kept: dict[int, _Written] = {}
        forget: dict[int, list[int]] = {}
        next_marker = 0
        at_once = PROMPTS_ENCODED_AT_ONCE if self._proven else 1
        for start in range(0, len(self), at_once):
            batch = range(start, min(start + at_once, len(self)))
            for index in batch:
                kept[index] = self._write(index, reader, kept, next_marker)
                next_marker += index > 0
                forget.setdefault(max(index, self._last_use[index]), []).append(index)
            encoded = self._tokenizer.encode_batch([kept[index].text for index in batch])
            for index, ids in zip(batch, encoded, strict=True):
                written, next_marker = self._settled(index, ids, reader, kept, next_marker)
                yield self._finish(index, written)
                for done in forget.pop(index, ()):
                    del kept[done]

    # ---- preparation ------------------------------------------------------------------------------------------------

    def _check_lengths(self, input_tokens: Int64Column) -> None:
        least = self._before + self._after + 1
        if len(input_tokens) > 1:
            markers = self._markers
            least = max(least, *(markers.tokens(at_start=at_start) + self._after for at_start in (True, False)))
            least = max(least, self._before + self._after + markers.tokens(at_start=True))
        shortest = int(input_tokens.min())
        if shortest < least:
            raise GenerationError.of(
                Code.PROMPT_TOO_SHORT,
                "input lengths",
                f"a prompt of {shortest} token(s) has no room for {self._before} special token(s) before it, "
                f"{self._after} after it and a word that tells it from the others",
                allowed=f"at least {least}",
            )

    def _least_rest(self) -> int:
        """From how many tokens on words add up to any number; 0 where that is one."""
        gaps = [count for count in range(1, MOST_UNFILLABLE) if not self._fillers.can_make(count)]
        return max(gaps) + 1 if gaps else 0

    def _cycle(self, number: int) -> list[int]:
        slots = list(self._rows.slot.values())
        return [slots[place] for place in RandomStream(self._seed, "tails", number).permutation(len(slots)).tolist()]

    # ---- one prompt -------------------------------------------------------------------------------------------------

    def _write(self, index: int, reader: RowReader, kept: dict[int, _Written], marker: int) -> _Written:
        """The text of a prompt, with the end of a word at every length that later prompts copy."""
        prefix, parent = int(self.plan.prefix_tokens[index]), int(self.plan.parent[index])
        end = int(self.plan.input_tokens[index]) - self._after
        own_cuts = [cut for cut in self._cuts[index] if cut > prefix]
        stops = {*own_cuts, end}
        marker_ids: tuple[int, ...] = ()
        cuts: dict[int, int] = {}
        reader.skip_rest_of_row()
        if parent == COLD:
            opening, position = self._opening_word(reader, min(stops))
            parts = [opening]
        else:
            at_start = prefix == 0
            marker_ids = self._markers.ids(marker, at_start=at_start)
            position = max(prefix, self._before) + len(marker_ids)
            parts = [self._markers.text(marker, at_start=at_start)]
            if prefix:
                copied = kept[parent]
                parts.insert(0, copied.text[: copied.cuts[prefix]])
                cuts = {cut: copied.cuts[cut] for cut in self._cuts[index] if cut <= prefix}
        characters = sum(map(len, parts)) + len(parts) - 1
        for stop in sorted(stops):
            try:
                text = reader.take(stop - position, index)
            except Unfillable as error:
                raise self._lexicon.not_reachable(f"prompt {index}", error.tokens) from error
            rendered = self._rows.render(text)
            if rendered:
                parts.append(rendered)
                characters += 1 + len(rendered)
            position = stop
            cuts[stop] = characters
        return _Written(" ".join(parts), cuts, marker_ids)

    def _opening_word(self, reader: RowReader, first_stop: int) -> tuple[str, int]:
        """The cold prompt's first word, and the tokens up to its end: at the start of a text it has its own ids."""
        room = first_stop - self._before
        words = reader.next_words()[:64]
        for skipped, ids in enumerate(self._table.first_ids(words), start=1):
            if ids and len(ids) <= room and self._fillers.can_make(room - len(ids)):
                reader.skip_words(skipped)
                return self._table.texts[words[skipped - 1]], self._before + len(ids)
        candidates = self._table.usable()[:4096]
        for word, ids in zip(candidates, self._table.first_ids(candidates), strict=True):
            if ids and len(ids) <= room and self._fillers.can_make(room - len(ids)):
                return self._table.texts[word], self._before + len(ids)
        raise self._lexicon.not_reachable("the start of the first prompt", room)

    def _settled(
        self, index: int, ids: list[int], reader: RowReader, kept: dict[int, _Written], next_marker: int
    ) -> tuple[_Written, int]:
        """The prompt with its ids, written again with other words until it is exact where nothing is proven."""

        def write(attempt: int, last: _Written | None) -> _Written | None:
            nonlocal next_marker, ids
            if last is not None:
                if next_marker >= self._markers.count:
                    return None
                kept[index] = self._write(index, reader, kept, next_marker)
                next_marker += 1
                (ids,) = self._tokenizer.encode_batch([kept[index].text])
            kept[index].token_ids = np.asarray(ids, dtype=np.uint32)
            return kept[index]

        def problem_of(written: _Written) -> str:
            return self._problem_of(index, written, kept)

        return self._lexicon.exact(f"prompt {index}", write, problem_of), next_marker

    def _problem_of(self, index: int, written: _Written, kept: dict[int, _Written]) -> str:
        """How the ids of the whole text differ from what was planned, or nothing."""
        ids = written.token_ids
        prefix, parent = int(self.plan.prefix_tokens[index]), int(self.plan.parent[index])
        wanted = int(self.plan.input_tokens[index])
        if len(ids) != wanted:
            return f"has {len(ids)} tokens instead of {wanted}"
        if prefix and not np.array_equal(ids[:prefix], kept[parent].token_ids[:prefix]):
            return f"does not begin with the first {prefix} tokens of prompt {parent}"
        start = max(prefix, self._before)
        if parent != COLD and tuple(ids[start : start + len(written.marker_ids)].tolist()) != written.marker_ids:
            return "does not hold its seed marker"
        return "" if self._proven else self._cut_problem(index, written)

    def _cut_problem(self, index: int, written: _Written) -> str:
        """Without a proof: whether the text, cut where later prompts will copy it, keeps its ids before a word."""
        cuts = [cut for cut in self._cuts[index] if cut > int(self.plan.prefix_tokens[index])]
        texts = [f"{written.text[: written.cuts[cut]]} {self._table.anchor}" for cut in cuts]
        for cut, ids in zip(cuts, self._tokenizer.encode_batch(texts), strict=True):
            if ids[:cut] != written.token_ids[:cut].tolist():
                return f"is not the same, cut at {cut} tokens, before another word"
        return ""

    def _finish(self, index: int, written: _Written) -> CopiedPrompt:
        prefix, parent = int(self.plan.prefix_tokens[index]), int(self.plan.parent[index])
        own = 0 if parent == COLD else len(written.token_ids) - prefix
        seed = min(self._block, own)
        return CopiedPrompt(
            index=index,
            text=written.text,
            parent=parent,
            prefix_tokens=prefix,
            seed_tokens=seed,
            tail_tokens=own - seed,
            marker_token_id=written.marker_ids[0] if written.marker_ids else None,
            token_ids=written.token_ids,
        )


def _cuts_of(plan: CopyPlan) -> list[tuple[int, ...]]:
    """For each prompt, the lengths at which its text must be cut: its children's prefixes, and theirs within them."""
    cuts: list[set[int]] = [set() for _ in range(len(plan.input_tokens))]
    parents, prefixes = plan.parent.tolist(), plan.prefix_tokens.tolist()
    for index in range(len(cuts) - 1, 0, -1):
        prefix = prefixes[index]
        if prefix:
            inherited = cuts[parents[index]]
            inherited.add(prefix)
            inherited.update([cut for cut in cuts[index] if cut <= prefix])
    return [tuple(sorted(each)) for each in cuts]


def _last_use(parent: Int64Column) -> list[int]:
    """For each prompt the last one that copies it (0 where none does)."""
    last = [0] * len(parent)
    for index, source in enumerate(parent.tolist()):
        if source != COLD:
            last[source] = index
    return last
