"""A small data set on disk that is written by hand: a real Scenario and plan, but no tokenizer and no corpus."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from tests.doubles.scenarios import scenario_file
from tests.doubles.text_data_sets import write_prompts

from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.text.prompt_set import BuiltPrompt, CanonicalPrefix, WarmupPrompt
from ais_bench_prefix_cache.planning.plan import Plan
from ais_bench_prefix_cache.planning.planner import plan_scenario
from ais_bench_prefix_cache.scenario.loading import load_scenario
from ais_bench_prefix_cache.scenario.model import Scenario

BLOCK = 4
NOW = datetime(2026, 8, 25, 12, 34, 56)


def small_data_set(directory: Path, mode: str, output_key: str | None = None) -> RunPaths:
    """Write a data set of twelve requests below ``directory``."""
    scenario = small_scenario(directory, mode, output_key)
    plan = plan_scenario(scenario)
    paths = RunPaths.create(scenario.run.output_dir, scenario.run.run_id, NOW)
    write_prompts(scenario, paths, plan, WordPrompts(plan), digest("corpus"), TOKENIZER)
    return paths


def small_scenario(directory: Path, mode: str, output_key: str | None, count: int = 12) -> Scenario:
    """Two groups that take turns, on two ranks, with lengths that differ."""
    lengths = [16 + 5 * (number // 2 % 4) + number // 2 for number in range(count)]
    return load_scenario(
        scenario_file(
            directory,
            run={"random_seed": 42},
            tokenizer="/tokenizers/words",
            requests={
                "count": count,
                "input_length": {"mode": "explicit", "values": lengths},
                "output_length": {"mode": "uniform", "min": 8, "max": 10},
            },
            output={"output_key": output_key},
            prefix_cache={
                "mode": mode,
                "target_hit_rate": 0.4,
                "groups": {"count": 2},
                "order": {"strategy": "interleave"},
            },
            service={"dp_size": 2},
            block_size=BLOCK,
        )
    )


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class WordPrompts:
    """Texts with quotes, backslashes, a line separator and characters beyond ASCII."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.canonical_prefixes = tuple(
            CanonicalPrefix(
                group=group,
                text=f"prefix {group} ",
                token_ids=tuple(range(int(plan.canonical_prefix_tokens[group]))),
                sha256=digest(f"prefix {group}"),
                corpus_indices=(group, 7),
                corpus_sha256=(digest(f"row {group}"), digest("row 7")),
            )
            for group in range(plan.group_count)
        )
        self.warmup_prompts = tuple(
            WarmupPrompt(
                group=group,
                text=f"prefix {group} “warm”",
                input_tokens=int(plan.canonical_prefix_tokens[group]) + BLOCK,
                shared_prefix_tokens=int(plan.canonical_prefix_tokens[group]),
            )
            for group in range(plan.group_count)
            if plan.canonical_prefix_tokens[group]
        )

    def __len__(self) -> int:
        return len(self._plan)

    def __iter__(self) -> Iterator[BuiltPrompt]:
        plan = self._plan
        for index in range(len(plan)):
            inputs, shared = int(plan.input_tokens[index]), int(plan.shared_prefix_tokens[index])
            yield BuiltPrompt(
                sequence_index=index,
                text=f'prefix {plan.group[index]} "{index}" costs 5€\\ \u2028 and\ttabs\n',
                actual_input_tokens=inputs,
                natural_suffix_tokens=inputs - shared - plan.seed_tokens,
                seed_sha256=digest(f"seed {index}"),
                divergence_block_sha256=digest(f"divergence {index}"),
                request_random_seed=2**100 + index,
                corpus_indices=(index, 3),
                corpus_sha256=(digest(f"row {index}"), digest("row 3")),
            )


TOKENIZER = {
    "path": "/tokenizers/words",
    "revision": None,
    "class": "Words",
    "vocab_size": 100,
    "special_token_ids": [0],
    "fingerprint_sha256": digest("tokenizer"),
}
