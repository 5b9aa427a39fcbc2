"""The real AISBench with our adapters against a small server that notes what arrives."""

from __future__ import annotations

import json

import pytest

from ais_bench_prefix_cache.aisbench.launch import run_aisbench
from ais_bench_prefix_cache.aisbench.request_usage import load_request_usage

pytestmark = pytest.mark.aisbench


def test_prompts_lengths_headers_and_usage_are_exact(fake_server, prepare_rows):
    prompts = ["{answer} {idx} {max_out_len} {question}", "日本語 \u2028 \x85 🙂\r\n{{x}}", "quotes \"' \\ and\ttabs"]
    rows = [
        {"question": f"{index} {prompts[index % 3]}", "max_tokens": 1 + index % 4, "dp_rank": index % 2}
        for index in range(12)
    ]
    result = run_aisbench(prepare_rows(rows, fake_server.url))
    assert [request.prompt for request in fake_server.seen] == [row["question"] for row in rows]
    assert [request.body["max_tokens"] for request in fake_server.seen] == [row["max_tokens"] for row in rows]
    assert [request.headers["x-data-parallel-rank"] for request in fake_server.seen] == ["0", "1"] * 6
    usage = load_request_usage(result.usage_path)
    assert [row.sequence_index for row in usage] == list(range(12))
    assert json.loads(result.json_path.read_text())["Total Requests"] == {"total": 12}
