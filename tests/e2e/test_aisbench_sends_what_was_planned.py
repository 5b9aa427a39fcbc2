"""The real AISBench with our adapters against a small server that notes what arrives."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.aisbench_runs import run_aisbench

from ais_bench_prefix_cache.aisbench.job import AISBenchJob
from ais_bench_prefix_cache.aisbench.request_usage import load_request_usage
from ais_bench_prefix_cache.aisbench.results import performance_report

pytestmark = pytest.mark.aisbench

API_KEY = "sk-never-written-0123456789"
PROMPTS = ("{answer} {idx} {max_out_len} {question}", "日本語 \u2028 \x85 🙂\r\n{{x}}", "quotes \"' \\ and\ttabs")


def _files_that_contain(directory: Path, secret: str) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


def test_prompts_lengths_headers_key_and_usage_are_exact(
    fake_server: Any,
    prepare_rows: Callable[..., AISBenchJob],
    make_answer: type[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    seen_in_scratch = []

    def behave(request: Any) -> Any:
        seen_in_scratch.extend(_files_that_contain(scratch, API_KEY))
        index = int(request.prompt.split()[0])
        details = ({"cached_tokens": 0}, {"cached_tokens": 16}, {"cached_tokens": None}, None, {})[index % 5]
        return make_answer(prompt_tokens_details=details) if index < 10 else make_answer()

    fake_server.behave = behave
    rows: list[dict[str, Any]] = [
        {"question": f"{index} {PROMPTS[index % 3]}", "max_tokens": 1 + index % 4, "dp_rank": index % 2}
        for index in range(12)
    ]
    progress: list[int] = []
    job = prepare_rows(rows, fake_server.url, api_key=API_KEY)
    result = run_aisbench(job, progress.append)

    assert [request.prompt for request in fake_server.seen] == [row["question"] for row in rows]
    assert [request.body["max_tokens"] for request in fake_server.seen] == [row["max_tokens"] for row in rows]
    assert [request.headers["x-data-parallel-rank"] for request in fake_server.seen] == ["0", "1"] * 6
    assert {request.headers["authorization"] for request in fake_server.seen} == {f"Bearer {API_KEY}"}
    assert {request.body["model"] for request in fake_server.seen} == {"tiny"}
    assert {request.path for request in fake_server.seen} == {"/v1/completions"}

    assert result.usage_path is not None
    usage = load_request_usage(result.usage_path).requests
    assert [row.sequence_index for row in usage] == list(range(12))
    assert [(row.state, row.cached_tokens) for row in usage] == [
        ("reported", 0),
        ("reported", 16),
        ("null", None),
        ("null", None),
        ("absent", None),
    ] * 2 + [("absent", None)] * 2
    assert [row.prompt_tokens for row in usage] == [len(row["question"].split()) for row in rows]
    assert [row.completion_tokens for row in usage] == [row["max_tokens"] for row in rows]
    assert all(row.success and row.attempts == 1 for row in usage)
    assert all(0 <= row.sent <= row.first_token <= row.finished for row in usage)  # type: ignore[operator]

    assert progress[-1] == 12
    assert not seen_in_scratch
    assert not _files_that_contain(tmp_path, API_KEY)
    assert list(scratch.iterdir()) == []
    assert [path.name for path in job.work_dir.iterdir()] == [result.exp_dir.name]

    report = performance_report({"runtime": {"aisbench": result.to_json()}}, analysis_path=job.manifest_path)
    assert set(report["metrics"]) >= {"E2EL", "TTFT", "TPOT", "ITL", "InputTokens", "OutputTokens"}
    assert report["metrics"]["TPOT"]["N"] == 9, "a request with one output token has no time between tokens"
    assert report["common"]["Total Requests"] == {"total": 12}
    details = [json.loads(line) for line in result.details_path.open(encoding="utf-8")]
    assert {row["input"] for row in details} == {f"row {index}" for index in range(12)}


@pytest.mark.parametrize(("batch_size", "stream"), [(1, True), (8, False), (32, True), (600, True)])
def test_a_lane_sends_the_next_request_only_after_the_first_token_of_the_one_before(
    fake_server: Any, prepare_rows: Callable[..., AISBenchJob], make_answer: type[Any], batch_size: int, stream: bool
) -> None:
    delays = random.Random(batch_size)
    fake_server.behave = lambda _: make_answer(
        first_token_after=delays.uniform(0.0, 0.06), token_every=0.01, prompt_tokens_details={"cached_tokens": 0}
    )
    # Five lanes of very different length, and a long run of one lane in the middle that could fill every slot.
    lanes = [("group-0", 0), ("group-0", 1), ("group-1", 0), ("group-1", 1)] * 10 + [("group-2", 0)] * 40
    lanes += [("group-1", 0), ("group-0", 1)] * 10
    rows: list[dict[str, Any]] = [
        {"question": f"{index} text", "group_id": group, "dp_rank": rank, "max_tokens": 3}
        for index, (group, rank) in enumerate(lanes)
    ]
    result = run_aisbench(prepare_rows(rows, fake_server.url, batch_size=batch_size, stream=stream))

    by_lane = defaultdict(list)
    for request in fake_server.seen:
        index = int(request.prompt.split()[0])
        by_lane[lanes[index]].append((index, request))
    for lane, seen in by_lane.items():
        indexes = [index for index, _ in seen]
        assert indexes == sorted(indexes) == [index for index, of in enumerate(lanes) if of == lane]
        for (_, before), (_, after) in pairwise(seen):
            assert after.arrived >= (before.first_token if stream else before.finished)
    overlaps = sum(before.finished > after.arrived for before, after in pairwise(fake_server.seen))
    if batch_size == 1:
        assert [int(request.prompt.split()[0]) for request in fake_server.seen] == list(range(len(rows)))
        assert overlaps == 0
    else:
        assert overlaps > len(rows) / 3, "lanes must run side by side"
    in_flight = _most_in_flight(fake_server.seen)
    assert in_flight <= batch_size

    report = performance_report({"runtime": {"aisbench": result.to_json()}}, analysis_path=result.exp_dir)
    assert ("TTFT" in report["metrics"]) is stream
    assert ("ITL" in report["metrics"]) is stream
    assert ("Prefill Token Throughput" in report["common"]) is stream
    assert "E2EL" in report["metrics"]


def _most_in_flight(requests: Sequence[Any]) -> int:
    moments = [(request.arrived, 1) for request in requests] + [(request.finished, -1) for request in requests]
    in_flight = most = 0
    for _, change in sorted(moments):
        in_flight += change
        most = max(most, in_flight)
    return most


@pytest.mark.parametrize("batch_size", [1, 4])
def test_sixty_fast_requests_all_arrive(
    fake_server: Any, prepare_rows: Callable[..., AISBenchJob], batch_size: int
) -> None:
    """AISBench's own status queue loses such runs on a busy machine; see test_aisbench_status_queue.py."""
    rows: list[dict[str, Any]] = [{"question": f"{index} text", "max_tokens": 1} for index in range(60)]
    result = run_aisbench(prepare_rows(rows, fake_server.url, batch_size=batch_size))
    assert sorted(int(request.prompt.split()[0]) for request in fake_server.seen) == list(range(60))
    assert not any("x-data-parallel-rank" in request.headers for request in fake_server.seen)
    assert result.request_count == 60


