"""The law of every exchange: its time, its size, where it goes, and what of a server's words is shown."""

from __future__ import annotations

import base64
import gzip
import json
import time
import zlib
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from tests.doubles.fake_service import URL, service_config
from tests.doubles.raw_server import Behaviour, for_ever, once, raw_server

from ais_bench_prefix_cache.foundation.errors import Problem, ServiceError
from ais_bench_prefix_cache.service import transport
from ais_bench_prefix_cache.service.client import ServiceClient

SECRET = "sk-very-secret-0123456789"
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n"
LIMIT = 0.5
"""``service.timeout_seconds`` of these tests."""


def problem_of(action: Callable[[], object]) -> Problem:
    with pytest.raises(ServiceError) as caught:
        action()
    (problem,) = caught.value.problems
    return problem


def models_of(url: str, **changes: Any) -> object:
    config = service_config(inference_urls=(f"{url}/v1/completions",), timeout_seconds=LIMIT, **changes)
    with ServiceClient(config) as client:
        return client.models()


EMPTY_DEFLATE_BLOCK = b"\x00\x00\x00\xff\xff"


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(for_ever(b""), id="silence"),
        pytest.param(for_ever(b"x", before=OK + b"x-slow: "), id="a header byte now and then"),
        pytest.param(for_ever(b"x-more: 1\r\n", before=OK, pause=0.1), id="header lines without end"),
        pytest.param(for_ever(b"HTTP/1.1 100 Continue\r\n\r\n"), id="100 Continue without end"),
        pytest.param(for_ever(b"1\r\nx\r\n", before=CHUNKED + b"\r\n"), id="chunks without end"),
        pytest.param(for_ever(b"x", before=OK + b"\r\n"), id="a body without length or end"),
        pytest.param(
            for_ever(b"5\r\n" + EMPTY_DEFLATE_BLOCK + b"\r\n", before=CHUNKED + b"content-encoding: deflate\r\n\r\n"),
            id="empty compressed blocks",
        ),
        pytest.param(for_ever(b"", before=OK + b"content-length: 9\r\n\r\nxxx"), id="less than was promised"),
    ],
)
def test_an_exchange_ends_in_its_time_whatever_the_server_does(behaviour: Behaviour) -> None:
    with raw_server(behaviour) as url:
        begin = time.monotonic()
        problem = problem_of(lambda: models_of(url))
        took = time.monotonic() - begin
    assert (problem.code, problem.message) == ("TIMEOUT", f"no complete answer within {LIMIT:g} s")
    assert LIMIT * 0.9 < took < LIMIT + 2


def test_an_answer_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "LARGEST_TEXT_BYTES", 1 << 20)
    bomb = gzip.compress(b"x" * (1 << 24))
    head = OK + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(bomb)
    with raw_server(once(head + bomb)) as url:
        assert problem_of(lambda: models_of(url)).code == "ANSWER_TOO_LARGE"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"", "CONNECTION_LOST"),
        (b"no HTTP at all\r\n\r\n", "CONNECTION_LOST"),
        (OK + b"content-length: 9\r\n\r\nxxx", "CONNECTION_LOST"),
        (OK + b"content-length: nine\r\n\r\nxxx", "CONNECTION_LOST"),
        (CHUNKED + b"\r\nzz\r\nxxx", "CONNECTION_LOST"),
        (OK + b"x: " + b"x" * 200_000 + b"\r\n\r\n", "CONNECTION_LOST"),
        (OK + b"content-encoding: gzip\r\ncontent-length: 3\r\n\r\nxxx", "UNEXPECTED_ANSWER"),
        (OK + b"content-length: 3\r\n\r\n\xff\xfe\xfd", "UNEXPECTED_ANSWER"),
    ],
)
def test_broken_answers_end_in_a_named_error(answer: bytes, code: str) -> None:
    with raw_server(once(answer)) as url:
        assert problem_of(lambda: models_of(url)).code == code


DEEP = b"[" * 200_000


@pytest.mark.parametrize(
    "body",
    [
        DEEP,
        b'{"data":' * 100_000,
        b'{"data": [{"id": "tiny", "max_model_len": NaN}]}',
        b'{"data": [{"id": "tiny", "max_model_len": -1}]}',
        b'{"data": [{"id": "tiny", "max_model_len": 1e400}]}',
        b'{"data": [{"id": "tiny", "max_model_len": 64.5}]}',
        b'{"data": [{"id": "tiny", "max_model_len": true}]}',
        b'{"data": [{"id": "tiny", "max_model_len": "64"}]}',
        b'{"data": [{"id": "tiny", "max_model_len": ' + b"9" * 5000 + b"}]}",
        b'{"data": {"id": "tiny"}}',
        b'{"data": null}',
        b"null",
        b"",
    ],
    ids=lambda body: repr(body[:40]),
)
def test_json_of_any_kind_ends_in_a_named_error(body: bytes) -> None:
    client = client_of(lambda _request: httpx.Response(200, content=body))
    assert problem_of(client.models).code == "UNEXPECTED_ANSWER"


@pytest.mark.parametrize("tokens", [-1, 1.5, "7", True, 10**30, [], {}])
def test_a_count_of_tokens_that_is_none_is_named(tokens: object) -> None:
    client = client_of(lambda _request: httpx.Response(200, json={"usage": {"prompt_tokens": tokens}}))
    problem = problem_of(lambda: client.complete("hello"))
    assert problem.code == "UNEXPECTED_ANSWER"
    assert problem.message.startswith("says that usage.prompt_tokens is ")


