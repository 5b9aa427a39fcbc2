"""Scenarios for planning tests, made without a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.scenario.model import (
    AisbenchConfig,
    AisbenchDatasetConfig,
    AisbenchModelConfig,
    CorpusConfig,
    CorpusSelection,
    FixedLength,
    GroupAssignment,
    GroupOverride,
    GroupsConfig,
    LengthSpec,
    OrderStrategy,
    PrefixCacheConfig,
    RequestsConfig,
    RunConfig,
    Scenario,
    ServiceConfig,
    TokenizerConfig,
    ValidationConfig,
)

INPUT_LENGTH, OUTPUT_LENGTH, UNIFORM = FixedLength(1024), FixedLength(32), GroupAssignment("uniform")


def make_scenario(
    *,
    mode: Any = "cold",
    count: int = 100,
    input_length: LengthSpec = INPUT_LENGTH,
    output_length: LengthSpec = OUTPUT_LENGTH,
    target: float = 0.6,
    groups: int = 1,
    assignment: GroupAssignment = UNIFORM,
    overrides: dict[int, GroupOverride] | None = None,
    order: OrderStrategy = "interleave",
    dp_size: int = 2,
    block_size: int = 16,
    seed_blocks: int = 1,
    minimum_non_shared: int | None = None,
    random_seed: int = 42,
) -> Scenario:
    """The contract's example, with what a planning test varies."""
    return Scenario(
        path=Path("/scenario.json"),
        sha256="0" * 64,
        schema_version="1.0",
        run=RunConfig("gsm8k-prefix-cache-60", random_seed, Path("/outputs"), False),
        tokenizer=TokenizerConfig("/tokenizer", block_size, None, False),
        corpus=CorpusConfig(Path("/GSM8K.jsonl"), "question", CorpusSelection("random")),
        requests=RequestsConfig(count, input_length, output_length),
        output_key=None,
        prefix_cache=PrefixCacheConfig(
            mode,
            target,
            seed_blocks,
            seed_blocks * block_size if minimum_non_shared is None else minimum_non_shared,
            GroupsConfig(groups, assignment, overrides or {}),
            order,
        ),
        service=ServiceConfig((), (), (), "model-name", dp_size, False, {}, 30.0, 5.0),
        validation=ValidationConfig(1.0, 5.0),
        aisbench=AisbenchConfig(
            None,
            Path("/outputs/default"),
            {},
            AisbenchDatasetConfig(None, ("question", "max_out_len"), "answer", "{question}", "BOT"),
            AisbenchModelConfig(None, "service", True, 1, 2, 1, {}),
        ),
        multimodal=None,
        effective={},
    )
