"""Writes text data sets whose prompts a test brings along: the plan is real, tokenizer and corpus need not be."""

from __future__ import annotations

from typing import Any

from ais_bench_prefix_cache.datasets.format.engine import write_data_set
from ais_bench_prefix_cache.datasets.format.manifest import scenario_origin
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.text.kind import KIND, text_content
from ais_bench_prefix_cache.datasets.text.prompt_set import PromptSet
from ais_bench_prefix_cache.planning.plan import Plan
from ais_bench_prefix_cache.scenario.model import Scenario


def write_prompts(
    scenario: Scenario, paths: RunPaths, plan: Plan, prompts: PromptSet, corpus_sha256: str, tokenizer: dict[str, Any]
) -> None:
    """What ``prepare`` writes of these prompts. ``tokenizer`` is an identity."""
    origin = scenario_origin(scenario, paths, corpus_sha256, tokenizer, KIND.tokenizer_keys)
    write_data_set(KIND, paths, text_content(scenario, plan, prompts), origin, replace=False)
