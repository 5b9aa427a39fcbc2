"""The embedded server and a real vLLM get the same requests and must answer, route, count and reset the same.

What the embedded server says, vLLM says too; what vLLM says beyond it is null or 0. Generated text, ids, times and
names of the maker are not compared.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.real.real_server import make_tiny_model, settled

from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.running import running_server

pytestmark = pytest.mark.real

INCOMPARABLE = {"id", "created", "text", "content", "system_fingerprint", "root", "owned_by", "permission"}
OURS_ALONE = {"embedded_server"}
PROMPT = list(range(1000, 1100))
VOCABULARY = (1000, 3300)
"""Ids that the tokenizer of the tests has."""
CHAT = [{"role": "user", "content": "Hello there"}]


@dataclass(frozen=True)
class Exchange:
    """One request to both servers."""

    path: str
    body: Any = None
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes | None = None


def completion(prompt: Any = PROMPT, rank: str = "0", **options: Any) -> Exchange:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 2, "ignore_eos": True} | options
    return Exchange("/v1/completions", body, headers={"X-data-parallel-rank": rank})


def chat(messages: Any = CHAT, **options: Any) -> Exchange:
    body = {"model": "tiny", "messages": messages, "max_tokens": 2, "ignore_eos": True} | options
    return Exchange("/v1/chat/completions", body, headers={"X-data-parallel-rank": "1"})


USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}

EXCHANGES = {
    "first": completion(),
    "again": completion(),
    "other rank": completion(rank="1"),
    "rank out of range": completion(rank="2"),
    "negative rank": completion(rank="-1"),
    "text": completion("Hello world, this is a test"),
    "several texts": completion(["Hello world", "Second one"]),
    "lists of ids, two choices": completion([[1, 2, 3], [4, 5, 6]], n=2, temperature=1),
    "greedy choices": completion(n=2, temperature=0),
    "empty text": completion(""),
    "no prompts": completion([]),
    "other model": completion(model="other"),
    "other model, streamed": completion(model="other", stream=True),
    "prompt as long as the model allows": completion([5] * 8192),
    "prompt too long": completion([5] * 9000),
    "answer cut by the model's length": completion([5] * 8190, max_tokens=10),
    "default length": completion(max_tokens=None),
    "no tokens wanted": completion(max_tokens=0),
    "length no number": completion(max_tokens="x"),
    "no choices": completion(n=0),
    "choices no number": completion(n="x"),
    "id outside the vocabulary": completion([99999999]),
    "stream": completion(stream=True),
    "stream with usage": completion(**USAGE),
    "stream with usage in each chunk": completion(
        stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}
    ),
    "stream options without a stream": completion(stream_options={"include_usage": True}),
    "salted": completion(cache_salt="pepper"),
    "salted again": completion(cache_salt="pepper"),
    "broken JSON": Exchange(
        "/v1/completions", content=b'{"model": "tiny", ', headers={"content-type": "application/json"}
    ),
    "no body": Exchange("/v1/completions", content=b"", headers={"content-type": "application/json"}),
    "a list": Exchange("/v1/completions", [1]),
    "not JSON": Exchange("/v1/completions", content=b"{}", headers={"content-type": "text/plain"}),
    "GET": Exchange("/v1/completions", method="GET"),
    "chat": chat(),
    "chat, streamed": chat(**USAGE),
    "chat in parts": chat(
        [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]},
        ]
    ),
    "chat without messages": Exchange("/v1/chat/completions", {"model": "tiny"}),
    "chat, empty": chat([]),
    "chat, other length": chat(max_completion_tokens=3),
    "models": Exchange("/v1/models", method="GET"),
    "health": Exchange("/health", method="GET"),
    "version": Exchange("/version", method="GET"),
    "no such path": Exchange("/nope", method="GET"),
    "tokenize": Exchange("/tokenize", {"model": "tiny", "prompt": "Hello world"}),
    "tokenize without model": Exchange("/tokenize", {"prompt": "Hello world", "return_token_strs": True}),
    "tokenize plain": Exchange("/tokenize", {"prompt": "Hello world", "add_special_tokens": False}),
    "tokenize chat": Exchange("/tokenize", {"model": "tiny", "messages": CHAT}),
    "tokenize chat that is not due": Exchange("/tokenize", {"messages": CHAT, "add_generation_prompt": False}),
    "tokenize, other model": Exchange("/tokenize", {"model": "x", "prompt": "a"}),
    "detokenize": Exchange("/detokenize", {"model": "tiny", "tokens": [970, 1879]}),
    "reset by GET": Exchange("/reset_prefix_cache", method="GET"),
    "reset": Exchange("/reset_prefix_cache"),
    "after the reset": completion(rank="1"),
    "reset of running requests": Exchange("/reset_prefix_cache?reset_running_requests=true"),
    "reset of nonsense": Exchange("/reset_prefix_cache?reset_running_requests=zzz"),
}


@pytest.fixture(scope="module")
def qwen3_model(tmp_path_factory: pytest.TempPathFactory, qwen3_tokenizer_dir: Path) -> Path:
    """A model whose tokenizer brings a chat template; its directory also serves as the tokenizer's."""
    return make_tiny_model(tmp_path_factory.mktemp("qwen3") / "tiny", qwen3_tokenizer_dir)


