"""`kv` counts the blocks of models with window layers as vLLM's own cache manager keeps them."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from tests.real.real_vllm import drive

from ais_bench_prefix_cache.calculators.sizing import CacheSizing, attention_layers, requests_that_fit

pytestmark = pytest.mark.real

NUM_CASES = 400


def test_groups_and_kept_blocks_are_those_of_vllm() -> None:
    randomness = random.Random(20261130)
    cases: list[dict[str, Any]] = []
    for _ in range(NUM_CASES):
        windows: list[int | None] = [None, randomness.choice((2, 7, 16, 33, 100))][: randomness.randint(1, 2)]
        layers = [[window, randomness.randint(1, 12)] for window in windows]
        cases.append(
            {"layers": layers, "block_size": randomness.choice((1, 4, 16)), "length": randomness.randint(1, 300)}
        )
    answers = drive("drive_vllm_kept_blocks", cases)
    for case, (groups, used) in zip(cases, answers, strict=True):
        sizing = CacheSizing(
            tuple(attention_layers(count, kv_heads=1, head_dim=1, window=window) for window, count in case["layers"]),
            4,
        )
        ours = {group.window: (group.count, group.layers) for group in sizing.block_groups()}
        counted = Counter(window for window, _ in groups)
        assert {window: count for window, (count, _) in ours.items()} == counted, case
        assert {size for _, size in ours.values()} == {max(size for _, size in groups)}, case
        fits = {"length": case["length"], "block_size": case["block_size"]}
        assert [requests_that_fit(sizing, blocks, **fits) for blocks in (used, used - 1)] == [1, 0], case
