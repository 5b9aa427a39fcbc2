"""Token-exact prompts from a Plan, a tokenizer and a corpus.

Every prompt is ``canonical prefix · seed · natural suffix``, words joined by single spaces throughout. Where
:mod:`.join_proof` shows that such words encode independently, ids and counts of a prompt are those of its words, and a
prompt costs a few slices. Where it does not, prompts are built the same way, encoded whole and corrected until they are
exact, or the data set is refused. ``docs/exact-prompts.md`` has the argument.

The way of a prompt: :mod:`.row_streams` says which rows it reads, :mod:`.seeds` chooses the codes that make prompts
different, :mod:`.canonical` writes what groups share, :mod:`.drafts` puts prompts together, :mod:`.exactness` checks
them, and :mod:`.draft_ranges` does both for any range of requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from ais_bench_prefix_cache.datasets.text.canonical import empty_prefix, forbid_canonical_blocks, write_canonicals
from ais_bench_prefix_cache.datasets.text.draft_ranges import DraftRanges, PlanRange
from ais_bench_prefix_cache.datasets.text.drafts import Draft, Request
from ais_bench_prefix_cache.datasets.text.prompt_set import BuiltPrompt, WarmupPrompt
from ais_bench_prefix_cache.datasets.text.row_streams import RowStreams
from ais_bench_prefix_cache.datasets.text.seeds import check_short_texts, choose_codes, word_tokens
from ais_bench_prefix_cache.exact_text.lexicon import Lexicon
from ais_bench_prefix_cache.exact_text.token_digests import token_ids_sha256
from ais_bench_prefix_cache.foundation.names import group_name
from ais_bench_prefix_cache.foundation.random_streams import derive_seed

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.corpus import Corpus
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer
    from ais_bench_prefix_cache.planning.plan import Plan
    from ais_bench_prefix_cache.scenario.model import Scenario

VerifyMode = Literal["proof", "full"]


def build_prompt_set(
    scenario: Scenario, plan: Plan, tokenizer: PromptTokenizer, corpus: Corpus, *, verify: VerifyMode = "proof"
) -> AssembledPromptSet:
    """All prompts of a plan, exact to the token.

    ``verify="proof"`` re-encodes every distinct row, every canonical prefix and each prompt's seed with its joins;
    ``"full"`` re-encodes every prompt whole. Both give the same prompts.

    Raises:
        GenerationError: prompts cannot be exact; before the first one, where that can be known.
        ScenarioError: selected rows do not exist.
    """
    return AssembledPromptSet(scenario, plan, tokenizer, corpus, verify)


class AssembledPromptSet:
    """See :class:`~ais_bench_prefix_cache.datasets.text.prompt_set.PromptSet`."""

    def __init__(
        self, scenario: Scenario, plan: Plan, tokenizer: PromptTokenizer, corpus: Corpus, verify: VerifyMode
    ) -> None:
        self._plan = plan
        self._corpus = corpus
        self._random_seed = scenario.run.random_seed
        self._lexicon = lexicon = Lexicon(tokenizer)
        self.proven = lexicon.proof.proven
        """Whether the join proof holds: ranges of requests can then be made one by one."""
        self.encode_whole = verify == "full" or not self.proven
        """Whether every prompt is encoded whole."""

        streams = RowStreams(scenario, corpus, plan.group_count)
        words = word_tokens(plan, lexicon)
        streams.read(lexicon, corpus, plan, words.suffix)
        lexicon.collect_fillers()
        codes = choose_codes(lexicon, plan, words, self._random_seed)
        check_short_texts(lexicon, plan, words, codes)

        canonicals, number = write_canonicals(lexicon, plan, codes, streams, corpus, self._random_seed)
        shared_groups = [canonical for canonical in canonicals if canonical is not None]
        forbid_canonical_blocks(
            codes,
            shared_groups,
            block_size=plan.block_size,
            before=lexicon.before,
            needed=len(plan) + len(shared_groups),
        )
        self.canonical_prefixes = tuple(
            canonical.public if canonical else empty_prefix(group) for group, canonical in enumerate(canonicals)
        )
        self.ranges = DraftRanges(
            lexicon,
            codes,
            canonicals,
            streams,
            seed_tokens=plan.seed_tokens,
            block_size=plan.block_size,
            random_seed=self._random_seed,
        )
        self._used_blocks: set[str] = set()
        if not self.proven:
            self._used_blocks.update(
                token_ids_sha256(block) for canonical in shared_groups for block in canonical.blocks(plan.block_size)
            )
        self.warmup_prompts, self._first_number = self._build_warmups(number)

    def __len__(self) -> int:
        return len(self._plan)

    def __iter__(self) -> Iterator[BuiltPrompt]:
        for drafts in self.drafts():
            yield from map(self._finish, drafts)

    def drafts(self) -> Iterator[list[Draft]]:
        """The plan's prompts, checked, in batches.

        Raises:
            GenerationError: one cannot be made exact.
        """
        (part,) = self.parts(len(self))
        if self.proven:
            yield from self.ranges.proven_drafts(part, encode_whole=self.encode_whole)
            return
        # Numbers that drafts cannot reach: they skip at most the forbidden ones.
        number = self._first_number + len(self) + self.ranges.codes.forbidden
        judge = self.ranges.judge(self._used_blocks, number)
        for drafts in self.ranges.drafts(part, encode_whole=True):
            yield list(judge.made_exact(drafts))

    def row_sha256(self) -> dict[int, str]:
        """The digests of the corpus rows that prompts may use."""
        return {row: self._corpus.row_sha256[row] for row in self._lexicon.rows.slot}

    def parts(self, requests: int) -> Iterator[PlanRange]:
        """The plan in ranges of so many requests."""
        return self.ranges.ranges(self._plan, self._first_number, requests)

    def _build_warmups(self, number: int) -> tuple[tuple[WarmupPrompt, ...], int]:
        """In warm-up mode, one prompt a group: the canonical prefix and a seed. Also the next code number."""
        if self._plan.mode != "warmup":
            return (), number
        ranges = self.ranges
        judge = ranges.judge(set(), 0)
        prompts: list[WarmupPrompt] = []
        for group, canonical in enumerate(ranges.canonicals):
            if canonical is None:
                continue
            shared = len(canonical.ids)
            seed = derive_seed(self._random_seed, "warmup", group)
            request = Request(-1, group, shared, shared + self._plan.seed_tokens, seed)

            def write(attempt: int, last: Draft | None, request: Request = request) -> Draft:
                nonlocal number
                number, code = ranges.codes.next_code(number)
                number += 1
                draft = ranges.writer.write(request, code)
                judge.encode([draft])
                return draft

            draft = self._lexicon.exact(f"the warm-up prompt of {group_name(group)}", write, judge.problem_of)
            self._used_blocks.add(token_ids_sha256(draft.ids[shared : shared + self._plan.block_size]))
            prompts.append(WarmupPrompt(group, draft.text, len(draft.ids), shared))
        return tuple(prompts), number

    def _finish(self, draft: Draft) -> BuiltPrompt:
        seed_sha256, divergence_sha256 = draft.digests(self._plan.block_size)
        rows, digests = draft.used_rows, self._corpus.row_sha256
        return BuiltPrompt(
            sequence_index=draft.request.index,
            text=draft.text,
            actual_input_tokens=draft.request.input_tokens,
            natural_suffix_tokens=draft.natural_suffix_tokens,
            seed_sha256=seed_sha256,
            divergence_block_sha256=divergence_sha256,
            request_random_seed=draft.request.random_seed,
            corpus_indices=rows,
            corpus_sha256=tuple([digests[row] for row in rows]),
        )
