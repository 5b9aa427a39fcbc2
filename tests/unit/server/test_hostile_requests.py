"""Whatever is sent, the embedded server answers with an error of the sender's, never with one of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
import zlib
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ais_bench_prefix_cache.server import application, bodies
from ais_bench_prefix_cache.server.bodies import BodyWorkers
from ais_bench_prefix_cache.server.configuration import ImitatedServer, ServerConfiguration
from ais_bench_prefix_cache.server.protocol import MAX_CHOICES, ApiError
from ais_bench_prefix_cache.server.running import running_server

PATHS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")
MAX_BODY_BYTES = 1 << 20


@pytest.fixture(scope="module")
def client(qwen3_tokenizer_dir: Path) -> Iterator[httpx.Client]:
    yield from client_of("vllm", qwen3_tokenizer_dir)


@pytest.fixture(scope="module")
def sglang_client(qwen3_tokenizer_dir: Path) -> Iterator[httpx.Client]:
    yield from client_of("sglang", qwen3_tokenizer_dir)


def client_of(engine: ImitatedServer, tokenizer: Path) -> Iterator[httpx.Client]:
    configuration = ServerConfiguration(
        tokenizer=tokenizer,
        engine=engine,
        model="tiny",
        max_model_len=512,
        num_blocks=64,
        data_parallel_size=2,
        prefill_tokens_per_second=None,
        decode_tokens_per_second=None,
        max_body_bytes=MAX_BODY_BYTES,
    )
    with running_server(configuration) as url, httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        yield client


def post(client: httpx.Client, path: str, content: bytes, **headers: str) -> httpx.Response:
    return client.post(path, content=content, headers={"content-type": "application/json"} | headers)


def connected(client: httpx.Client) -> socket.socket:
    """A plain connection to the same server."""
    return socket.create_connection((client.base_url.host, client.base_url.port or 80))


def message_of(response: httpx.Response) -> str:
    return str(response.json()["error"]["message"])


def chat(content: Any, role: Any = "user") -> bytes:
    return json.dumps({"messages": [{"role": role, "content": content}], "max_tokens": 1}).encode()


def png(width: int, height: int) -> dict[str, Any]:
    """A part with a PNG that claims so many pixels and holds none of them."""

    def block(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + block(b"IHDR", header) + block(b"IDAT", zlib.compress(b"")) + block(b"IEND", b"")
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64encode(content).decode()}"}}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"model": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b', "prompt": "a", "messages": [], "tokens": []}',
        b'{"prompt": "\\ud800", "tokens": ["\\udfff"], "messages": [{"content": "\\uDBFF"}]}',
        b'{"prompt": "a", "tokens": [1], "messages": [{"content": "a"}], "model": "\\ud800"}',
        b"\xff\xfe\x00",
        b'{"prompt": NaN, "max_tokens": Infinity, "messages": NaN, "tokens": [NaN]}',
        b'{"prompt": "a", "messages": [], "tokens": [' + b"9" * 4000 + b'], "n": ' + b"9" * 4000 + b"}",
        b'{"prompt": "a", "messages": [], "tokens": [1e400, -1], "n": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda content: content[:24].decode("latin-1"),
)
def test_json_that_is_no_request_is_refused(client: httpx.Client, path: str, content: bytes) -> None:
    response = post(client, path, content)
    assert response.status_code in (400, 404), response.text
    assert len(message_of(response)) < 1000


@pytest.mark.parametrize("tokens", [None, "1", [[1]], [-1], [1.5], [True], [2**31], [10**30], ["1"], {"a": 1}])
def test_odd_tokens_are_no_text(client: httpx.Client, tokens: Any) -> None:
    assert post(client, "/detokenize", json.dumps({"tokens": tokens}).encode()).status_code == 400


@pytest.mark.parametrize("size", [(2**31 - 1, 2**31 - 1), (2**31, 1), (8000, 8000), (640, 480)], ids=str)
def test_images_that_claim_too_much_are_refused_before_they_are_decoded(
    client: httpx.Client, size: tuple[int, int]
) -> None:
    response = post(client, "/v1/chat/completions", chat([png(*size)]))
    assert response.status_code == 400
    assert message_of(response).startswith("Failed to load image: ")


def test_many_images_are_refused_together(client: httpx.Client) -> None:
    from tests.doubles.mmmu_directory import drawn

    url = f"data:image/png;base64,{b64encode(drawn(560, 560)).decode()}"
    part = {"type": "image_url", "image_url": {"url": url}}
    assert post(client, "/v1/chat/completions", chat([part])).status_code == 200
    response = post(client, "/v1/chat/completions", chat([part] * 2))
    assert (response.status_code, message_of(response)) == (400, "The images take more than 512 tokens.")


@pytest.mark.parametrize(("role", "content"), [({"a": 1}, "b"), (1, "b"), ("user", [{"type": "text", "text": [1]}])])
def test_roles_and_texts_are_texts(client: httpx.Client, role: Any, content: Any) -> None:
    assert post(client, "/v1/chat/completions", chat(content, role)).status_code == 400


def test_answers_bodies_and_prompts_have_limits(client: httpx.Client) -> None:
    def ask(**body: Any) -> httpx.Response:
        return post(client, "/v1/completions", json.dumps({"max_tokens": 1} | body).encode())

    for body in (
        {"prompt": [1], "n": MAX_CHOICES + 1},
        {"prompt": [[1]] * (MAX_CHOICES + 1)},
        {"prompt": [1], "n": 10**18},
    ):
        response = ask(**body)
        assert response.status_code == 400 and "answers" in message_of(response)
    assert len(ask(prompt=[1], n=MAX_CHOICES).json()["choices"]) == MAX_CHOICES
    response = ask(prompt="a" * 500_000)
    assert response.status_code == 400 and "500000 characters" in message_of(response)
    assert ask(prompt="a" * (MAX_BODY_BYTES - 100)).status_code == 400
    response = ask(prompt="a" * MAX_BODY_BYTES)
    assert (response.status_code, message_of(response)) == (413, f"The body is larger than {MAX_BODY_BYTES} bytes.")


def test_a_body_that_never_ends_is_cut_off_and_one_that_never_comes_times_out(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b" " * 65536

    # The connection may be closed while the client still sends.
    with contextlib.suppress(httpx.WriteError):
        assert client.post("/v1/completions", content=endless()).status_code == 413
    monkeypatch.setattr(bodies, "READING_SECONDS", 0.3)
    with connected(client) as connection:
        connection.sendall(b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n{")
        assert b" 408 " in connection.recv(100)


def test_large_bodies_at_once_are_refused_and_what_was_held_is_let_go(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "BODIES_AT_ONCE", 1)
    half = b" " * (MAX_BODY_BYTES // 2)
    head = f"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: {len(half) + 1}\r\n\r\n".encode()
    with connected(client) as first:
        first.sendall(head + half)
        answers = [post(client, "/tokenize", half + half[:-100]).status_code for _ in range(20)]
        assert 503 in answers
    # The first one hung up, so there is room again.
    deadline = [post(client, "/tokenize", half + half[:-100]).status_code for _ in range(50)]
    assert deadline[-1] == 400


def test_too_many_waiting_answers_are_refused(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = {"prompt": [1] * 10, "n": 8, "max_tokens": 1}
    monkeypatch.setattr(application, "MAX_UNFINISHED", 7)
    assert post(client, "/v1/completions", json.dumps(ask).encode()).status_code == 503
    monkeypatch.setattr(application, "MAX_UNFINISHED", 8)
    assert post(client, "/v1/completions", json.dumps(ask).encode()).status_code == 200
    monkeypatch.setattr(application, "MAX_HELD_TOKENS", 79)
    assert post(client, "/v1/completions", json.dumps(ask).encode()).status_code == 503
    monkeypatch.setattr(application, "MAX_HELD_TOKENS", 80)
    # Whoever finished or went away holds nothing any more.
    assert post(client, "/v1/completions", json.dumps(ask).encode()).status_code == 200


def test_a_client_that_leaves_within_its_body_is_no_fault(
    client: httpx.Client, capfd: pytest.CaptureFixture[str]
) -> None:
    with connected(client) as connection:
        connection.sendall(b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n{")
    assert client.get("/health").status_code == 200
    assert "Traceback" not in capfd.readouterr().err


def test_large_bodies_do_not_wait_for_the_largest_and_too_many_are_refused() -> None:
    async def scene() -> None:
        workers, go = BodyWorkers(), threading.Event()
        waiting = [asyncio.ensure_future(workers.work(5_000_000, go.wait)) for _ in range(8)]
        await asyncio.sleep(0)
        assert await workers.work(10, lambda: "small") == "small"
        assert await asyncio.wait_for(workers.work(300_000, lambda: "large"), 10) == "large"
        with pytest.raises(ApiError) as refused:
            await workers.work(16_000_000, lambda: "one too many")
        assert refused.value.status == 503
        waiting[1].cancel()
        go.set()
        assert await asyncio.gather(*waiting, return_exceptions=True) != []
        assert await asyncio.wait_for(workers.work(5_000_000, lambda: "again"), 10) == "again"
        workers.stop()

    asyncio.run(scene())


def test_small_requests_are_answered_while_a_large_one_is_encoded(client: httpx.Client) -> None:
    large = json.dumps({"prompt": "word " * 100_000}).encode()
    thread = threading.Thread(target=post, args=(client, "/tokenize", large))
    thread.start()
    assert client.get("/health").elapsed.total_seconds() < 5
    thread.join()


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(st.characters(exclude_categories=[]), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
MESSAGES = st.lists(
    st.fixed_dictionaries({}, optional={"role": st.sampled_from(["user", "system", ""]) | ODD, "content": ODD}) | ODD,
    max_size=3,
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "model": st.just("tiny") | ODD,
    "prompt": st.text(max_size=30) | st.lists(st.integers(-1, 200_000), max_size=20) | ODD,
    "messages": MESSAGES | ODD,
    "tokens": st.lists(st.integers(-1, 2**33), max_size=5) | ODD,
    "max_tokens": st.integers(-2, 3) | ODD,
    "max_completion_tokens": st.integers(-2, 3) | ODD,
    "n": st.integers(-1, 4) | ODD,
    "stream": st.booleans() | ODD,
    "stream_options": st.fixed_dictionaries({}, optional={"include_usage": ODD, "continuous_usage_stats": ODD}) | ODD,
    "echo": st.booleans() | ODD,
    "cache_salt": ODD,
    "temperature": ODD,
    "add_special_tokens": ODD,
    "add_generation_prompt": ODD,
    "return_token_strs": ODD,
    "routed_dp_rank": st.integers(-1, 2) | ODD,
}
RANKS = st.sampled_from(["0", "1"]) | st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30)
BODIES = st.fixed_dictionaries({}, optional=FIELDS) | ODD


@given(path=st.sampled_from(PATHS), body=BODIES, rank=RANKS)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_body_leads_to_an_error_of_the_server(client: httpx.Client, path: str, body: Any, rank: str) -> None:
    response = post(client, path, json.dumps(body).encode(), **{"X-data-parallel-rank": rank})
    assert response.status_code < 500, response.text


@given(path=st.sampled_from(PATHS), body=BODIES, rank=RANKS)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_body_leads_to_an_error_of_sglang(sglang_client: httpx.Client, path: str, body: Any, rank: str) -> None:
    response = post(sglang_client, path, json.dumps(body).encode(), **{"X-data-parallel-rank": rank})
    assert response.status_code < 500, response.text


@given(path=st.sampled_from(PATHS), content=st.binary(max_size=200), kind=st.sampled_from(["application/json", "x"]))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_lead_to_an_error_of_the_server(client: httpx.Client, path: str, content: bytes, kind: str) -> None:
    assert client.post(path, content=content, headers={"content-type": kind}).status_code < 500
