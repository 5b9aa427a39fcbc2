"""What shapes a data set, and what does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ais_bench_prefix_cache.scenario.identity import data_sha256, differing_fields, same_data_set
from ais_bench_prefix_cache.scenario.loading import load_scenario


def effective(directory: Path, **sections: Any) -> Any:
    directory.mkdir(exist_ok=True)
    path = directory / "s.json"
    path.write_text(json.dumps(sections), encoding="utf-8")
    return load_scenario(path, environment={}).effective


@pytest.mark.parametrize(
    "sections",
    [
        {"service": {"inference_url": "http://elsewhere:1/v1/completions", "model": "m", "timeout_seconds": 9}},
        {"service": {"kv_cache_blocks": 100, "hybrid_warmup": True, "engine": "vllm"}},
        {"service": {"api_key": "sk-1"}},
        {"aisbench": {"model": {"batch_size": 64, "request_rate": 3, "stream": False}}},
        {"validation": {"target_warning_pp": 9, "slo": {"ttft_ms": 100}}},
        {"run": {"output_dir": "./elsewhere", "overwrite": True}},
        {"multimodal": {"mmmu_parquet_dir": "./mmmu"}},
    ],
)
def test_what_belongs_to_a_run(tmp_path: Path, sections: dict[str, Any]) -> None:
    plain, changed = effective(tmp_path), effective(tmp_path, **sections)
    assert data_sha256(plain, "prefixes") == data_sha256(changed, "prefixes")
    assert differing_fields(plain, changed, "prefixes") == []


@pytest.mark.parametrize(
    ("sections", "name"),
    [
        ({"run": {"run_id": "b"}}, "run.run_id"),
        ({"run": {"random_seed": 1}}, "run.random_seed"),
        ({"tokenizer": {"revision": "v1"}}, "tokenizer"),
        ({"corpus": {"field": "prefixes"}}, "corpus"),
        ({"requests": {"count": 101}}, "requests"),
        ({"output": {"output_key": "max_tokens"}}, "output"),
        ({"prefix_cache": {"target_hit_rate": 0.5}}, "prefix_cache"),
        ({"service": {"dp_size": 3}}, "service.dp_size"),
    ],
)
def test_what_shapes_a_data_set(tmp_path: Path, sections: dict[str, Any], name: str) -> None:
    plain, changed = effective(tmp_path), effective(tmp_path, **sections)
    assert data_sha256(plain, "prefixes") != data_sha256(changed, "prefixes")
    assert differing_fields(plain, changed, "prefixes") == [name]
    assert not same_data_set(plain, tmp_path, changed, tmp_path, "prefixes")


def test_images_are_shaped_by_their_section(tmp_path: Path) -> None:
    plain, changed = effective(tmp_path), effective(tmp_path, multimodal={"mmmu_parquet_dir": "./mmmu"})
    assert differing_fields(plain, changed, "images") == ["multimodal"]


def test_a_tree_that_was_moved_as_a_whole_keeps_its_data_sets(tmp_path: Path) -> None:
    sections = {"corpus": {"path": "./c.jsonl"}, "tokenizer": {"path": "../t"}}
    before, after = effective(tmp_path / "a", **sections), effective(tmp_path / "b", **sections)
    assert before["corpus"]["path"] != after["corpus"]["path"]
    assert same_data_set(before, tmp_path / "a", after, tmp_path / "b", "prefixes")
    assert not same_data_set(before, tmp_path / "a", after, tmp_path / "c", "prefixes")


def test_conversations_are_not_shaped_by_requests_and_prefixes(tmp_path: Path) -> None:
    plain = effective(tmp_path, conversation={})
    changed = effective(tmp_path, conversation={"count": 3}, requests={"count": 7}, prefix_cache={"mode": "cold"})
    assert differing_fields(plain, changed, "conversations") == ["conversation"]
