"""A run of an image data set with the real AISBench against the embedded server, and its reports."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from tests.doubles.mmmu_directory import cell, drawn, write_parquet

from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.running import running_server

pytestmark = pytest.mark.aisbench

CommandLine = Callable[..., subprocess.CompletedProcess[str]]
IMAGE = drawn(1280, 720, kind="JPEG")
TOKENS_OF_FIVE = 5 * 46 * 26


def counted(text: str, name: str) -> int:
    values = re.findall(rf"^vllm:{name}_total{{[^}}]*}} (\S+)$", text, re.MULTILINE)
    return sum(int(float(value)) for value in values)


def prepare(directory: Path, url: str, tokenizer: Path, command_line: CommandLine, *, count: int = 24) -> Path:
    write_parquet(directory / "MMMU" / "data" / "a.parquet", {"image_1": [cell(drawn(9, 9)), cell(IMAGE)]})
    (directory / "corpus.jsonl").write_text(
        "".join(f'{{"question": "What is {n} plus {n * n}, and why does it matter?"}}\n' for n in range(30))
    )
    document = {
        "run": {"run_id": "images", "output_dir": "./out/images"},
        "tokenizer": {"path": str(tokenizer)},
        "corpus": {"path": "./corpus.jsonl"},
        "requests": {
            "count": count,
            "input_length": {"mode": "fixed", "value": 30},
            "output_length": {"mode": "fixed", "value": 3},
        },
        "service": {
            "inference_url": f"{url}/v1/chat/completions",
            "metrics_url": f"{url}/metrics",
            "reset_url": f"{url}/reset_prefix_cache",
            "model": "tiny",
            "api_key": "sk-secret-of-images",
            "poll_interval_seconds": 0.5,
        },
        "aisbench": {"work_dir": "./aisbench", "config": "./text_template.py", "model": {"batch_size": 4}},
        "multimodal": {"mmmu_parquet_dir": "./MMMU", "scenarios": ["multi_720p_5"]},
    }
    path = directory / "scenario.json"
    path.write_text(json.dumps(document))
    command_line("prepare", "--mode", "mm", "--scenario", path, cwd=directory)
    return path


def configuration(tokenizer: Path, **options: Any) -> ServerConfiguration:
    return ServerConfiguration(
        tokenizer=tokenizer,
        model="tiny",
        block_size=32,
        data_parallel_size=2,
        prefill_tokens_per_second=None,
        **options,
    )


def test_a_run_sends_the_images_before_the_texts_and_reports_the_counters(
    tmp_path: Path, qwen3_tokenizer_dir: Path, command_line: CommandLine
) -> None:
    bodies: list[dict[str, Any]] = []

    async def listen(request: Request) -> Response | None:
        if request.url.path == "/v1/chat/completions":
            bodies.append(json.loads(await request.body()))
        return None

    server = configuration(qwen3_tokenizer_dir)
    with running_server(server, api_key="sk-secret-of-images", fault_hook=listen) as url:
        scenario = prepare(tmp_path, url, qwen3_tokenizer_dir, command_line)
        done = command_line("run", "--scenario", scenario, cwd=tmp_path)
        metrics = httpx.get(f"{url}/metrics", trust_env=False).text
    assert "note: aisbench.config is a template for text" in done.stderr
    (manifest,) = tmp_path.glob("out/*/result/*.manifest.json")
    (rows_path,) = manifest.parent.glob("*.multi_720p_5.requests.jsonl")
    rows = [json.loads(line) for line in rows_path.read_text().splitlines()]

    # The ranks are probed with texts, on chat completions, too.
    probe, *formal = (body for body in bodies if not isinstance(body["messages"][0]["content"], str))
    assert [part["type"] for part in probe["messages"][0]["content"]] == ["image_url"] * 5 + ["text"]
    data_url = f"data:image/jpeg;base64,{base64.b64encode(IMAGE).decode()}"
    expected = {
        row["question"]: [
            {
                "role": "user",
                "content": [
                    *[{"type": "image_url", "image_url": {"url": data_url}}] * 5,
                    {"type": "text", "text": row["question"]},
                ],
            }
        ]
        for row in rows
    }
    assert len(formal) == len(rows)
    assert sorted(body["messages"][0]["content"][-1]["text"] for body in formal) == sorted(r["question"] for r in rows)
    for body in formal:
        assert body["messages"] == expected[body["messages"][0]["content"][-1]["text"]]
        assert (body["max_tokens"], body["stream"], body["model"]) == (3, True, "tiny")

    (analysis_path,) = manifest.parent.glob("*.analysis.json")
    analysis = json.loads(analysis_path.read_text())
    baseline, after = (analysis["runtime"][f"metrics_{name}"]["raw_prometheus"] for name in ("baseline", "after"))
    queries, hits = (
        counted(after, f"prefix_cache_{name}") - counted(baseline, f"prefix_cache_{name}")
        for name in ("queries", "hits")
    )
    assert (counted(metrics, "prefix_cache_queries"), counted(metrics, "prefix_cache_hits")) == (
        counted(after, "prefix_cache_queries"),
        counted(after, "prefix_cache_hits"),
    )
    actual = analysis["actual"]
    assert (analysis["status"], analysis["warnings"]) == ("complete", [])
    assert (actual["global_queries"], actual["global_hits"]) == (queries, hits)
    assert 0 < hits < queries and hits % 32 == 0
    # A first request of each rank computes the images; with four in flight at most four do.
    assert hits >= (len(rows) - 8) * (TOKENS_OF_FIVE // 32 * 32)
    assert analysis["server_usage"]["prompt_tokens"] == queries
    assert analysis["server_usage"]["cached_tokens"] == hits
    # The five images of the first request: one is new. The probe's image was looked up before the baseline.
    assert actual["mm_cache"]["queries"] == 5 * len(rows)
    assert actual["mm_cache"]["hits"] == 5 * len(rows) - 1
    assert [finding["code"] for finding in analysis["findings"]] == ["NO_THEORY"]
    assert "theory" not in analysis and analysis["runtime"]["reset"]["proven"] is True

    result = analysis["runtime"]["aisbench"]
    details = Path(result["details"]).read_text()
    assert "base64," not in details and len(details) < 100_000
    report = json.loads(command_line("report", "--manifest", manifest, "--json", cwd=tmp_path).stdout)
    metrics = report["aisbench"]["metrics"]
    assert {"TTFT", "TPOT", "ITL", "E2EL", "InputTokens", "OutputTokens"} <= set(metrics)
    assert metrics["OutputTokens"]["Max"] == "3.0"
    assert metrics["ITL"]["N"] == len(rows)
    assert (report["prefix_cache"]["actual_hit_tokens"], report["prefix_cache"]["actual_input_tokens"]) == (
        hits,
        queries,
    )
    assert report["performance"]["latency"]["ttft_ms"]["count"] == len(rows)
    assert report["run"]["mode"] == "multi_720p_5"
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or path == scenario or b"sk-secret-of-images" not in path.read_bytes()

    for name, text in (("baseline", baseline), ("after", after)):
        (tmp_path / f"{name}.prom").write_text(text)
    snapshots = ("--baseline", tmp_path / "baseline.prom", "--after", tmp_path / "after.prom")
    again = json.loads(command_line("analyze", "--manifest", manifest, *snapshots, cwd=tmp_path).stdout)
    assert (again["status"], again["actual"], again["server_usage"]) == ("analyzed", actual, analysis["server_usage"])
    proven = json.loads(command_line("validate", "--deep", "--scenario", scenario, cwd=tmp_path).stdout)
    assert (proven["ok"], proven["deep"]["tokens"]) == (True, 30 * len(rows))
    refused = command_line("run", "--scenario", scenario, "--config", "x.py", cwd=tmp_path, expect=2)
    assert "error [CONFIG_IS_FOR_TEXT] --config: " in refused.stderr


def test_a_server_that_takes_no_images_is_told_before_anything_is_measured(
    tmp_path: Path, qwen3_tokenizer_dir: Path, command_line: CommandLine
) -> None:
    async def refuse(request: Request) -> Response | None:
        if b"image_url" not in await request.body():
            return None
        message = "tiny is not a multimodal model"
        return JSONResponse({"error": {"message": message, "type": "BadRequestError", "code": 400}}, 400)

    with running_server(configuration(qwen3_tokenizer_dir), api_key="sk-secret-of-images", fault_hook=refuse) as url:
        scenario = prepare(tmp_path, url, qwen3_tokenizer_dir, command_line)
        done = command_line("run", "--scenario", scenario, cwd=tmp_path, expect=3)
        metrics = httpx.get(f"{url}/metrics", trust_env=False).text
    assert (
        f"error [IMAGES_NOT_TAKEN] {url}/v1/chat/completions: the server does not take a request with 5 small images: "
        "it answered 400: tiny is not a multimodal model\n"
    ) in done.stderr
    assert "run failed in the phase precheck" in done.stderr
    assert counted(metrics, "prefix_cache_queries") == 0


def test_a_run_killed_in_the_middle_leaves_the_data_set_whole(
    tmp_path: Path, qwen3_tokenizer_dir: Path, command_line: CommandLine
) -> None:
    server = configuration(qwen3_tokenizer_dir, decode_tokens_per_second=2.0)
    with running_server(server, api_key="sk-secret-of-images") as url:
        scenario = prepare(tmp_path, url, qwen3_tokenizer_dir, command_line, count=200)
        run = subprocess.Popen(
            [sys.executable, "-m", "ais_bench_prefix_cache", "run", "--scenario", str(scenario)],
            cwd=tmp_path,
            env=os.environ.copy(),
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 240
        while counted(httpx.get(f"{url}/metrics", trust_env=False).text, "mm_cache_queries") < 30:
            assert time.monotonic() < deadline and run.poll() is None
            time.sleep(0.5)
        run.send_signal(signal.SIGTERM)
        _, said = run.communicate(timeout=60)
    assert run.returncode == 143, said
    assert "run terminated in the phase formal" in said
    (manifest,) = tmp_path.glob("out/*/result/*.manifest.json")
    proven = json.loads(command_line("validate", "--manifest", manifest, cwd=tmp_path).stdout)
    assert (proven["ok"], proven["rows"]) == (True, 200)
    (analysis,) = manifest.parent.glob("*.analysis.json")
    assert json.loads(analysis.read_text())["status"] == "prepared"
