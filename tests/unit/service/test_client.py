"""The HTTP client: what it sends where, and the whole sentence for every way in which a server can fail."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from tests.doubles.fake_service import URL, FakeService, service_config

from ais_bench_prefix_cache.foundation.errors import ServiceError
from ais_bench_prefix_cache.service.client import Completion, ServiceClient, base_url

SECRET = "sk-very-secret-0123456789"


def client_of(answer: Callable[[httpx.Request], httpx.Response], **changes: Any) -> ServiceClient:
    return ServiceClient(service_config(**changes), transport=httpx.MockTransport(answer))


def failure(action: Callable[[], object]) -> str:
    with pytest.raises(ServiceError) as caught:
        action()
    assert caught.value.exit_code == 3
    (problem,) = caught.value.problems
    return f"[{problem.code}] {problem}"


@pytest.mark.parametrize(
    ("inference_url", "root"),
    [
        ("http://h:1/v1/completions", "http://h:1"),
        ("http://h:1/v1/completions/", "http://h:1"),
        ("http://h:1/v1/chat/completions", "http://h:1"),
        ("https://h/gateway/v1/completions", "https://h/gateway"),
        ("http://h:1/", "http://h:1"),
    ],
)
def test_base_url(inference_url: str, root: str) -> None:
    assert base_url(inference_url) == root


def test_completion_goes_to_the_rank_by_header_and_reads_usage() -> None:
    service = FakeService()
    client = ServiceClient(service_config(api_key=SECRET), transport=service.transport())
    completion = client.complete("x" * 100, dp_rank=1)
    (request,) = service.requests
    assert completion == Completion(25, 0)
    assert request.headers["x-data-parallel-rank"] == "1"
    assert request.headers["authorization"] == f"Bearer {SECRET}"


def test_one_url_per_rank_needs_no_header() -> None:
    service = FakeService()
    urls = tuple(f"http://service.test:800{rank}/v1/completions" for rank in range(2))
    ServiceClient(service_config(inference_urls=urls), transport=service.transport()).complete("hello", dp_rank=1)
    (request,) = service.requests
    assert request.url.port == 8001
    assert "x-data-parallel-rank" not in request.headers


def test_a_single_rank_needs_no_header() -> None:
    service = FakeService(dp_size=1)
    ServiceClient(service_config(dp_size=1), transport=service.transport()).complete("hello", dp_rank=0)
    assert "x-data-parallel-rank" not in service.requests[0].headers


def test_probes_carry_the_fields_that_change_the_cache_key() -> None:
    service = FakeService()
    kwargs = {"cache_salt": "pepper", "temperature": 0.7, "ignore_eos": True}
    ServiceClient(service_config(), generation_kwargs=kwargs, transport=service.transport()).complete("hello")
    body = json.loads(service.requests[0].content)
    assert body["cache_salt"] == "pepper"
    assert body["temperature"] == 0
    assert "ignore_eos" not in body


def test_the_key_goes_to_no_other_origin() -> None:
    seen = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.url.host, request.headers.get("authorization")))
        return httpx.Response(200, text="vllm:x 1\n")

    metrics = (f"{URL}/metrics", "http://elsewhere.test:8000/metrics")
    client_of(answer, api_key=SECRET, metrics_urls=metrics).scrape()
    assert seen == [("service.test", f"Bearer {SECRET}"), ("elsewhere.test", None)]


@pytest.mark.parametrize(
    "details", [{}, {"prompt_tokens_details": None}, {"prompt_tokens_details": {"cached_tokens": None}}]
)
def test_cached_tokens_that_are_not_told_are_none(details: dict[str, Any]) -> None:
    client = client_of(lambda _request: httpx.Response(200, json={"usage": {"prompt_tokens": 7, **details}}))
    assert client.complete("hello") == Completion(7, None)


def raising(error: Exception) -> Callable[[httpx.Request], httpx.Response]:
    def answer(_request: httpx.Request) -> httpx.Response:
        raise error

    return answer


def caused_by(cause: Exception, text: str) -> httpx.ConnectError:
    error = httpx.ConnectError(text)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            raising(caused_by(ConnectionRefusedError(111, "refused"), "[Errno 111] Connection refused")),
            f"[CONNECTION_REFUSED] {URL}/v1/models: connection refused: nothing listens there\n"
            "    Start the server, or correct host and port in the Scenario's service section.",
        ),
        (
            raising(caused_by(socket.gaierror(-2, "Name or service not known"), "[Errno -2]")),
            f"[UNKNOWN_HOST] {URL}/v1/models: the host name cannot be resolved\n    Check the URL's host and your DNS.",
        ),
        (
            raising(caused_by(ssl.SSLError(1, "wrong version number"), "[SSL: WRONG_VERSION_NUMBER]")),
            f"[TLS_FAILED] {URL}/v1/models: no secure connection: [SSL: WRONG_VERSION_NUMBER]\n"
            "    Use http:// for a server without TLS; name a private certificate authority in SSL_CERT_FILE.",
        ),
        (
            raising(httpx.ConnectError("no route to host")),
            f"[UNREACHABLE] {URL}/v1/models: no connection: no route to host\n    Check host, port and network.",
        ),
        (
            raising(httpx.ReadTimeout("timed out")),
            f"[TIMEOUT] {URL}/v1/models: no complete answer within 1 s\n"
            "    Is the server overloaded or hanging? service.timeout_seconds allows more time.",
        ),
        (
            raising(httpx.RemoteProtocolError("Server disconnected without sending a response.")),
            f"[CONNECTION_LOST] {URL}/v1/models: the connection broke before the answer was complete: "
            "Server disconnected without sending a response.\n"
            "    Look at the server's log: it may have crashed or been restarted.",
        ),
        (
            raising(httpx.ProxyError("403 Forbidden")),
            f"[PROXY_FAILED] {URL}/v1/models: the proxy of the environment refused: 403 Forbidden\n"
            "    Put the server's host into NO_PROXY, or unset HTTP_PROXY / HTTPS_PROXY.",
        ),
        (
            lambda _request: httpx.Response(401, json={"error": "Unauthorized"}),
            f"[UNAUTHORIZED] {URL}/v1/models: refused with status 401 (service.api_key is not configured)\n"
            "    Set service.api_key, or the environment variable AISBENCH_PREFIX_CACHE_API_KEY, to the key that the "
            "server was started with.",
        ),
        (
            lambda _request: httpx.Response(500, json={"error": {"message": "EngineCore\nis dead"}}),
            f"[SERVER_ERROR] {URL}/v1/models: answered 500: EngineCore is dead\n    Look at the server's log.",
        ),
        (
            lambda _request: httpx.Response(302, headers={"location": "/login"}),
            f"[REDIRECTED] {URL}/v1/models: answered 302: it points to /login\n"
            "    Redirects are not followed, so that prompts and the key go nowhere else. If that is the server under "
            "test, "
            "write its URL into the Scenario.",
        ),
        (
            lambda _request: httpx.Response(200, html="<html><title>Gateway</title></html>"),
            f"[UNEXPECTED_ANSWER] {URL}/v1/models: answered 200, but not a list of models: "
            "<html><title>Gateway</title></html>\n"
            "    Is this an OpenAI-compatible server, and no proxy's error page?",
        ),
        (
            lambda _request: httpx.Response(200, json=["tiny"]),
            f'[UNEXPECTED_ANSWER] {URL}/v1/models: answered 200, but not a list of models: ["tiny"]\n'
            "    Is this an OpenAI-compatible server, and no proxy's error page?",
        ),
    ],
    ids=lambda value: value.split("]")[0].strip("[") if isinstance(value, str) else "",
)
def test_every_failure_says_what_happened_and_what_to_do(
    answer: Callable[[httpx.Request], httpx.Response], expected: str
) -> None:
    assert failure(client_of(answer).models) == expected


@pytest.mark.parametrize("body", ["<html>502 Bad Gateway</html>", '["x"]'])
def test_metrics_that_are_none(body: str) -> None:
    said = failure(client_of(lambda _request: httpx.Response(200, text=body)).scrape)
    assert said == (
        f"[NOT_METRICS] {URL}/metrics: answered something else than Prometheus text ({body})\n"
        "    Check service.metrics_url: it ends in /metrics on the inference server."
    )


def test_the_api_key_is_in_no_error() -> None:
    client = client_of(lambda _request: httpx.Response(400, text=f"bad header Bearer {SECRET}"), api_key=SECRET)
    assert failure(client.models) == f"[HTTP_STATUS] {URL}/v1/models: answered 400: bad header Bearer ***"


def test_user_and_password_of_a_url_are_not_shown() -> None:
    metrics = ("http://user:hush@service.test:8000/metrics",)
    client = client_of(lambda _request: httpx.Response(503, text="busy"), metrics_urls=metrics)
    assert failure(client.scrape) == (
        f"[SERVER_ERROR] {URL}/metrics: answered 503: busy\n    Look at the server's log."
    )


def test_a_halted_client_sends_nothing() -> None:
    service = FakeService()
    client = ServiceClient(service_config(), transport=service.transport())
    client.halt()
    assert failure(client.models) == f"[HALTED] {URL}/v1/models: not sent: the run has been stopped"
    assert service.requests == []


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class Quiet(BaseHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        pass


class Dripping(Quiet):
    """Never silent for long, never finished."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(b"x")
                threading.Event().wait(0.05)
        except OSError:
            pass


class Fine(Quiet):
    def do_GET(self) -> None:
        body = b'{"data": [{"id": "tiny", "max_model_len": 64}]}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_a_reply_that_never_ends_is_cut_off() -> None:
    with listening(Dripping) as url:
        config = service_config(inference_urls=(f"{url}/v1/completions",), timeout_seconds=0.4)
        assert failure(ServiceClient(config).models).startswith(f"[TIMEOUT] {url}/v1/models: no complete answer")


def test_loopback_never_goes_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with listening(Fine) as url:
        config = service_config(inference_urls=(f"{url}/v1/completions",))
        models = ServiceClient(config).models()
    assert models is not None
    (model,) = models
    assert (model.name, model.max_model_len) == ("tiny", 64)


def test_nothing_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    config = service_config(inference_urls=(f"http://127.0.0.1:{port}/v1/completions",))
    assert failure(ServiceClient(config).models).startswith("[CONNECTION_REFUSED]")
