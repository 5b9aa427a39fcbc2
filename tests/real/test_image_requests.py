"""An image data set on a real vLLM: a tiny random Idefics3 takes the images, and both sides' counts agree."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.mmmu_directory import cell, drawn, write_parquet
from tests.real.real_vllm import make_tiny_idefics3

pytestmark = pytest.mark.real


def test_a_vision_language_model_takes_the_images_and_counts_what_it_answers(
    serving: Callable[..., Any],
    scenario_for: Callable[..., Path],
    command_line: Callable[..., subprocess.CompletedProcess[str]],
    deepseek_tokenizer_dir: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    model = make_tiny_idefics3(tmp_path_factory.mktemp("idefics3") / "tiny", deepseek_tokenizer_dir)
    write_parquet(tmp_path / "MMMU" / "a.parquet", {"image_1": [cell(drawn(1280, 720))]})
    with serving(model) as server:
        scenario = scenario_for(
            server,
            requests={"count": 20, "input_length": {"mode": "fixed", "value": 30}},
            service={"inference_url": f"{server.real.url}/v1/chat/completions"},
            multimodal={"mmmu_parquet_dir": "./MMMU", "scenarios": ["multi_720p_5"]},
            aisbench={"model": {"batch_size": 4}},
        )
        said = json.loads(command_line("prepare", "--mode", "mm", "--scenario", scenario, cwd=tmp_path).stdout)
        command_line("run", "--scenario", scenario, cwd=tmp_path, timeout=600)
    analysis = json.loads(Path(said["analysis"]).read_text(encoding="utf-8"))
    before, after = (analysis["runtime"][f"metrics_{name}"]["raw_prometheus"] for name in ("baseline", "after"))

    def rise(name: str) -> int:
        early, late = (
            int(float(re.findall(rf"^vllm:{name}_total{{[^}}]*}} (\S+)$", text, re.MULTILINE)[0]))
            for text in (before, after)
        )
        return late - early

    queries, hits = rise("prefix_cache_queries"), rise("prefix_cache_hits")
    assert analysis["server_usage"]["prompt_tokens"] == queries
    assert (analysis["actual"]["global_queries"], analysis["actual"]["global_hits"]) == (queries, hits)
    assert hits > 0
    assert analysis["actual"]["mm_cache"]["queries"] == rise("mm_cache_queries") == 5 * 20
    assert analysis["actual"]["mm_cache"]["hits"] == rise("mm_cache_hits") == 5 * 20 - 1
    assert analysis["warnings"] == []
