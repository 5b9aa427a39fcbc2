"""Token-exact prompts from a Plan, a tokenizer and a corpus.

Every prompt is ``canonical prefix · seed · natural suffix``, words joined by single spaces throughout. Where
:mod:`.join_proof` shows that such words encode independently, ids and counts of a prompt are those of its words, and a
prompt costs a few slices. Where it does not, prompts are built the same way, encoded whole and corrected until they are
exact, or the data set is refused. ``docs/exact-prompts.md`` has the argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from ais_bench_prefix_cache.datasets.text.prompt_set import BuiltPrompt, CanonicalPrefix, PromptSet, WarmupPrompt
from ais_bench_prefix_cache.datasets.text.request_seeds import request_random_seed
from ais_bench_prefix_cache.exact_text.corpus import RowSelection, select_rows
from ais_bench_prefix_cache.exact_text.exact_rows import MAX_ATTEMPTS, UnlikeRow, collect_fillers, settle_rows
from ais_bench_prefix_cache.exact_text.join_proof import JoinProof
from ais_bench_prefix_cache.exact_text.row_text import EncodedRows, RowReader, Text, Unfillable
from ais_bench_prefix_cache.exact_text.seed_codes import Alphabet, SeedCodes, find_alphabets
from ais_bench_prefix_cache.exact_text.token_digests import token_ids_sha256
from ais_bench_prefix_cache.exact_text.words import MAX_VOCABULARY_WORDS, TextCleaner, WordTable, vocabulary_words
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import GenerationError
from ais_bench_prefix_cache.foundation.names import group_name
from ais_bench_prefix_cache.foundation.random_streams import derive_seed

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.corpus import Corpus
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer
    from ais_bench_prefix_cache.planning.plan import Int64Column, Plan
    from ais_bench_prefix_cache.scenario.model import Scenario

VerifyMode = Literal["proof", "full"]

ROWS_ENCODED_AT_ONCE = 4096
PROMPTS_CHECKED_AT_ONCE = 512
TOKENS_ENCODED_AT_ONCE = 1 << 18
MAX_CANDIDATES = 2048
"""Words of the corpus that are examined for the seeds' alphabet, those of few tokens first."""
SMALL_COUNT = 256
"""Only sums below this are examined for being reachable with the words at hand; beyond it they always are."""


def build_prompt_set(
    scenario: Scenario, plan: Plan, tokenizer: PromptTokenizer, corpus: Corpus, *, verify: VerifyMode = "proof"
) -> PromptSet:
    """All prompts of a plan, exact to the token.

    ``verify="proof"`` re-encodes every distinct row, every canonical prefix and each prompt's seed with its joins;
    ``"full"`` re-encodes every prompt whole. Both give the same prompts. Before the first prompt, raises
    :class:`GenerationError` if they cannot be exact, :class:`ScenarioError` for selected rows that do not exist.
    """
    return _AssembledPromptSet(scenario, plan, tokenizer, corpus, verify)


@dataclass(frozen=True)
class _Cut:
    """Where a canonical prefix may end: characters of its text, and its last word."""

    characters: int
    last_word: int


@dataclass(frozen=True)
class _Canonical:
    public: CanonicalPrefix
    ids: list[int]
    cuts: dict[int, _Cut]


@dataclass
class _Draft:
    """A prompt before it is checked. ``seed_ids`` are those expected at the ``seed_tokens`` after the shared prefix."""

    sequence_index: int
    group: int
    shared: int
    input_tokens: int
    natural_suffix_tokens: int
    text: str
    seed_ids: list[int]
    window: str
    window_ids: list[int]
    rows: tuple[int, ...]
    request_random_seed: int


