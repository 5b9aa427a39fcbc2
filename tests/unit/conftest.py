"""Recorded metric texts, and a small data set on disk that is written by hand: no tokenizer, corpus or planner."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from tests.doubles.text_data_sets import write_prompts

from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.text.prompt_set import BuiltPrompt, CanonicalPrefix, WarmupPrompt
from ais_bench_prefix_cache.planning.plan import Plan
from ais_bench_prefix_cache.planning.planner import plan_scenario
from ais_bench_prefix_cache.scenario.loading import load_scenario
from ais_bench_prefix_cache.scenario.model import Scenario

BLOCK = 4
GROUPS = 2
RANKS = 2
NOW = datetime(2026, 8, 25, 12, 34, 56)


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


def small_scenario(directory: Path, mode: str, output_key: str | None, count: int = 12) -> Scenario:
    """Two groups that take turns, on two ranks, with lengths that differ."""
    lengths = [16 + 5 * (number // 2 % 4) + number // 2 for number in range(count)]
    document = {
        "run": {"run_id": "small", "random_seed": 42, "output_dir": str(directory / "out")},
        "tokenizer": {"path": "/tokenizers/words", "block_size": BLOCK},
        "corpus": {"path": str(directory / "corpus.jsonl")},
        "requests": {
            "count": count,
            "input_length": {"mode": "explicit", "values": lengths},
            "output_length": {"mode": "uniform", "min": 8, "max": 10},
        },
        "output": {"output_key": output_key},
        "prefix_cache": {
            "mode": mode,
            "target_hit_rate": 0.4,
            "groups": {"count": GROUPS},
            "order": {"strategy": "interleave"},
        },
        "service": {"dp_size": RANKS},
    }
    path = directory / "scenario.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return load_scenario(path)


TOKENIZER = {
    "path": "/tokenizers/words",
    "revision": None,
    "class": "Words",
    "vocab_size": 100,
    "special_token_ids": [0],
    "fingerprint_sha256": digest("tokenizer"),
}

MakeDataSet = Callable[..., RunPaths]


@pytest.fixture
def make_data_set(tmp_path: Path) -> MakeDataSet:
    """``make_data_set(mode, output_key=None)`` writes a data set below ``tmp_path`` and returns its paths."""

    def make(mode: str, output_key: str | None = None, directory: Path = tmp_path) -> RunPaths:
        scenario = small_scenario(directory, mode, output_key)
        plan = plan_scenario(scenario)
        paths = RunPaths.create(scenario.run.output_dir, scenario.run.run_id, NOW)
        write_prompts(scenario, paths, plan, WordPrompts(plan), digest("corpus"), TOKENIZER)
        return paths

    return make


@pytest.fixture(scope="session")
def prom(project_root: Path) -> Callable[[str], str]:
    """``prom("08")``: the text of the one file in ``tests/data/prom`` whose name begins with that."""

    def read(beginning: str) -> str:
        (path,) = (project_root / "tests" / "data" / "prom").glob(f"{beginning}*")
        return path.read_bytes().decode("utf-8")

    return read
