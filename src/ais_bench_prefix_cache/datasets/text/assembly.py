"""Token-exact prompts from a Plan, a tokenizer and a corpus.

Every prompt is ``canonical prefix · seed · natural suffix``, words joined by single spaces throughout. Where
:mod:`.join_proof` shows that such words encode independently, ids and counts of a prompt are those of its words, and a
prompt costs a few slices. Where it does not, prompts are built the same way, encoded whole and corrected until they are
exact, or the data set is refused. ``docs/exact-prompts.md`` has the argument.

The way of a prompt: :mod:`.row_streams` says which rows it reads, :mod:`.seeds` chooses the codes that make prompts
different, :mod:`.canonical` writes what groups share, :mod:`.drafts` puts prompts together, :mod:`.exactness` checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal

import numpy as np

from ais_bench_prefix_cache.datasets.text.canonical import empty_prefix, forbid_canonical_blocks, write_canonicals
from ais_bench_prefix_cache.datasets.text.drafts import Draft, DraftWriter, Request
from ais_bench_prefix_cache.datasets.text.exactness import WholePrompts, check_seeds
from ais_bench_prefix_cache.datasets.text.prompt_set import BuiltPrompt, PromptSet, WarmupPrompt
from ais_bench_prefix_cache.datasets.text.request_seeds import request_random_seed
from ais_bench_prefix_cache.datasets.text.row_streams import RowStreams
from ais_bench_prefix_cache.datasets.text.seeds import check_short_texts, choose_codes, word_tokens
from ais_bench_prefix_cache.exact_text.lexicon import Lexicon
from ais_bench_prefix_cache.exact_text.row_text import RowReader
from ais_bench_prefix_cache.exact_text.token_digests import token_ids_sha256
from ais_bench_prefix_cache.foundation.names import group_name
from ais_bench_prefix_cache.foundation.random_streams import derive_seed

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.corpus import Corpus
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer
    from ais_bench_prefix_cache.planning.plan import Plan
    from ais_bench_prefix_cache.scenario.model import Scenario

VerifyMode = Literal["proof", "full"]

PROMPTS_CHECKED_AT_ONCE = 512
TOKENS_ENCODED_AT_ONCE = 1 << 18


def build_prompt_set(
    scenario: Scenario, plan: Plan, tokenizer: PromptTokenizer, corpus: Corpus, *, verify: VerifyMode = "proof"
) -> PromptSet:
    """All prompts of a plan, exact to the token.

    ``verify="proof"`` re-encodes every distinct row, every canonical prefix and each prompt's seed with its joins;
    ``"full"`` re-encodes every prompt whole. Both give the same prompts.

    Raises:
        GenerationError: prompts cannot be exact; before the first one, where that can be known.
        ScenarioError: selected rows do not exist.
    """
    return _AssembledPromptSet(scenario, plan, tokenizer, corpus, verify)


class _AssembledPromptSet:
    """See :class:`~ais_bench_prefix_cache.datasets.text.prompt_set.PromptSet`."""

    def __init__(
        self, scenario: Scenario, plan: Plan, tokenizer: PromptTokenizer, corpus: Corpus, verify: VerifyMode
    ) -> None:
        self._plan = plan
        self._corpus = corpus
        self._random_seed = scenario.run.random_seed
        self._lexicon = lexicon = Lexicon(tokenizer)
        self._proven = lexicon.proof.proven
        self._encode_whole = verify == "full" or not self._proven

        self._streams = RowStreams(scenario, corpus, plan.group_count)
        words = word_tokens(plan, lexicon)
        self._streams.read(lexicon, corpus, plan, words.suffix)
        lexicon.collect_fillers()
        self._codes = choose_codes(lexicon, plan, words, self._random_seed)
        check_short_texts(lexicon, plan, words, self._codes)

        fill_readers = [self._streams.reader(lexicon, stream, reshuffle=False) for stream in range(len(self._streams))]
        fill_reader_of_group = [fill_readers[stream] for stream in self._streams.of_group]
        self._canonicals, number = write_canonicals(
            lexicon, plan, self._codes, fill_reader_of_group, corpus, self._random_seed
        )
        shared_groups = [canonical for canonical in self._canonicals if canonical is not None]
        forbid_canonical_blocks(
            self._codes,
            shared_groups,
            block_size=plan.block_size,
            before=lexicon.before,
            needed=len(plan) + len(shared_groups),
        )
        self.canonical_prefixes = tuple(
            canonical.public if canonical else empty_prefix(group) for group, canonical in enumerate(self._canonicals)
        )
        self._writer = DraftWriter(lexicon, self._codes, self._canonicals, fill_reader_of_group, plan.seed_tokens)
        self._used_blocks: set[str] = set()
        if not self._proven:
            self._used_blocks.update(
                token_ids_sha256(block) for canonical in shared_groups for block in canonical.blocks(plan.block_size)
            )
        self.warmup_prompts, self._first_number = self._build_warmups(number)

    def __len__(self) -> int:
        return len(self._plan)

    def _whole_prompts(self, number: int) -> WholePrompts:
        """A judge of whole prompts that corrects with code numbers from ``number`` on."""

        def reader_of(group: int) -> RowReader:
            return self._streams.reader(self._lexicon, self._streams.of_group[group], reshuffle=False)

        return WholePrompts(
            self._lexicon,
            self._codes,
            self._canonicals,
            self._writer,
            reader_of,
            seed_tokens=self._plan.seed_tokens,
            block_size=self._plan.block_size,
            used_blocks=set(self._used_blocks),
            number=number,
        )

    def _build_warmups(self, number: int) -> tuple[tuple[WarmupPrompt, ...], int]:
        """In warm-up mode, one prompt a group: the canonical prefix and a seed. Also the next code number."""
        if self._plan.mode != "warmup":
            return (), number
        judge = self._whole_prompts(number)
        prompts: list[WarmupPrompt] = []
        for group, canonical in enumerate(self._canonicals):
            if canonical is None:
                continue
            shared = len(canonical.ids)
            seed = derive_seed(self._random_seed, "warmup", group)
            request = Request(-1, group, shared, shared + self._plan.seed_tokens, seed)

            def write(attempt: int, last: Draft | None, request: Request = request) -> Draft:
                nonlocal number
                number, code = self._codes.next_code(number)
                number += 1
                draft = self._writer.write(request, code)
                judge.encode([draft])
                return draft

            draft = self._lexicon.exact(f"the warm-up prompt of {group_name(group)}", write, judge.problem_of)
            self._used_blocks.add(token_ids_sha256(draft.ids[shared : shared + self._plan.block_size]))
            prompts.append(WarmupPrompt(group, draft.text, len(draft.ids), shared))
        return tuple(prompts), number

    def __iter__(self) -> Iterator[BuiltPrompt]:
        # Numbers that drafts cannot reach: they skip at most the forbidden ones.
        judge = self._whole_prompts(self._first_number + len(self._plan) + self._codes.forbidden)
        if self._encode_whole and self._proven:
            yield from self._checked_beside(judge)
            return
        for drafts in self._drafts():
            if self._proven:
                check_seeds(self._lexicon, drafts)
                yield from map(self._finish, drafts)
            else:
                yield from map(self._finish, judge.made_exact(drafts))

    def _checked_beside(self, judge: WholePrompts) -> Iterator[BuiltPrompt]:
        """The prompts, each encoded whole, while those before it are used and those after it are made.

        Encoding needs no interpreter lock: one thread is enough for all cores to work.
        """
        waiting: tuple[list[Draft], Future[None]] | None = None
        with ThreadPoolExecutor(1) as encoder:
            for drafts in self._drafts():
                encoded = encoder.submit(judge.encode, drafts)
                if waiting is not None:
                    yield from self._checked(judge, *waiting)
                waiting = drafts, encoded
            if waiting is not None:
                yield from self._checked(judge, *waiting)

    def _checked(self, judge: WholePrompts, drafts: list[Draft], encoded: Future[None]) -> Iterator[BuiltPrompt]:
        encoded.result()
        judge.check(drafts)
        yield from map(self._finish, drafts)

    def _drafts(self) -> Iterator[list[Draft]]:
        """The plan's prompts as they are put together, in batches that are checked at once."""
        plan, streams = self._plan, self._streams
        readers = {
            stream: streams.reader(self._lexicon, stream, reshuffle=True) for stream in sorted({0, *streams.of_group})
        }
        number = self._first_number
        start = 0
        while start < len(plan):
            stop = self._batch_end(start)
            drafts: list[Draft] = []
            columns = zip(
                range(start, stop),
                plan.group[start:stop].tolist(),
                plan.shared_prefix_tokens[start:stop].tolist(),
                plan.input_tokens[start:stop].tolist(),
                plan.generation_index[start:stop].tolist(),
                strict=True,
            )
            for index, group, shared, input_tokens, generation_index in columns:
                random_seed = request_random_seed(self._random_seed, generation_index)
                number, code = self._codes.next_code(number)
                number += 1
                request = Request(index, group, shared, input_tokens, random_seed)
                drafts.append(self._writer.write(request, code, readers[streams.of_group[group]]))
            yield drafts
            start = stop

    def _batch_end(self, start: int) -> int:
        if not self._encode_whole:
            return min(start + PROMPTS_CHECKED_AT_ONCE, len(self._plan))
        sums = np.cumsum(self._plan.input_tokens[start : start + PROMPTS_CHECKED_AT_ONCE])
        return min(start + max(1, int(np.searchsorted(sums, TOKENS_ENCODED_AT_ONCE))), len(self._plan))

    def _finish(self, draft: Draft) -> BuiltPrompt:
        seed_sha256 = token_ids_sha256(draft.seed_ids)
        block_size = self._plan.block_size
        divergence = (
            seed_sha256 if block_size == self._plan.seed_tokens else token_ids_sha256(draft.seed_ids[:block_size])
        )
        rows, digests = draft.used_rows, self._corpus.row_sha256
        return BuiltPrompt(
            sequence_index=draft.request.index,
            text=draft.text,
            actual_input_tokens=draft.request.input_tokens,
            natural_suffix_tokens=draft.natural_suffix_tokens,
            seed_sha256=seed_sha256,
            divergence_block_sha256=divergence,
            request_random_seed=draft.request.random_seed,
            corpus_indices=rows,
            corpus_sha256=tuple([digests[row] for row in rows]),
        )
