"""Recorded metric texts, and a small data set on disk that is written by hand: no tokenizer, corpus or planner."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from ais_bench_prefix_cache.datasets.text.data_set import write_data_set

from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.text.prompt_set import BuiltPrompt, CanonicalPrefix, WarmupPrompt
from ais_bench_prefix_cache.planning.plan import Plan, Reachability, Trajectory
from ais_bench_prefix_cache.scenario.model import (
    AisbenchConfig,
    AisbenchDatasetConfig,
    AisbenchModelConfig,
    CorpusConfig,
    CorpusSelection,
    FixedLength,
    GroupAssignment,
    GroupsConfig,
    PrefixCacheConfig,
    RequestsConfig,
    RunConfig,
    Scenario,
    ServiceConfig,
    TokenizerConfig,
    ValidationConfig,
)

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


def hand_made_plan(mode: str, count: int = 12) -> Plan:
    """Two groups that take turns; every request shares as much as it may."""
    number = np.arange(count)
    group = (number % GROUPS).astype(np.int32)
    occurrence = number // GROUPS
    inputs = 16 + 5 * (number % 4) + occurrence
    capacity = (inputs - BLOCK) // BLOCK * BLOCK
    rank = np.full(count, -1) if mode == "warmup" else occurrence % RANKS
    lane = np.full(count, -1) if mode == "warmup" else occurrence // RANKS
    canonical = np.array([capacity[group == each].max() for each in range(GROUPS)])
    before, after, best = np.zeros(count, int), np.zeros(count, int), np.zeros(count, int)
    watermark: dict[tuple[int, int], int] = {}
    for index in range(count):
        key = (int(group[index]), int(rank[index]))
        held = int(canonical[group[index]]) if mode == "warmup" else watermark.get(key, 0)
        before[index], after[index] = held, max(held, capacity[index])
        best[index] = min(held, capacity[index])
        watermark[key] = after[index]
    reach = [
        Reachability(int(inputs[group == each].sum()), 0, int(best[group == each].sum())) for each in range(GROUPS)
    ]
    total = int(best.sum())
    return Plan(
        mode=mode,  # type: ignore[arg-type]
        block_size=BLOCK,
        seed_tokens=BLOCK,
        minimum_non_shared_tokens=BLOCK,
        dp_size=RANKS,
        group_count=GROUPS,
        generation_index=number,
        group=group,
        occurrence_in_group=occurrence,
        dp_rank=rank.astype(np.int32),
        lane_sequence=lane,
        input_tokens=inputs,
        max_tokens=8 + number % 3,
        shared_prefix_tokens=capacity,
        hit_tokens=best,
        watermark_before=before,
        watermark_after=after,
        canonical_prefix_tokens=canonical,
        max_shared_prefix_tokens=canonical,
        requested_target_hit_rate=total / int(inputs.sum()),
        effective_hit_tokens=total,
        reachability=Reachability(int(inputs.sum()), 0, total),
        group_reachability=tuple(reach),
        trajectory=Trajectory(path="warmup" if mode == "warmup" else "beam", status="PASS"),
    )


def hand_made_scenario(plan: Plan, directory: Path, output_key: str | None) -> Scenario:
    lengths = RequestsConfig(len(plan), FixedLength(16), FixedLength(8))
    selection = CorpusSelection("random")
    target = plan.requested_target_hit_rate
    return Scenario(
        path=directory / "scenario.json",
        sha256=digest("scenario"),
        schema_version="1.0",
        run=RunConfig("small", 42, directory / "out", False),
        tokenizer=TokenizerConfig("/tokenizers/words", BLOCK, None, False),
        corpus=CorpusConfig(directory / "corpus.jsonl", "question", selection),
        requests=lengths,
        output_key=output_key,  # type: ignore[arg-type]
        prefix_cache=PrefixCacheConfig(
            plan.mode, target, 1, BLOCK, GroupsConfig(GROUPS, GroupAssignment("uniform")), "interleave"
        ),
        service=ServiceConfig((), (), (), "m", RANKS, False, {}, 30.0, 5.0),
        validation=ValidationConfig(1.0, 5.0),
        aisbench=AisbenchConfig(
            None,
            directory,
            {},
            AisbenchDatasetConfig(None, (), "answer", "{question}", "BOT"),
            AisbenchModelConfig(None, "service", True, 1, 2, 1, {}),
        ),
        multimodal=None,
        effective={
            "schema_version": "1.0",
            "run": {"run_id": "small", "random_seed": 42, "output_dir": str(directory / "out"), "overwrite": False},
            "tokenizer": {
                "path": "/tokenizers/words",
                "block_size": BLOCK,
                "revision": None,
                "trust_remote_code": False,
            },
            "corpus": {"path": str(directory / "corpus.jsonl"), "field": "question"},
            "requests": {"count": len(plan)},
            "output": {"output_key": output_key},
            "prefix_cache": {
                "mode": plan.mode,
                "target_hit_rate": target,
                "seed_blocks": 1,
                "minimum_non_shared_length": BLOCK,
                "groups": {"count": GROUPS},
            },
            "service": {"dp_size": RANKS, "api_key_configured": False},
            "validation": {"target_warning_pp": 1.0, "actual_warning_pp": 5.0},
        },
    )


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
        plan = hand_made_plan(mode)
        scenario = hand_made_scenario(plan, directory, output_key)
        paths = RunPaths.create(scenario.run.output_dir, scenario.run.run_id, NOW)
        write_data_set(
            scenario,
            paths,
            plan=plan,
            prompts=WordPrompts(plan),
            corpus_sha256=digest("corpus"),
            tokenizer=TOKENIZER,
            replace=False,
        )
        return paths

    return make


@pytest.fixture(scope="session")
def prom(project_root: Path) -> Callable[[str], str]:
    """``prom("08")``: the text of the one file in ``tests/data/prom`` whose name begins with that."""

    def read(beginning: str) -> str:
        (path,) = (project_root / "tests" / "data" / "prom").glob(f"{beginning}*")
        return path.read_bytes().decode("utf-8")

    return read