OWN_TEMPLATE = """
import json, os
from ais_bench.benchmark.models import VLLMCustomAPI

manifest = json.load(open(os.environ["AISBENCH_PREFIX_CACHE_MANIFEST"], encoding="utf-8"))
config = manifest["effective_config"]
full = os.environ["AISBENCH_PREFIX_CACHE_MANIFEST"].replace(".manifest.json", ".full.jsonl")
datasets = [
    dict(
        abbr="my data",
        type="ais_bench_prefix_cache.aisbench.adapters.dataset.PrefixCacheDataset",
        path=full,
        reader_cfg=dict(input_columns=["question", "max_out_len"], output_column="answer"),
        infer_cfg=dict(
            prompt_template=dict(
                type="ais_bench.benchmark.openicl.icl_prompt_template.PromptTemplate", template="{question}"
            ),
            retriever=dict(type="ais_bench.benchmark.openicl.icl_retriever.ZeroRetriever"),
            inferencer=dict(type="ais_bench.benchmark.openicl.icl_inferencer.GenInferencer"),
        ),
    )
]
models = [
    dict(
        abbr="my model",
        attr="service",
        type=VLLMCustomAPI,
        path=config["tokenizer"]["path"],
        model=config["service"]["model"],
        url=config["service"]["inference_url"].removesuffix("/v1/completions"),
        stream=True,
        retry=1,
        batch_size=4,
        generation_kwargs=dict(temperature=0, ignore_eos=True),
    )
]
"""


def test_a_template_with_aisbench_own_classes_works_without_our_extras(
    fake_server: Any, prepare_rows: Callable[..., AISBenchJob], tmp_path: Path
) -> None:
    template = tmp_path / "my template.py"
    template.write_text(OWN_TEMPLATE, encoding="utf-8")
    rows: list[dict[str, Any]] = [{"question": f"{index} text", "max_tokens": 3} for index in range(8)]
    result = run_aisbench(prepare_rows(rows, fake_server.url, template_path=template))
    assert (result.model_abbr, result.dataset_abbr, result.usage_path) == ("my model", "my data", None)
    assert sorted(request.prompt for request in fake_server.seen) == sorted(row["question"] for row in rows)
    assert {request.body["max_tokens"] for request in fake_server.seen} == {3}