@pytest.mark.parametrize("path", ["models", "complete", "tokenize", "version", "scrape", "reset"])
def test_deep_json_is_no_internal_error_anywhere(path: str) -> None:
    client = client_of(lambda _request: httpx.Response(200, content=DEEP))
    asked: dict[str, Callable[[], object]] = {
        "models": client.models,
        "complete": lambda: client.complete("hello"),
        "tokenize": lambda: client.tokenize("hello"),
        "version": client.version,
        "scrape": client.scrape,
        "reset": lambda: client.reset(f"{URL}/reset_prefix_cache"),
    }
    try:
        asked[path]()
    except ServiceError as error:
        assert {problem.code for problem in error.problems} <= {"UNEXPECTED_ANSWER", "NOT_METRICS"}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_shown_and_not_followed(status: int) -> None:
    seen = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(str(request.url))
        return httpx.Response(status, headers={"location": "http://user:hush@elsewhere.test/v1/models"})

    for action in (
        lambda client: client.models(),
        lambda client: client.complete("hello"),
        lambda client: client.scrape(),
        lambda client: client.reset(f"{URL}/reset_prefix_cache"),
    ):
        problem = problem_of(lambda action=action: action(client_of(answer, api_key=SECRET)))  # type: ignore[misc]
        assert (problem.code, problem.message) == (
            "REDIRECTED",
            f"answered {status}: it points to http://elsewhere.test/v1/models",
        )
    assert {httpx.URL(url).host for url in seen} == {"service.test"}


def test_cookies_are_not_kept() -> None:
    seen = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("cookie"))
        return httpx.Response(200, json={"data": []}, headers={"set-cookie": "route=a; Path=/"})

    client = client_of(answer)
    client.models()
    client.models()
    assert seen == [None, None]


def base64_amid(secret: str, before: str) -> str:
    return base64.b64encode(f"{before}{secret}x".encode()).decode()


@pytest.mark.parametrize(
    "echo",
    [
        SECRET,
        quote(SECRET, safe=""),
        "".join(f"%{ord(character):02X}" for character in SECRET),
        "".join(f"%25{ord(character):02x}" for character in SECRET),
        "".join(f"\\u{ord(character):04x}" for character in SECRET),
        "".join(f"\\x{ord(character):02x}" for character in SECRET),
        "".join(f"&#{ord(character)};" for character in SECRET),
        "".join(f"&#x{ord(character):X};" for character in SECRET),
        SECRET.encode().hex(),
        SECRET.encode().hex().upper(),
        SECRET[:8] + "".join(f"%{ord(character):02x}" for character in SECRET[8:]),
        SECRET[:8] + "\u200b" + SECRET[8:],
        SECRET[:8] + "\x1b" + SECRET[8:],
        *(base64_amid(SECRET, before) for before in ("", "k", "ke", "Bearer ")),
        base64.urlsafe_b64encode(f"Bearer {SECRET}".encode()).decode(),
    ],
)
@pytest.mark.parametrize("padding", [0, 170, 180, 190, 500])
def test_the_key_is_cleaned_before_the_words_are_cut(echo: str, padding: int) -> None:
    body = "." * padding + echo
    said = problem_of(client_of(lambda _request: httpx.Response(400, text=body), api_key=SECRET).models).message
    for start in range(len(SECRET) - 7):
        assert SECRET[start : start + 8] not in said
    for start in range(len(echo) - 11):
        assert echo[start : start + 12] not in said
    if padding == 0:
        assert "***" in said


def test_the_key_is_in_no_text_of_metrics() -> None:
    text = f'vllm:prefix_cache_queries_total{{engine="{SECRET}"}} 1\n'
    (kept,) = client_of(lambda _request: httpx.Response(200, text=text), api_key=SECRET).scrape()
    assert kept == 'vllm:prefix_cache_queries_total{engine="***"} 1\n'


@pytest.mark.parametrize("character", ["\x1b", "\x07", "\x9b", "\u202e", "\u2066", "\u2028", "\x00", "\r", "\u200f"])
def test_what_steers_a_terminal_is_not_shown(character: str) -> None:
    for answer in (
        httpx.Response(500, text=f"a{character}[31mb"),
        httpx.Response(500, content=json.dumps({"error": {"message": f"a{character}[31mb"}})),
        httpx.Response(200, json={"data": [{"id": "tiny", "max_model_len": f"a{character}b"}]}),
    ):
        said = problem_of(client_of(lambda _request, answer=answer: answer).models).message  # type: ignore[misc]
        assert character not in said
        assert said.isprintable()


def test_zlib_and_gzip_are_read() -> None:
    body = json.dumps({"data": [{"id": "tiny", "max_model_len": 64}]}).encode()
    for encoding, packed in (("gzip", gzip.compress(body)), ("deflate", zlib.compress(body))):
        head = OK + f"content-encoding: {encoding}\r\ncontent-length: {len(packed)}\r\n\r\n".encode()
        with raw_server(once(head + packed)) as url:
            assert models_of(url) is not None


def client_of(answer: Callable[[httpx.Request], httpx.Response], **changes: Any) -> ServiceClient:
    return ServiceClient(service_config(**changes), transport=httpx.MockTransport(answer))