class _AssembledPromptSet:
    """See :class:`~ais_bench_prefix_cache.datasets.text.prompt_set.PromptSet`."""

    def __init__(
        self, scenario: Scenario, plan: Plan, tokenizer: PromptTokenizer, corpus: Corpus, verify: VerifyMode
    ) -> None:
        self._plan = plan
        self._tokenizer = tokenizer
        self._corpus = corpus
        self._random_seed = scenario.run.random_seed
        self._block = plan.block_size
        self._seed_tokens = plan.seed_tokens
        self._before = len(tokenizer.prefix_ids)
        self._after = len(tokenizer.suffix_ids)
        self.proof: JoinProof = tokenizer.join_proof
        self._verify_whole = verify == "full" or not self.proof.proven

        self._cleaner = TextCleaner(tokenizer)
        self._table = WordTable(tokenizer, self._cleaner)
        self._rows = EncodedRows(self._table, self._cleaner)
        self._selections, self._stream_of_group = self._select(scenario)
        self._suffix_text, self._seed_text = self._text_lengths()
        self._encode_rows()
        self._fillers = collect_fillers(self._table, self._tokenizer, self._cleaner)
        self._codes = self._choose_codes()
        self._check_short_texts()
        self._fill_readers = [self._reader(stream, reshuffle=False) for stream in range(len(self._selections))]

        numbers = 0
        self._canonicals: list[_Canonical | None] = []
        for group in range(plan.group_count):
            canonical, numbers = self._build_canonical(group, numbers)
            self._canonicals.append(canonical)
        self._forbid_canonical_blocks()
        self.canonical_prefixes = tuple(
            canonical.public if canonical else _empty_prefix(group) for group, canonical in enumerate(self._canonicals)
        )
        self._used_blocks = self._canonical_block_digests() if not self.proof.proven else set()
        self.warmup_prompts, self._first_number = self._build_warmups(numbers)

    def __len__(self) -> int:
        return len(self._plan)

    # ---- what the plan asks for, in words' tokens -------------------------------------------------------------------

    def _text_lengths(self) -> tuple[Int64Column, Int64Column]:
        """Tokens of words in each request's suffix and seed: positions less the special tokens that lie there."""
        plan, before, after = self._plan, self._before, self._after
        if self._block <= before:
            raise GenerationError.of(
                Code.BLOCK_SIZE_TOO_SMALL,
                "scenario: tokenizer.block_size",
                f"the tokenizer puts {before} special token(s) before every prompt, so with blocks of {self._block} "
                "the first block of all prompts is the same and every request hits it",
                allowed=f"a block size of at least {before + 1}",
            )
        natural = plan.input_tokens - plan.shared_prefix_tokens - self._seed_tokens
        if natural.size and int(natural.min()) < 0:
            index = int(natural.argmin())
            raise GenerationError.of(
                Code.PLAN_TOO_SHORT,
                f"request {index}",
                f"{int(plan.input_tokens[index])} tokens do not hold {int(plan.shared_prefix_tokens[index])} shared "
                f"and {self._seed_tokens} seed tokens",
            )
        suffix = np.maximum(natural - after, 0)
        seed = self._seed_tokens - np.where(plan.shared_prefix_tokens == 0, before, 0) - np.maximum(after - natural, 0)
        return suffix, seed

    def _select(self, scenario: Scenario) -> tuple[list[RowSelection], list[int]]:
        """The row selections, the common one first, and which of them each group reads."""
        selections = [
            select_rows(
                self._corpus,
                scenario.corpus.selection,
                random_seed=self._random_seed,
                labels=("corpus",),
                where="scenario: corpus.selection",
            )
        ]
        stream_of_group = [0] * self._plan.group_count
        for group, override in sorted(scenario.prefix_cache.groups.overrides.items()):
            if override.corpus_selection is not None and group < self._plan.group_count:
                stream_of_group[group] = len(selections)
                selections.append(
                    select_rows(
                        self._corpus,
                        override.corpus_selection,
                        random_seed=self._random_seed,
                        labels=("corpus", group),
                        where=f"scenario: prefix_cache.groups.overrides.{group_name(group)}.corpus_selection",
                    )
                )
        return selections, stream_of_group

    # ---- pieces -----------------------------------------------------------------------------------------------------

    def _encode_rows(self) -> None:
        """Encode as many rows of each selection as its requests can use, once."""
        stream_of_request = np.asarray(self._stream_of_group, dtype=np.int64)[self._plan.group]
        for stream, selection in enumerate(self._selections):
            mine = stream_of_request == stream
            requests = int(mine.sum())
            if not requests and stream:
                continue
            wanted = int(self._suffix_text[mine].sum())
            order = list(dict.fromkeys(selection.cycle(0)))
            tokens = longest = 0
            for start in range(0, len(order), ROWS_ENCODED_AT_ONCE):
                part = order[start : start + ROWS_ENCODED_AT_ONCE]
                known = len(self._rows.tokens)
                self._rows.add(part, [self._corpus.rows[row] for row in part])
                try:
                    settle_rows(self._rows, self._tokenizer, known, proven=self.proof.proven)
                except UnlikeRow as error:
                    raise self._not_exact(f"corpus row {error.row} is not encoded as its words are") from error
                slots = [self._rows.slot[row] for row in part if row in self._rows.slot]
                tokens += sum(self._rows.tokens[slot] for slot in slots)
                longest = max(longest, max((self._rows.tokens[slot] for slot in slots), default=0))
                # Each request begins at the start of a row and leaves the rest of its last one.
                if tokens > wanted + requests * longest:
                    break
            if not tokens:
                reason = "" if self.proof.proven else f"; {self.proof.reason}"
                raise GenerationError.of(
                    Code.CORPUS_NOT_USABLE,
                    "scenario: corpus.path",
                    f"no selected row of {str(self._corpus.path)!r} has a word that this tokenizer encodes the same in "
                    f"every place{reason}",
                )

    def _choose_codes(self) -> SeedCodes:
        """Words and digits for globally unique seeds that fit into the first block after every shared prefix."""
        plan, block = self._plan, self._block
        shares = plan.shared_prefix_tokens > 0
        room_middle = [min(block, int(v)) for v in np.unique(self._seed_text[shares])]
        room_first = [min(block - self._before, int(v)) for v in np.unique(self._seed_text[~shares])]
        canonical = plan.canonical_prefix_tokens
        groups = int((canonical > 0).sum())
        if groups:
            room_first.append(block - self._before)
            room_middle.append(min(block, self._seed_tokens - self._after))
        wanted = 2 * groups + len(plan) + int(canonical.sum()) // block
        best: SeedCodes | None = None
        # Words of the corpus suffice unless blocks are tiny; then the vocabulary's common words, then as many as should
        # do, then all of them.
        for step, most in enumerate((0, MAX_VOCABULARY_WORDS, max(4 * MAX_VOCABULARY_WORDS, 8 * wanted), None)):
            if step:
                self._table.add(vocabulary_words(self._tokenizer, self._cleaner, common=step == 1, most=most))
            candidates = self._table.usable()
            if not step:
                counts, texts = self._table.counts, self._table.texts
                candidates.sort(key=lambda n: (counts[n], not texts[n].isalpha(), len(texts[n]) < 3))
                del candidates[MAX_CANDIDATES:]
            alphabets = find_alphabets(self._table, candidates, random_seed=self._random_seed)
            for alphabet in sorted(alphabets, key=lambda a: (a.middle_tokens + a.first_tokens, -len(a.words))):
                codes = self._fitting_codes(alphabet, wanted, room_first, room_middle)
                if codes is not None and (best is None or codes.capacity > best.capacity):
                    best = codes
                if codes is not None and codes.capacity >= 2 * wanted:
                    return codes
        if best is None:
            raise GenerationError.of(
                Code.SEED_TOO_SHORT,
                "scenario: prefix_cache.seed_blocks",
                f"a seed of {self._seed_tokens} tokens in blocks of {block} has no room for a word that tells requests "
                f"apart, with {self._before} special token(s) before and {self._after} after every prompt",
                hint="Use a larger block size, or one more seed block.",
            )
        return best

    def _fitting_codes(
        self, alphabet: Alphabet, wanted: int, room_first: list[int], room_middle: list[int]
    ) -> SeedCodes | None:
        """The shortest codes that suffice, or the longest that fit, such that the rest of the seed can be filled."""
        found: SeedCodes | None = None
        capacity, digits = 1, 0
        while True:
            digits += 1
            capacity *= len(alphabet.words)
            middle = digits * alphabet.middle_tokens
            first = middle - alphabet.middle_tokens + alphabet.first_tokens
            if any(first > room for room in room_first) or any(middle > room for room in room_middle):
                return found
            rests = {int(v) for v in np.unique(self._seed_text)}
            fills = (
                {v - middle for v in rests} | {v - first for v in rests} if self._seed_tokens <= SMALL_COUNT else {0}
            )
            if all(self._fillers.can_make(rest) for rest in fills if rest >= 0):
                found = SeedCodes(alphabet, digits, self._random_seed)
                if capacity >= 2 * wanted:
                    return found
            if digits > 64:
                return found

    def _check_short_texts(self) -> None:
        """Refuse lengths that no words add up to, while nothing is built yet."""
        suffix = np.minimum(self._suffix_text, SMALL_COUNT + 1)
        shapes = np.stack([self._plan.shared_prefix_tokens > 0, self._seed_text, suffix], axis=1)
        for shares, seed_tokens, suffix_tokens in np.unique(shapes, axis=0).tolist():
            rest = seed_tokens - (self._codes.middle_tokens if shares else self._codes.first_tokens)
            if suffix_tokens <= SMALL_COUNT and not self._fillers.can_make(suffix_tokens):
                rest += suffix_tokens  # as _draft does
            if rest <= SMALL_COUNT and not self._fillers.can_make(rest):
                raise self._cannot_fill(Unfillable(rest), "a seed")

    def _reader(self, stream: int, *, reshuffle: bool) -> RowReader:
        selection, slot = self._selections[stream], self._rows.slot

        def cycle(number: int) -> list[int]:
            return [slot[row] for row in selection.cycle(number if reshuffle else 0) if row in slot]

        return RowReader(self._rows, self._fillers, cycle)

    # ---- canonical prefixes and warm-up -----------------------------------------------------------------------------

    def _build_canonical(self, group: int, number: int) -> tuple[_Canonical | None, int]:
        """A group's canonical prefix: a code of its own, then corpus text that ends with a word at each used length."""
        total = int(self._plan.canonical_prefix_tokens[group])
        if total == 0:
            return None, number
        mine = self._plan.shared_prefix_tokens[self._plan.group == group]
        lengths = sorted({*(int(v) for v in np.unique(mine[mine > 0])), total})
        reader = self._fill_readers[self._stream_of_group[group]]
        problem = ""
        for attempt in range(1 if self.proof.proven else MAX_ATTEMPTS):
            number, value = self._codes.next_code(number)
            number += 1
            start = derive_seed(self._random_seed, "canonical", group, attempt)
            canonical = self._compose_canonical(group, lengths, value, reader, start)
            problem = self._check_canonical(canonical)
            if not problem:
                return canonical, number
        raise self._not_exact(f"the canonical prefix of {group_name(group)} {problem}")

    def _compose_canonical(
        self, group: int, lengths: list[int], value: int, reader: RowReader, start: int
    ) -> _Canonical:
        table, codes = self._table, self._codes
        places = codes.words(value)
        parts = [" ".join([table.texts[codes.alphabet.words[place]] for place in places])]
        ids = [*self._tokenizer.prefix_ids, *self._code_ids(places, first=True)]
        last_word = codes.alphabet.words[places[-1]]
        characters = len(parts[0])
        cuts: dict[int, _Cut] = {}
        rows: dict[int, None] = {}
        reader.seek(start)
        for length in lengths:
            try:
                text = reader.take(length - len(ids), start + length)
            except Unfillable as error:
                raise self._cannot_fill(error, f"the canonical prefix of {group_name(group)}") from error
            for word in reader.word_numbers(text):
                ids += table.ids[word]
                last_word = word
            rendered = reader.render(text)
            if rendered:
                parts.append(rendered)
                characters += 1 + len(rendered)
            rows.update(dict.fromkeys(reader.used_rows(text)))
            cuts[length] = _Cut(characters, last_word)
        public = CanonicalPrefix(
            group=group,
            text=" ".join(parts),
            token_ids=tuple(ids),
            sha256=token_ids_sha256(ids),
            corpus_indices=tuple(rows),
            corpus_sha256=tuple([self._corpus.row_sha256[row] for row in rows]),
        )
        return _Canonical(public, ids, cuts)

    def _check_canonical(self, canonical: _Canonical) -> str:
        """What is wrong with a canonical prefix when it is encoded before another word, or nothing."""
        table, text, ids = self._table, canonical.public.text, canonical.ids
        lengths = list(canonical.cuts) if not self.proof.proven else [len(ids)]
        texts = [f"{text[: canonical.cuts[length].characters]} {table.anchor}" for length in lengths]
        for length, found in zip(lengths, self._tokenizer.encode_batch(texts), strict=True):
            if found != [*ids[:length], *table.anchor_middle, *self._tokenizer.suffix_ids]:
                return f"is not the same, cut at {length} tokens, before another word"
        return ""

    def _forbid_canonical_blocks(self) -> None:
        for canonical in self._canonicals:
            if canonical is None:
                continue
            ids = canonical.ids
            self._codes.forbid(ids[self._before : self._block])
            for start in range(0 if not self._before else self._block, len(ids), self._block):
                self._codes.forbid(ids[start : start + self._block])
        needed = len(self._plan) + sum(canonical is not None for canonical in self._canonicals)
        if self._codes.free < needed:
            raise GenerationError.of(
                Code.SEEDS_EXHAUSTED,
                "scenario: tokenizer.block_size",
                f"{needed} seeds must differ in their first block of {self._block} token(s), but corpus and vocabulary "
                f"give only {self._codes.free} that no canonical prefix uses",
                hint="Use a larger block size or fewer requests.",
            )

    def _canonical_block_digests(self) -> set[str]:
        return {
            token_ids_sha256(canonical.ids[start : start + self._block])
            for canonical in self._canonicals
            if canonical is not None
            for start in range(0, len(canonical.ids), self._block)
        }

    def _build_warmups(self, number: int) -> tuple[tuple[WarmupPrompt, ...], int]:
        """One warm-up prompt a group, where the plan is one of warm-up mode: the canonical prefix and a seed."""
        prompts: list[WarmupPrompt] = []
        if self._plan.mode != "warmup":
            return (), number
        for group, canonical in enumerate(self._canonicals):
            if canonical is None:
                continue
            shared = len(canonical.ids)
            for _ in range(1 if self.proof.proven else MAX_ATTEMPTS):
                number, value = self._codes.next_code(number)
                number += 1
                draft = self._draft(
                    -1,
                    group,
                    shared,
                    shared + self._seed_tokens,
                    value,
                    derive_seed(self._random_seed, "warmup", group),
                )
                ids = self._tokenizer.encode_batch([draft.text])[0]
                if not self._problem_of(draft, ids):
                    break
            else:
                raise self._not_exact(f"the warm-up prompt of {group_name(group)} does not keep its canonical prefix")
            self._used_blocks.add(token_ids_sha256(ids[shared : shared + self._block]))
            prompts.append(WarmupPrompt(group, draft.text, len(ids), shared))
        return tuple(prompts), number

    # ---- formal prompts ---------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[BuiltPrompt]:
        if self._verify_whole and self.proof.proven:
            yield from self._checked_beside()
            return
        used_blocks = set(self._used_blocks)
        # Numbers that drafts cannot reach: they skip at most the forbidden ones.
        retry_number = self._first_number + len(self._plan) + self._codes.forbidden
        for drafts in self._drafts():
            if self.proof.proven:
                self._check_seeds(drafts)
                exact = drafts
            else:
                exact, retry_number = self._made_exact(drafts, used_blocks, retry_number)
            yield from map(self._finish, exact)

    def _checked_beside(self) -> Iterator[BuiltPrompt]:
        """The prompts, each encoded whole, while those before it are used and those after it are made.

        Encoding needs no interpreter lock: one thread is enough for all cores to work.
        """
        from concurrent.futures import Future, ThreadPoolExecutor

        waiting: tuple[list[_Draft], Future[list[list[int]]]] | None = None
        with ThreadPoolExecutor(1) as encoder:
            for drafts in self._drafts():
                encoded = encoder.submit(self._tokenizer.encode_batch, [draft.text for draft in drafts])
                if waiting is not None:
                    self._check_whole(waiting[0], waiting[1].result())
                    yield from map(self._finish, waiting[0])
                waiting = drafts, encoded
            if waiting is not None:
                self._check_whole(waiting[0], waiting[1].result())
                yield from map(self._finish, waiting[0])

    def _drafts(self) -> Iterator[list[_Draft]]:
        """The plan's prompts as they are put together, in batches that are checked at once."""
        plan = self._plan
        readers = [
            self._reader(stream, reshuffle=True) if stream in (0, *self._stream_of_group) else None
            for stream in range(len(self._selections))
        ]
        number = self._first_number
        total = len(plan)
        start = 0
        while start < total:
            stop = self._batch_end(start, total)
            drafts: list[_Draft] = []
            columns = zip(
                range(start, stop),
                plan.group[start:stop].tolist(),
                plan.shared_prefix_tokens[start:stop].tolist(),
                plan.input_tokens[start:stop].tolist(),
                plan.generation_index[start:stop].tolist(),
                strict=True,
            )
            for index, group, shared, input_tokens, generation_index in columns:
                request_seed = request_random_seed(self._random_seed, generation_index)
                number, value = self._codes.next_code(number)
                number += 1
                reader = readers[self._stream_of_group[group]]
                drafts.append(self._draft(index, group, shared, input_tokens, value, request_seed, reader))
            yield drafts
            start = stop

    def _batch_end(self, start: int, total: int) -> int:
        if not self._verify_whole:
            return min(start + PROMPTS_CHECKED_AT_ONCE, total)
        sums = np.cumsum(self._plan.input_tokens[start : start + PROMPTS_CHECKED_AT_ONCE])
        return min(start + max(1, int(np.searchsorted(sums, TOKENS_ENCODED_AT_ONCE))), total)

    def _code_ids(self, places: list[int], *, first: bool) -> list[int]:
        alphabet = self._codes.alphabet
        ids = list(alphabet.first[places[0]] if first else alphabet.middle[places[0]])
        for place in places[1:]:
            ids += alphabet.middle[place]
        return ids

    def _draft(
        self,
        index: int,
        group: int,
        shared: int,
        input_tokens: int,
        code: int,
        request_seed: int,
        suffix_reader: RowReader | None = None,
        correction: int = 0,
    ) -> _Draft:
        """Put a prompt together; ``correction`` changes the words' tokens of its suffix."""
        table = self._table
        natural = input_tokens - shared - self._seed_tokens
        missing = max(0, self._after - natural)
        suffix_tokens = max(0, natural - self._after) + correction
        places = self._codes.words(code)
        alphabet_words = self._codes.alphabet.words
        code_ids = self._code_ids(places, first=not shared)
        seed_text_tokens = self._seed_tokens - missing - (0 if shared else self._before)
        rest = seed_text_tokens - len(code_ids)
        if suffix_tokens <= SMALL_COUNT and not self._fillers.can_make(suffix_tokens):
            # No words are as short as this suffix: its tokens are made together with the seed's.
            rest, suffix_tokens = rest + suffix_tokens, 0
        filling = self._fill_readers[self._stream_of_group[group]]
        filling.seek(request_seed)
        try:
            fill = filling.take(rest, request_seed) if rest else Text()
            suffix = Text()
            if suffix_tokens and suffix_reader is not None:
                suffix_reader.skip_rest_of_row()
                suffix = suffix_reader.take(suffix_tokens, request_seed)
        except Unfillable as error:
            raise self._cannot_fill(error, f"request {index}") from error

        seed_text = " ".join([table.texts[alphabet_words[place]] for place in places])
        words_ids = code_ids
        if rest:
            seed_text = f"{seed_text} {filling.render(fill)}"
            for word in filling.word_numbers(fill):
                words_ids += table.ids[word]
        suffix_text = suffix_reader.render(suffix) if suffix_reader is not None and suffix_tokens else ""

        seed_ids = words_ids if shared else [*self._tokenizer.prefix_ids, *words_ids]
        seed_ids = [*seed_ids, *self._tokenizer.suffix_ids[:missing]][: self._seed_tokens]
        head: list[int] = []
        first_of_suffix = ""
        if suffix_text:
            end = suffix_text.find(" ")
            first_of_suffix = f" {suffix_text if end < 0 else suffix_text[:end]}"
            head = list(table.ids[table.number[first_of_suffix[1:]]])
        canonical = self._canonicals[group]
        if shared:
            assert canonical is not None
            cut = canonical.cuts[shared]
            text = f"{canonical.public.text[: cut.characters]} {seed_text}"
            window = f"{table.anchor} {table.texts[cut.last_word]} {seed_text}{first_of_suffix}"
            window_ids = [*table.anchor_first, *table.ids[cut.last_word], *words_ids, *head]
        else:
            text = seed_text
            window = f"{seed_text}{first_of_suffix}"
            window_ids = [*words_ids, *head]
        return _Draft(
            sequence_index=index,
            group=group,
            shared=shared,
            input_tokens=input_tokens,
            natural_suffix_tokens=natural,
            text=f"{text} {suffix_text}" if suffix_text else text,
            seed_ids=seed_ids,
            window=window,
            window_ids=window_ids,
            rows=suffix_reader.used_rows(suffix) if suffix_reader is not None else (),
            request_random_seed=request_seed,
        )

    def _check_seeds(self, drafts: list[_Draft]) -> None:
        """Re-encode each seed with its joins."""
        encoded = self._tokenizer.encode_plain_batch([draft.window for draft in drafts])
        for draft, ids in zip(drafts, encoded, strict=True):
            if ids != draft.window_ids:
                raise self._not_exact(f"the seed of request {draft.sequence_index} is not encoded as its words are")

    def _check_whole(self, drafts: list[_Draft], encoded: list[list[int]]) -> None:
        """The ids of whole prompts against what was planned."""
        for draft, ids in zip(drafts, encoded, strict=True):
            problem = self._problem_of(draft, ids)
            if problem:
                raise self._not_exact(f"the prompt of request {draft.sequence_index} {problem}")

    def _problem_of(self, draft: _Draft, ids: list[int]) -> str:
        """How the ids of a whole prompt differ from what was planned, or nothing."""
        canonical = self._canonicals[draft.group]
        if draft.shared and (canonical is None or ids[: draft.shared] != canonical.ids[: draft.shared]):
            return "does not begin with its canonical prefix"
        if ids[draft.shared : draft.shared + self._seed_tokens] != draft.seed_ids:
            return "does not hold its seed"
        if len(ids) != draft.input_tokens:
            return f"has {len(ids)} tokens instead of {draft.input_tokens}"
        return ""

    def _made_exact(self, drafts: list[_Draft], used_blocks: set[str], number: int) -> tuple[list[_Draft], int]:
        """Without a proof: each draft, corrected until its whole text is exact and its first own block is unique.

        Corrections use code numbers from ``number`` on; the next free one is returned too.
        """
        exact: list[_Draft] = []
        encoded = self._tokenizer.encode_batch([draft.text for draft in drafts])
        for draft, ids in zip(drafts, encoded, strict=True):
            correction = 0
            for attempt in range(1, MAX_ATTEMPTS + 1):
                problem = self._problem_of(draft, ids)
                block = token_ids_sha256(ids[draft.shared : draft.shared + self._block])
                if not problem and block in used_blocks:
                    problem = "has a seed that is not unique"
                if not problem:
                    used_blocks.add(block)
                    exact.append(draft)
                    break
                number, value = self._codes.next_code(number)
                number += 1
                if attempt == MAX_ATTEMPTS or number > self._codes.capacity:
                    raise self._not_exact(f"the prompt of request {draft.sequence_index} {problem}")
                # A length that is off by a little is often right after moving the cut by as much.
                correction = correction - (len(ids) - draft.input_tokens) if attempt % 4 else 0
                draft = self._draft_again(draft, value, attempt, correction)
                (ids,) = self._tokenizer.encode_batch([draft.text])
        return exact, number

    def _draft_again(self, draft: _Draft, code: int, attempt: int, correction: int) -> _Draft:
        """Another prompt for the same request: a new seed, and a suffix from other rows."""
        reader = self._reader(self._stream_of_group[draft.group], reshuffle=False)
        reader.seek(draft.request_random_seed + attempt)
        natural_words = max(0, draft.natural_suffix_tokens - self._after)
        correction = max(correction, -natural_words)
        again = self._draft(
            draft.sequence_index,
            draft.group,
            draft.shared,
            draft.input_tokens,
            code,
            draft.request_random_seed + attempt,
            reader,
            correction,
        )
        again.request_random_seed = draft.request_random_seed
        return again

    def _finish(self, draft: _Draft) -> BuiltPrompt:
        seed_sha256 = token_ids_sha256(draft.seed_ids)
        one_block = self._block == self._seed_tokens
        divergence = seed_sha256 if one_block else token_ids_sha256(draft.seed_ids[: self._block])
        digests = self._corpus.row_sha256
        return BuiltPrompt(
            sequence_index=draft.sequence_index,
            text=draft.text,
            actual_input_tokens=draft.input_tokens,
            natural_suffix_tokens=draft.natural_suffix_tokens,
            seed_sha256=seed_sha256,
            divergence_block_sha256=divergence,
            request_random_seed=draft.request_random_seed,
            corpus_indices=draft.rows,
            corpus_sha256=tuple([digests[row] for row in draft.rows]),
        )

    # ---- refusals ---------------------------------------------------------------------------------------------------

    def _not_exact(self, what: str) -> GenerationError:
        return _generation_error(
            Code.PROMPTS_NOT_EXACT,
            "scenario: tokenizer.path",
            f"{what}, so its length cannot be guaranteed ({self.proof.reason})",
        )

    def _cannot_fill(self, error: Unfillable, where: str) -> GenerationError:
        return _generation_error(
            Code.LENGTH_NOT_REACHABLE,
            "scenario: corpus.path",
            f"{where} needs a text of exactly {error.tokens} token(s), and neither the corpus nor the vocabulary of "
            "the tokenizer has words of that many",
            hint="Use a larger block size or another corpus.",
        )


def _generation_error(code: Code, where: str, message: str, *, hint: str | None = None) -> GenerationError:
    error = GenerationError.of(code, where, message, hint=hint)
    assert isinstance(error, GenerationError)
    return error


def _empty_prefix(group: int) -> CanonicalPrefix:
    return CanonicalPrefix(group, "", (), token_ids_sha256(()), (), ())
