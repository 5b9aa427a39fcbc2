"""When a replay says something, and that analyze asks for it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from tests.doubles.fake_service import service_config
from tests.doubles.metric_texts import engine, vllm_text
from tests.doubles.radix_requests import run_alone

from ais_bench_prefix_cache.analysis.analysis_document import SnapshotTexts, analyze_run
from ais_bench_prefix_cache.analysis.cache_prediction import predict_hits
from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
from ais_bench_prefix_cache.kvcache.radix_cache import RadixCache
from ais_bench_prefix_cache.scenario.model import ValidationConfig

# Eight prompts of 8 blocks, sent twice through 39 usable blocks: the second pass hits nothing (seen on a real vLLM).
TWICE = RequestColumns(
    group_ids=[f"group-{number % 8}" for number in range(16)],
    dp_ranks=[0] * 16,
    lane_sequences=[number // 8 for number in range(16)],
    input_tokens=[257] * 16,
    hit_tokens=[0] * 8 + [256] * 8,
    shared_prefix_tokens=[256] * 16,
    max_tokens=[1] * 16,
)


def predicted(columns: RequestColumns, capacity_tokens: int, dp_size: int = 1) -> Any:
    return predict_hits(columns, block_size=32, capacity_tokens=capacity_tokens, dp_size=dp_size)


def test_a_cache_of_40_blocks_forgets_the_first_pass() -> None:
    prediction = predicted(TWICE, 1280)
    assert (prediction.hit_tokens, prediction.capacity_tokens) == (0, 1280)
    assert prediction.evicted_blocks > 0


@pytest.mark.parametrize(("page", "capacity"), [(1, 1200), (16, 1280), (32, 1152)])
def test_on_sglang_it_is_a_tree_of_segments(page: int, capacity: int) -> None:
    """Against the same prompts, token by token."""
    randomness = random.Random(page)
    groups = [randomness.randrange(6) for _ in range(60)]
    lengths = [randomness.randrange(129, 300) for _ in groups]
    shared = [32 * randomness.randrange(5) for _ in groups]
    outputs = [randomness.choice((1, 2, 20)) for _ in groups]
    columns = RequestColumns(
        group_ids=[f"group-{group}" for group in groups],
        dp_ranks=[0] * 60,
        lane_sequences=[0] * 60,
        input_tokens=lengths,
        hit_tokens=[0] * 60,
        shared_prefix_tokens=shared,
        max_tokens=outputs,
    )
    tree, hits = RadixCache(page, capacity // page), 0
    for number, (group, length, prefix, output) in enumerate(zip(groups, lengths, shared, outputs, strict=True)):
        own = range(10**6 + number * 1000, 10**6 + number * 1000 + length - prefix)
        answer = list(range(10**8 + number * 1000, 10**8 + number * 1000 + output))
        hits += run_alone(tree, [*range(group * 1000, group * 1000 + prefix), *own], answer)
    prediction = predict_hits(columns, block_size=page, capacity_tokens=capacity, dp_size=1, engine="sglang")
    assert prediction is not None
    assert prediction.hit_tokens == hits > 0
    assert hits < sum(shared)


def test_nothing_is_said_without_need_or_knowledge() -> None:
    assert predicted(TWICE, 10**6) is None
    assert predicted(TWICE, 256) is None
    assert predicted(replace(TWICE, shared_prefix_tokens=()), 1280) is None
    assert predicted(replace(TWICE, dp_ranks=[-1] * 16), 1280, dp_size=2) is None
    assert predicted(replace(TWICE, dp_ranks=[-1] * 16), 1280) is not None


def test_analyze_names_the_reachable_rate() -> None:
    config = {"block_size": "32", "num_gpu_blocks": "40", "kv_cache_size_tokens": "1280"}
    manifest: dict[str, Any] = {
        "prefix_cache": {"mode": "cold"},
        "tokenizer": {"block_size": 32},
        "dp": {"size": 1},
        "requests": {"count": 16, "input_length_summary": {"max": 257}},
        "groups": {f"group-{number}": {"canonical_prefix_tokens": 256} for number in range(8)},
        "warmup": {"enabled": False, "plan": []},
    }
    share = {"input_tokens": 4112, "hit_tokens": 2048}
    previous: dict[str, Any] = {
        "validation": {},
        "theory": {**share, "dp": {"0": share}},
        "warnings": [],
    }

    def analyzed(hits: int) -> dict[str, Any]:
        return analyze_run(
            manifest=manifest,
            previous_analysis=previous,
            baseline=SnapshotTexts((vllm_text(engine(0, 0), config=config),), ("b",)),
            after=SnapshotTexts((vllm_text(engine(4112, hits), config=config),), ("a",)),
            service=service_config(dp_size=1),
            validation=ValidationConfig(1.0, 5.0),
            status="analyzed",
            columns=TWICE,
        )

    document = analyzed(0)
    (finding,) = document["findings"]
    assert finding["code"] == "CACHE_TOO_SMALL"
    assert finding["evidence"] == {
        "capacity_tokens": 1280,
        "predicted_hits": 0,
        "planned_hits": 2048,
        "reachable_hit_rate": 0.0,
        "evicted_blocks": finding["evidence"]["evicted_blocks"],
        "counted_hits": 0,
    }
    assert "cache_prediction" not in json.dumps(document["runtime"]["facts"])
    assert analyzed(2048)["findings"] == []
