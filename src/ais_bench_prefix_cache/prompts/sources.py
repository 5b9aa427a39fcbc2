"""Prompts made on demand, with as much prefix sharing as asked for.

* ``repeat``: every request, warm-up included, has the same prompt.
* ``unique``: every prompt begins with a nonce of its own, so none shares a block with another.
* ``shared-prefix``: a prompt begins with the prefix of one of N groups, which covers a set share of it, then a nonce.

Nonces come from seed, case, phase and index: a run repeats exactly, and neither another case nor the warm-up of the
same case shares a block with measured requests. With the server's tokenizer (:class:`.ExactTokens`) every prompt has
exactly the wanted tokens and shares whole blocks; without (:class:`.WordEstimate`) a word counts as a token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ais_bench_prefix_cache.exact_text.lexicon import made_exact
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import GenerationError, Problem
from ais_bench_prefix_cache.foundation.random_streams import derive_seed, numbered_seeds
from ais_bench_prefix_cache.prompts.source_texts import (
    MIN_CONTROLLED_TOKENS,
    CountsText,
    ExactTokens,
    TokenCount,
    writing_counter,
)

REPEAT = "repeat"
UNIQUE = "unique"
SHARED_PREFIX = "shared-prefix"
PROMPT_MODES = (REPEAT, UNIQUE, SHARED_PREFIX)

GENERATOR_VERSION = 1
"""Rises whenever the same request would get another text. Part of every phase digest."""
MOST_CORRECTIONS = 32
"""How often a prompt is written at most where the tokenizer proves nothing: its codes have room for so many."""
WARMED_PROMPTS = 64


class PromptSpecError(GenerationError, ValueError):
    """The specification contradicts itself; also a :class:`ValueError`, as scripts of the older source expect."""


@dataclass(frozen=True)
class PromptSpec:
    """How the prompts of a run share their prefixes.

    ``shared_prefix_ratio`` (between 0 and 1, both excluded) and ``prefix_groups`` (default 1) belong to
    ``shared-prefix``. Raises :class:`PromptSpecError` with everything that does not fit together.
    """

    mode: str = REPEAT
    shared_prefix_ratio: float | None = None
    prefix_groups: int | None = None

    def __post_init__(self) -> None:
        problems: list[Problem] = []

        def refuse(where: str, message: str, allowed: str) -> None:
            problems.append(Problem(Code.PROMPT_SPEC, where, message, allowed))

        if self.mode not in PROMPT_MODES:
            refuse("mode", f"it is {self.mode!r}", ", ".join(PROMPT_MODES))
        ratio, groups = self.shared_prefix_ratio, self.prefix_groups
        if self.mode == SHARED_PREFIX:
            if ratio is None or not 0 < ratio < 1:
                refuse("shared_prefix_ratio", f"it is {ratio}", "a number between 0 and 1, both excluded")
            if groups is not None and groups < 1:
                refuse("prefix_groups", f"it is {groups}", "a whole number from 1 up")
        elif self.mode in PROMPT_MODES:
            for where, value in (("shared_prefix_ratio", ratio), ("prefix_groups", groups)):
                if value is not None:
                    refuse(where, f"it is {value}, but the mode is {self.mode}", f"none, or the mode {SHARED_PREFIX}")
        if problems:
            raise PromptSpecError(problems)

    @property
    def groups(self) -> int:
        return self.prefix_groups or 1

    def to_record(self) -> dict[str, Any]:
        """The specification as JSON, with the version of the generator."""
        record: dict[str, Any] = {"mode": self.mode, "generator_version": GENERATOR_VERSION}
        if self.mode == SHARED_PREFIX:
            record |= {"shared_prefix_ratio": self.shared_prefix_ratio, "prefix_groups": self.groups}
        return record


@dataclass(frozen=True)
class Prompt:
    """One request's prompt and what it shares with others.

    ``planned`` is known without encoding the prompt; with a tokenizer it is exact. ``count`` counts the text when it is
    first read. ``shared_prefix_tokens`` are the prompt's tokens from its group's prefix; ``shared_prefix_blocks`` the
    same in whole blocks of the server, None without a tokenizer. ``pieces`` are group prefix, nonce and filler: the
    text is those of them that are not empty, joined by single spaces. ``digest`` is the first 16 hex digits of the
    text's SHA-256.
    """

    text: str
    prompt_id: str
    digest: str = field(repr=False, compare=False)
    pieces: tuple[str, str, str] = field(repr=False, compare=False)
    counter: CountsText = field(repr=False, compare=False)
    planned: TokenCount
    prefix_group: int | None = None
    shared_prefix_tokens: int | None = None
    shared_prefix_blocks: int | None = None

    @cached_property
    def count(self) -> TokenCount:
        return self.counter.count_text(self.text)

    @property
    def planned_count(self) -> TokenCount:
        """The name of ``planned`` in the older source."""
        return self.planned


class PromptSource:
    """The prompts of one phase of one case, each of ``input_tokens`` tokens, made on demand.

    ``repeated`` may be one dict for several phases: they then share the text of ``repeat``. Raises
    :class:`GenerationError` for prompts too short to control (:attr:`minimum_tokens`). ``counter`` may be anything with
    ``count_text``: prompts are then written for its counts, as near as single words allow.
    """

    def __init__(
        self,
        spec: PromptSpec,
        *,
        counter: CountsText,
        seed: int,
        case_id: str,
        phase: str,
        input_tokens: int,
        repeated: MutableMapping[tuple[int, int], Prompt] | None = None,
    ) -> None:
        self.spec = spec
        self.counter = writing_counter(counter)
        self.seed = seed
        self.input_tokens = input_tokens
        self._namespace = (case_id, phase)
        self._codes = self.counter.codes(derive_seed(seed, *self._namespace, "request"))
        self._group_seed = numbered_seeds(seed, *self._namespace, "group")
        self._planned = TokenCount(input_tokens, self.counter.source, self.counter.exact)
        self._prompts: dict[int, Prompt] = {}
        self._digests = _PhaseDigest()
        self._prefixes: dict[int, str] = {}
        self._fillers: dict[tuple[str, int], str] = {}
        self._repeated = {} if repeated is None else repeated
        # Proven prompts are exact by construction; the first is encoded all the same.
        self._check_each = isinstance(self.counter, ExactTokens) and not self.counter.proven
        self._checked = not isinstance(self.counter, ExactTokens)
        if input_tokens < self.minimum_tokens:
            raise GenerationError.of(
                Code.PROMPT_TOO_SHORT,
                "input tokens",
                f"prompts of {input_tokens} token(s) cannot be controlled in the mode {spec.mode}",
                allowed=f"at least {self.minimum_tokens}",
            )
        self.shared_prefix_tokens = self._shared_length() if spec.mode == SHARED_PREFIX else 0
        """Tokens of every group's prefix: whole blocks with a tokenizer."""
        if spec.mode == SHARED_PREFIX:
            self._filler_tokens = (
                input_tokens - self.shared_prefix_tokens - self._codes.middle_tokens - self.counter.after
            )
        else:
            self._filler_tokens = input_tokens - self.counter.before - self._codes.first_tokens - self.counter.after
        block_size = self.counter.block_size
        self._shared_blocks = None if block_size is None else self.shared_prefix_tokens // block_size

    @property
    def minimum_tokens(self) -> int:
        """The shortest prompts that hold what the mode needs.

        With a tokenizer: special tokens and nonces, and for ``shared-prefix`` one whole block before the second nonce.
        Without: :data:`~.source_texts.MIN_CONTROLLED_TOKENS`.
        """
        counter, codes = self.counter, self._codes
        if self.spec.mode == REPEAT:
            return counter.before + 1 + counter.after
        if not counter.exact:
            return MIN_CONTROLLED_TOKENS
        if self.spec.mode == UNIQUE:
            return counter.before + codes.first_tokens + counter.after
        # A nonce fits into a block, so one block holds a group's prefix.
        return (counter.block_size or 1) + codes.middle_tokens + counter.after

    def prompt(self, index: int) -> Prompt:
        """The prompt of one request, built or remembered."""
        prompt = self._prompts.get(index)
        if prompt is None:
            prompt = self._prompts[index] = self._build(index)
            self._digests.add(index, prompt.digest)
        return prompt

    take = prompt
    """The same for a request that is about to send; call :meth:`forget` once it is done."""

    def forget(self, index: int) -> None:
        """Drop a prompt's text. Its digest stays part of the phase digest."""
        self._prompts.pop(index, None)

    def warm(self, sample: int = WARMED_PROMPTS) -> None:
        """Do the one-off work before a phase's clock starts: fillers, group prefixes, the repeated prompt.

        With a tokenizer ``sample`` prompts are encoded whole and checked. They are not handed out: the phase digest
        does not know them.
        """
        if self.spec.mode == SHARED_PREFIX:
            for group in range(self.spec.groups):
                self._prefix(group)
        for index in range(1 if self.spec.mode == REPEAT else sample):
            prompt = self._build(index)
            if isinstance(self.counter, ExactTokens) and not self._check_each:
                self._refuse_inexact(prompt)

    def prepare(self, indices: Iterable[int]) -> None:
        """Build prompts ahead of their use."""
        for index in indices:
            self.prompt(index)

    def digest(self) -> str | None:
        """One digest of all prompts handed out so far, in the order of their index; None before the first."""
        return self._digests.value()

    def _build(self, index: int) -> Prompt:
        if self.spec.mode == REPEAT:
            return self._repeat()
        prompt = self._unique(index, 0) if self.spec.mode == UNIQUE else self._shared(index, 0)
        if self._check_each:
            return self._corrected(index, prompt)
        if not self._checked:
            self._refuse_inexact(prompt)
            self._checked = True
        return prompt

    def _repeat(self) -> Prompt:
        key = (self.seed, self.input_tokens)
        if key not in self._repeated:
            counter = self.counter
            seed = derive_seed(self.seed, "repeat", self.input_tokens)
            words = self.input_tokens - counter.before - counter.after

            def write(attempt: int, last: Prompt | None) -> Prompt:
                return self._prompt(REPEAT, ("", "", counter.opening(words, seed + attempt)))

            self._repeated[key] = self._made_exact(write) if isinstance(counter, ExactTokens) else write(0, None)
        return self._repeated[key]

    def _unique(self, index: int, attempt: int, correction: int = 0) -> Prompt:
        value = self._codes.value(self._number(index, attempt))
        pieces = ("", self._codes.text(value), self._filler(self._filler_tokens + correction))
        return self._prompt(f"r-{value:016x}", pieces)

    def _shared(self, index: int, attempt: int, correction: int = 0) -> Prompt:
        group = self._group(index)
        value = self._codes.value(self._number(index, attempt))
        pieces = (self._prefix(group), self._codes.text(value), self._filler(self._filler_tokens + correction))
        return self._prompt(f"g{group}-{value:016x}", pieces, group)

    def _prompt(self, prompt_id: str, pieces: tuple[str, str, str], group: int | None = None) -> Prompt:
        text = " ".join(filter(None, pieces))
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        shared = (None, None) if group is None else (self.shared_prefix_tokens, self._shared_blocks)
        return Prompt(text, prompt_id, digest, pieces, self.counter, self._planned, group, *shared)

    def _prefix(self, group: int) -> str:
        """A group's prefix: a code of its own and text up to the shared length."""
        if group not in self._prefixes:
            codes = self.counter.codes(derive_seed(self.seed, *self._namespace, "prefix"))
            used = self.counter.before + codes.first_tokens
            filler = self._filler(self.shared_prefix_tokens - used, "prefix")
            self._prefixes[group] = " ".join(filter(None, (codes.text(codes.value(group)), filler)))
        return self._prefixes[group]

    def _shared_length(self) -> int:
        counter, codes = self.counter, self._codes
        least = counter.before + codes.first_tokens
        most = self.input_tokens - codes.middle_tokens - counter.after
        shared = counter.shared_tokens((self.spec.shared_prefix_ratio or 0) * self.input_tokens, least, most)
        assert shared is not None, "minimum_tokens leaves room for a prefix"
        return shared

    def _filler(self, tokens: int, part: str = "request") -> str:
        """Text of so many tokens for a part of the prompt, made once a length."""
        if tokens <= 0:
            return ""
        key = (part, tokens)
        filler = self._fillers.get(key)
        if filler is None:
            filler = self._fillers[key] = self.counter.filler(tokens, derive_seed(self.seed, "filler", part))
        return filler

    def _group(self, index: int) -> int:
        return self._group_seed(index) % self.spec.groups

    def _number(self, index: int, attempt: int) -> int:
        """Numbers of corrections lie far from those of other prompts."""
        return index + attempt * (self._codes.capacity // MOST_CORRECTIONS) if attempt else index

    # ---- exactness --------------------------------------------------------------------------------------------------

    def _corrected(self, index: int, first: Prompt) -> Prompt:
        """Without a proof: another nonce, and more or less text, until the whole prompt is exact."""
        correction = 0

        def write(attempt: int, last: Prompt | None) -> Prompt:
            nonlocal correction
            if last is None:
                return first
            correction = correction + self.input_tokens - last.count.value if attempt % 4 else 0
            make = self._unique if self.spec.mode == UNIQUE else self._shared
            return make(index, attempt, correction)

        return self._made_exact(write)

    def _made_exact(self, write: Callable[[int, Prompt | None], Prompt | None]) -> Prompt:
        """The first prompt of those written whose whole text has the planned length and shares what it should."""
        assert isinstance(self.counter, ExactTokens)
        lexicon = self.counter.lexicon
        return made_exact(write, self._problem_of, lexicon.not_exact, MOST_CORRECTIONS)

    def _refuse_inexact(self, prompt: Prompt) -> None:
        self._made_exact(lambda attempt, last: prompt if last is None else None)

    def _problem_of(self, prompt: Prompt) -> str:
        assert isinstance(self.counter, ExactTokens)
        encode = self.counter.tokenizer.encode
        ids = encode(prompt.text)
        if len(ids) != self.input_tokens:
            return f"the prompt {prompt.prompt_id} has {len(ids)} tokens"
        shared = self.shared_prefix_tokens
        if prompt.prefix_group is not None:
            prefix = encode(f"{self._prefix(prompt.prefix_group)} {self._codes.text(0)}")
            if ids[:shared] != prefix[:shared]:
                return f"the prompt {prompt.prompt_id} does not begin with its group's prefix"
        return ""


class _PhaseDigest:
    """SHA-256 over the prompts' digests in index order; a run of indices from 0 on costs no memory."""

    def __init__(self) -> None:
        self._done = hashlib.sha256(f"generator {GENERATOR_VERSION}".encode())
        self._next = 0
        self._waiting: dict[int, str] = {}

    def add(self, index: int, digest: str) -> None:
        if index < self._next:
            return
        if index == self._next and not self._waiting:
            self._done.update(f"\n{index} {digest}".encode())
            self._next += 1
            return
        self._waiting[index] = digest
        while (digest_of_next := self._waiting.pop(self._next, None)) is not None:
            self._done.update(f"\n{self._next} {digest_of_next}".encode())
            self._next += 1

    def value(self) -> str | None:
        if not self._next and not self._waiting:
            return None
        whole = self._done.copy()
        for index in sorted(self._waiting):
            whole.update(f"\n{index} {self._waiting[index]}".encode())
        return whole.hexdigest()[:16]
