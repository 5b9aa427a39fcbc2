"""Scenarios for tests: small documents on disk, and the contract's example with what a planning test varies."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.scenario.loading import load_scenario
from ais_bench_prefix_cache.scenario.model import (
    FixedLength,
    GroupAssignment,
    GroupOverride,
    GroupsConfig,
    LengthSpec,
    OrderStrategy,
    PrefixCacheConfig,
    Scenario,
)

INPUT_LENGTH, OUTPUT_LENGTH, UNIFORM = FixedLength(1024), FixedLength(32), GroupAssignment("uniform")
QUESTION = "How many apples are left?"


def scenario_file(
    directory: Path,
    *,
    name: str = "scenario.json",
    tokenizer: Path | str = "/nowhere",
    block_size: int = 16,
    url: str | list[str] | None = None,
    **sections: Mapping[str, Any],
) -> Path:
    """Write a small Scenario into ``directory`` and return its path.

    ``sections`` add keys to the sections below or replace them (whole values: an ``input_length`` is one). ``url`` is
    the server's, or one for each rank. A corpus of one question lies beside it unless the Scenario names another.
    """
    document: dict[str, dict[str, Any]] = {
        "run": {"run_id": "small", "output_dir": "./out"},
        "tokenizer": {"path": str(tokenizer), "block_size": block_size},
        "corpus": {"path": "./corpus.jsonl"},
        "requests": {
            "count": 24,
            "input_length": {"mode": "fixed", "value": 200},
            "output_length": {"mode": "fixed", "value": 2},
        },
        "prefix_cache": {"mode": "cold", "target_hit_rate": 0.5},
        "service": {"model": "tiny"},
    }
    if url is not None:
        paths = {"inference_url": "/v1/completions", "metrics_url": "/metrics", "reset_url": "/reset_prefix_cache"}
        for key, path in paths.items():
            document["service"][key] = [each + path for each in url] if isinstance(url, list) else url + path
    for section, content in sections.items():
        document.setdefault(section, {}).update(content)
    if "path" not in sections.get("corpus", {}):
        (directory / "corpus.jsonl").write_text(json.dumps({"question": QUESTION}) + "\n", encoding="utf-8")
    written = directory / name
    written.write_text(json.dumps(document), encoding="utf-8")
    return written


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
    """The contract's example, loaded, with what a planning test varies; its ``effective`` stays the example's."""
    example = _example()
    return replace(
        example,
        run=replace(example.run, random_seed=random_seed),
        tokenizer=replace(example.tokenizer, block_size=block_size),
        requests=replace(example.requests, count=count, input_length=input_length, output_length=output_length),
        prefix_cache=PrefixCacheConfig(
            mode,
            target,
            seed_blocks,
            seed_blocks * block_size if minimum_non_shared is None else minimum_non_shared,
            GroupsConfig(groups, assignment, overrides or {}),
            order,
        ),
        service=replace(example.service, dp_size=dp_size),
    )


@cache
def _example() -> Scenario:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "scenario.json"
        path.write_text("{}", encoding="utf-8")
        return load_scenario(path, environment={})