@contextmanager
def client_of(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        yield client


def embedded(tokenizer: Path, **options: Any) -> AbstractContextManager[str]:
    defaults: dict[str, Any] = {"model": "tiny", "block_size": 32, "max_model_len": 8192}
    return running_server(ServerConfiguration(tokenizer=tokenizer, **(defaults | options)))


def answer(client: httpx.Client, exchange: Exchange) -> tuple[int, str, list[Any]]:
    """Status, content type, and the body as a list of JSON documents."""
    body: dict[str, Any] = {"json": exchange.body} if exchange.body is not None else {"content": exchange.content}
    response = client.request(exchange.method, exchange.path, headers=exchange.headers, **body)
    kind = response.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
        return response.status_code, kind, [json.loads(line) if line != "[DONE]" else line for line in lines]
    return response.status_code, kind, [json.loads(response.text)] if response.text else []


def difference(ours: Any, theirs: Any, where: str = "") -> str | None:
    """The first place where our document says something else than vLLM's, or keeps silent about something."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            if key in INCOMPARABLE and key != "content":
                continue
            if key in OURS_ALONE and key not in theirs:
                continue
            if key == "content" and isinstance(theirs.get(key), str) and theirs[key] and ours.get(key):
                continue
            if key not in theirs:
                return f"{where}.{key}: vLLM does not say it"
            if key not in ours:
                if theirs[key] in (None, 0):
                    continue
                return f"{where}.{key}: vLLM says {theirs[key]!r}, we nothing"
            if found := difference(ours[key], theirs[key], f"{where}.{key}"):
                return found
        return None
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return next((found for i, (a, b) in pairs if (found := difference(a, b, f"{where}[{i}]"))), None)
    return None if ours == theirs else f"{where}: vLLM says {theirs!r}, we {ours!r}"


def comparable_counters(text: str) -> dict[str, float]:
    """Counters and sizes that follow from the requests, not from the clock or the maker."""
    wanted = re.compile(
        r"^vllm:(\w+_total|request_(prompt|generation)_tokens_(sum|count)|time_to_first_token_seconds_count"
        r"|e2e_request_latency_seconds_count|inter_token_latency_seconds_count)\{"
    )
    unwanted = re.compile(r"^vllm:(estimated|iteration|admission|prompt_tokens_cached_by_source)")
    lines = (line.rpartition(" ") for line in text.splitlines() if wanted.match(line) and not unwanted.match(line))
    return {series: float(value) for series, _, value in lines}


def test_the_same_requests_get_the_same_answers_and_counters(serving: Callable[..., Any], qwen3_model: Path) -> None:
    with (
        serving(qwen3_model, engines=2, options=("--api-server-count", "1")) as judged,
        embedded(qwen3_model, data_parallel_size=2) as url,
        client_of(url) as ours,
        client_of(judged.real.url) as theirs,
    ):
        differences = []
        for name, exchange in EXCHANGES.items():
            found = difference(list(answer(ours, exchange)), list(answer(theirs, exchange)), name)
            differences += [found] if found else []
        assert differences == []

        # Without a header idle engines take turns; vLLM hears of finished requests only every 100 ms.
        turns = []
        for _ in range(6):
            time.sleep(0.3)
            body = {"model": "tiny", "prompt": [31] * 40, "max_tokens": 1}
            usages = [client.post("/v1/completions", json=body).json()["usage"] for client in (ours, theirs)]
            turns.append([usage["prompt_tokens_details"]["cached_tokens"] for usage in usages])
        assert turns == [[0, 0], [0, 0], *[[32, 32]] * 4]

        assert [_busy_reset(client) for client in (ours, theirs)] == [[False, 96, 0, True]] * 2

        mine, real = (comparable_counters(settled_metrics(client)) for client in (ours, theirs))
        # The aborted stream of the busy reset ended somewhere else on each.
        moving = re.compile(r"^vllm:(generation_tokens|inter_token|request_generation_tokens|mm_cache)")
        assert {series: value for series, value in mine.items() if not moving.match(series)} == {
            series: real[series] for series in mine if not moving.match(series)
        }


def settled_metrics(client: httpx.Client) -> str:
    return settled(lambda: client.get("/metrics").text)


def _busy_reset(client: httpx.Client) -> list[Any]:
    """Reset's answer while rank 0 is busy, what both ranks still hit, and reset's answer when all is quiet."""
    for rank in ("0", "1"):
        answer(client, completion(list(range(3000, 3100)), rank))
    body = completion(list(range(64)), max_tokens=8000, stream=True).body
    with client.stream("POST", "/v1/completions", json=body, headers={"X-data-parallel-rank": "0"}) as stream:
        lines = stream.iter_lines()
        next(lines)
        refused = client.post("/reset_prefix_cache").json()["success"]
        hits = [
            answer(client, completion(list(range(3000, 3100)), rank))[2][0]["usage"]["prompt_tokens_details"][
                "cached_tokens"
            ]
            for rank in ("0", "1")
        ]
    deadline = time.monotonic() + 20
    while not (done := client.post("/reset_prefix_cache").json()["success"]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [refused, *hits, done]


@pytest.mark.parametrize("server", ["forty-blocks"], indirect=True)
def test_a_small_cache_evicts_the_same_blocks(server: Any) -> None:
    randomness = random.Random(41)
    trunks = [[randomness.randrange(*VOCABULARY) for _ in range(800)] for _ in range(4)]
    requests = []
    for _ in range(400):
        shared = randomness.randrange(0, 25) * 32 + randomness.choice((0, 0, 7))
        tail = [randomness.randrange(*VOCABULARY) for _ in range(randomness.randrange(1, 100))]
        requests.append((randomness.choice(trunks)[:shared] + tail, randomness.choice((1, 1, 2, 40))))
    with (
        embedded(
            server.tokenizer,
            num_blocks=40,
            max_model_len=1024,
            prefill_tokens_per_second=None,
            decode_tokens_per_second=None,
        ) as url,
        client_of(url) as ours,
        client_of(server.real.url) as theirs,
    ):
        assert theirs.post("/reset_prefix_cache").json() == {"success": True}
        hits: list[list[int]] = []
        for client in (ours, theirs):
            usages = [
                answer(client, completion(prompt, max_tokens=max_tokens))[2][0]["usage"]
                for prompt, max_tokens in requests
            ]
            hits.append([usage["prompt_tokens_details"]["cached_tokens"] for usage in usages])
    assert hits[0] == hits[1]
    # Neither always nor never: the cache is too small for all trunks, and large enough for some.
    assert 40 < sum(hit > 0 for hit in hits[0]) < 360
