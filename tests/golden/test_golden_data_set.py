"""A Scenario gives the same bytes on every machine: rows and manifests of small data sets, as they were reviewed.

A change that alters them on purpose: run once with ``AISBENCH_PREFIX_CACHE_REGENERATE_GOLDEN=1`` (that run fails, so
that regenerating never passes for testing), look at the difference, and commit it with the reason.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

EXPECTED = Path(__file__).parent / "expected"
REGENERATE = os.environ.get("AISBENCH_PREFIX_CACHE_REGENERATE_GOLDEN") == "1"

SCENARIOS: dict[str, dict[str, Any]] = {
    "warmup-two-groups": {
        "requests": {
            "count": 8,
            "input_length": {"mode": "truncated_normal", "min": 48, "max": 112, "mean": 80, "std": 20},
            "output_length": {"mode": "uniform", "min": 2, "max": 9},
        },
        "prefix_cache": {"mode": "warmup", "target_hit_rate": 0.5, "groups": {"count": 2}},
        "output": {"output_key": "max_tokens"},
    },
    "cold-ascending-two-ranks": {
        "requests": {
            "count": 10,
            "input_length": {"mode": "range", "ranges": [{"min": 40, "max": 90, "count": 10}]},
            "output_length": {"mode": "fixed", "value": 4},
        },
        "prefix_cache": {"mode": "cold", "target_hit_rate": 0.4, "order": {"strategy": "input_len_asc"}},
    },
    "cold-zipf-overrides-shuffled": {
        "requests": {
            "count": 12,
            "input_length": {"mode": "fixed", "value": 64},
            "output_length": {"mode": "fixed", "value": 4},
        },
        "prefix_cache": {
            "mode": "cold",
            "target_hit_rate": 0.3,
            "groups": {
                "count": 3,
                "assignment": {"mode": "zipf", "exponent": 1.2},
                "overrides": {
                    "group-1": {
                        "input_length": {"mode": "fixed", "value": 96},
                        "corpus_selection": {"mode": "indices", "values": [3, 1]},
                    }
                },
            },
            "order": {"strategy": "global_shuffle"},
        },
    },
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_prepared_files_are_the_golden_ones(
    name: str,
    tmp_path: Path,
    project_root: Path,
    deepseek_tokenizer_dir: Path,
    command_line: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    (tmp_path / "tokenizer").symlink_to(deepseek_tokenizer_dir)
    (tmp_path / "corpus.jsonl").symlink_to(project_root / "src/ais_bench_prefix_cache/demo/corpus.jsonl")
    scenario = {
        "run": {"run_id": "golden", "random_seed": 2026, "output_dir": "./out"},
        "tokenizer": {"path": "./tokenizer", "block_size": 16},
        "corpus": {"path": "./corpus.jsonl"},
        **SCENARIOS[name],
    }
    (tmp_path / "scenario.json").write_text(json.dumps(scenario), encoding="utf-8")

    finished = command_line(
        "prepare", "--mode", "text", "--scenario", "scenario.json", cwd=tmp_path, PYTHONHASHSEED="123"
    )

    paths = json.loads(finished.stdout)
    made = {
        f"{name}.full.jsonl": Path(paths["full"]).read_text(encoding="utf-8"),
        f"{name}.requests.jsonl": Path(paths["requests"]).read_text(encoding="utf-8"),
        f"{name}.manifest.json": portable_manifest(Path(paths["manifest"]), tmp_path),
    }
    if REGENERATE:
        EXPECTED.mkdir(exist_ok=True)
        for file_name, text in made.items():
            (EXPECTED / file_name).write_text(text, encoding="utf-8")
        pytest.fail("the golden files were written anew; look at their difference and run again without the variable")
    for file_name, text in made.items():
        assert text == (EXPECTED / file_name).read_text(encoding="utf-8"), file_name


def portable_manifest(path: Path, directory: Path) -> str:
    """The manifest without what depends on the place and the time: paths, time stamps and digests over them."""
    text = path.read_text(encoding="utf-8").replace(str(directory.resolve()), "<directory>")
    text = re.sub(r"_\d{8}_\d{6}\b", "_<time>", text)
    manifest = json.loads(text)
    for key in ("effective_config_sha256", "content_sha256", "plugin_version"):
        del manifest[key]
    del manifest["artifacts"]["analysis"]["sha256_at_prepare"], manifest["artifacts"]["analysis"]["bytes"]
    if version("transformers").startswith("4."):
        # Release 4 names the same tokenizer otherwise; its fingerprint is the same.
        tokenizer = manifest["tokenizer"]
        assert tokenizer["class"] == "PreTrainedTokenizerFast"
        tokenizer["class"] = "TokenizersBackend"
    return json.dumps(manifest, ensure_ascii=False, indent=2) + "\n"
