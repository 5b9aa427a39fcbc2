"""Prepared data sets for tests of what comes after ``prepare``: real Scenario, real plan, prompts of one-token words.

A prompt is a row of words that the tokenizer encodes as one token each, so that its length is exact by construction;
the real assembly of prompts is not involved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from tests.doubles.text_data_sets import write_prompts

from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.text.prompt_set import BuiltPrompt, CanonicalPrefix, WarmupPrompt
from ais_bench_prefix_cache.exact_text.token_digests import token_ids_sha256
from ais_bench_prefix_cache.exact_text.tokenizer import load_tokenizer
from ais_bench_prefix_cache.planning.plan import Plan
from ais_bench_prefix_cache.planning.planner import plan_scenario
from ais_bench_prefix_cache.scenario.loading import load_scenario


class OneTokenWords:
    """A prompt set whose texts are `` word word word``."""

    def __init__(self, plan: Plan, tokenizer: Any) -> None:
        self._plan = plan
        vocabulary = tokenizer.vocabulary()
        words = sorted(word for word in vocabulary if word[0] == "Ġ" and word[1:].isalpha() and word[1:].isascii())
        self._words = words[:20000]
        self._ids = [vocabulary[word] for word in self._words]
        self._prefixes = [
            self._draw(f"prefix {group}", int(plan.canonical_prefix_tokens[group])) for group in range(plan.group_count)
        ]
        self.canonical_prefixes = tuple(
            CanonicalPrefix(
                group, self._text(numbers), self._token_ids(numbers), self._digest(numbers), (0,), ("0" * 64,)
            )
            for group, numbers in enumerate(self._prefixes)
        )
        self.warmup_prompts = tuple(
            WarmupPrompt(
                group,
                self._text([*numbers, *self._draw(f"warm {group}", plan.minimum_non_shared_tokens)]),
                len(numbers) + plan.minimum_non_shared_tokens,
                len(numbers),
            )
            for group, numbers in enumerate(self._prefixes)
        )

    def __len__(self) -> int:
        return len(self._plan)

    def __iter__(self) -> Iterator[BuiltPrompt]:
        plan = self._plan
        for index in range(len(plan)):
            inputs, shared = int(plan.input_tokens[index]), int(plan.shared_prefix_tokens[index])
            own = self._draw(f"request {index}", inputs - shared)
            seed = own[: plan.seed_tokens]
            yield BuiltPrompt(
                sequence_index=index,
                text=self._text([*self._prefixes[int(plan.group[index])][:shared], *own]),
                actual_input_tokens=inputs,
                natural_suffix_tokens=inputs - shared - plan.seed_tokens,
                seed_sha256=self._digest(seed),
                divergence_block_sha256=self._digest(own[: plan.block_size]),
                request_random_seed=index,
                corpus_indices=(0,),
                corpus_sha256=("0" * 64,),
            )

    def _draw(self, name: str, count: int) -> list[int]:
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        return [int(number) for number in np.random.default_rng(seed).integers(0, len(self._words), count)]

    def _text(self, numbers: list[int]) -> str:
        return "".join(" " + self._words[number][1:] for number in numbers)

    def _token_ids(self, numbers: list[int]) -> tuple[int, ...]:
        return tuple(self._ids[number] for number in numbers)

    def _digest(self, numbers: list[int]) -> str:
        return token_ids_sha256(self._token_ids(numbers))


def prepare_words(scenario_path: Path) -> RunPaths:
    """What ``prepare`` does, with prompts of one-token words."""
    scenario = load_scenario(scenario_path)
    plan = plan_scenario(scenario)
    tokenizer = load_tokenizer(scenario.tokenizer)
    paths = RunPaths.create(scenario.run.output_dir, scenario.run.run_id, datetime.now())
    write_prompts(
        scenario,
        paths,
        plan,
        OneTokenWords(plan, tokenizer),
        hashlib.sha256(scenario.corpus.path.read_bytes()).hexdigest(),
        tokenizer.identity(),
    )
    return paths
