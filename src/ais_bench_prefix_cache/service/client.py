"""The HTTP side of a run: one client for the inference, metrics and reset URLs of a Scenario.

Every failure becomes a :class:`~ais_bench_prefix_cache.foundation.errors.ServiceError` that names the URL, what
happened and what to do. The API key travels in one header, to the origins of the inference URLs only, and is removed
from everything that a server says before it is shown.
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import httpx

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ServiceError
from ais_bench_prefix_cache.foundation.names import RANK_HEADER
from ais_bench_prefix_cache.scenario.model import ServiceConfig

FIELDS_THAT_CHANGE_THE_CACHE_KEY = ("cache_salt", "add_special_tokens", "truncate_prompt_tokens")
"""Request fields that change which blocks a prompt hits: probes and warm-up must carry what the formal requests do."""

_ENDPOINT = re.compile(r"/v1/(chat/)?completions/?$")
_LONGEST_EXCERPT = 200
_LARGEST_REPLY = 256 * 1024 * 1024
_KEEP_ALIVE_SECONDS = 2.0
"""Below the 5 s after which uvicorn drops an idle connection: no request meets a connection that is being closed."""

EMBEDDED_SERVER = "embedded server"
"""Stands in the version of the server that imitates vLLM: its latencies are not those of a model."""


@dataclass(frozen=True)
class Reply:
    """A complete HTTP response."""

    url: str
    status: int
    content_type: str
    text: str

    def json(self) -> Any:
        """The parsed body; raises ValueError when it is not JSON."""
        return json.loads(self.text)


@dataclass(frozen=True)
class Completion:
    """What a completion's ``usage`` says. None: the server did not say it."""

    prompt_tokens: int | None
    cached_tokens: int | None


@dataclass(frozen=True)
class ServedModel:
    """One entry of ``/v1/models``."""

    name: str
    max_model_len: int | None


@dataclass(frozen=True)
class ResetReply:
    """What a reset endpoint answered. ``success`` is None where the body does not say (vLLM before 0.26, SGLang)."""

    url: str
    status: int
    success: bool | None
    text: str


class ServiceClient:
    """Talks to the service of one Scenario; safe to use from several threads.

    ``generation_kwargs`` are those of the formal requests: what in them changes the cache's keys
    (:data:`FIELDS_THAT_CHANGE_THE_CACHE_KEY`) is sent with every completion here, too. ``transport`` replaces the
    network in tests.
    """

    def __init__(
        self,
        config: ServiceConfig,
        *,
        generation_kwargs: Mapping[str, Any] | None = None,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.base_urls = tuple(base_url(url) for url in config.inference_urls)
        self.generation_kwargs = dict(generation_kwargs or {})
        self._request_fields = {
            name: self.generation_kwargs[name]
            for name in FIELDS_THAT_CHANGE_THE_CACHE_KEY
            if name in self.generation_kwargs
        }
        self._clock = clock
        self._halted = threading.Event()
        self._key_origins = {_origin(url) for url in config.inference_urls}
        self._authorization = _authorization(config.api_key)
        every_url = (*config.inference_urls, *config.metrics_urls, *config.reset_urls)
        self._http = httpx.Client(
            timeout=httpx.Timeout(config.timeout_seconds),
            limits=httpx.Limits(max_connections=256, keepalive_expiry=_KEEP_ALIVE_SECONDS),
            transport=transport,
            # A proxy of the environment never reaches this machine's own servers.
            mounts=dict.fromkeys(_loopback_patterns(every_url)),
        )

    def __enter__(self) -> ServiceClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.halt()
        self._http.close()

    def halt(self) -> None:
        """From now on, in every thread, send nothing."""
        self._halted.set()

    @property
    def one_entry_point(self) -> bool:
        """Whether all ranks sit behind one inference URL, so that a header must choose the rank."""
        return len(self.base_urls) == 1

    def inference_url(self, dp_rank: int | None) -> str:
        """The URL that reaches ``dp_rank``."""
        return self.config.inference_urls[0 if self.one_entry_point or dp_rank is None else dp_rank]

    def base_url(self, dp_rank: int | None) -> str:
        """The server root that reaches ``dp_rank``."""
        return self.base_urls[0 if self.one_entry_point or dp_rank is None else dp_rank]

    def complete(self, prompt: str, *, dp_rank: int | None = None, max_tokens: int = 1) -> Completion:
        """Send one completion to ``dp_rank`` and wait for its end.

        The header is sent only where one entry point serves several ranks: with one port per rank the port decides.
        """
        url = _ENDPOINT.sub("/v1/completions", self.inference_url(dp_rank))
        headers = {}
        if dp_rank is not None and self.one_entry_point and self.config.dp_size > 1:
            headers[RANK_HEADER] = str(dp_rank)
        return self._completion(url, {"prompt": prompt, "max_tokens": max_tokens}, headers)

    def chat(self, content: Sequence[Mapping[str, Any]], position: int = 0) -> Completion:
        """Send one user message of ``content`` parts to the entry point at ``position``; one token is asked for."""
        messages = [{"role": "user", "content": list(content)}]
        return self._completion(self.chat_url(position), {"messages": messages, "max_tokens": 1}, {})

    def chat_url(self, position: int = 0) -> str:
        """Chat completions of the entry point at ``position``."""
        return f"{self.base_urls[position]}/v1/chat/completions"

    def _completion(self, url: str, asked: Mapping[str, Any], headers: Mapping[str, str]) -> Completion:
        body = {**self._request_fields, "model": self.config.model, **asked, "temperature": 0, "stream": False}
        reply = self.request("POST", url, json_body=body, headers=headers)
        document = self._json_object(reply, "a completion")
        usage = document.get("usage")
        if not isinstance(usage, dict):
            return Completion(None, None)
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        return Completion(_integer(usage.get("prompt_tokens")), _integer(cached))

    def models(self, position: int = 0) -> tuple[ServedModel, ...]:
        """``/v1/models`` of the entry point at ``position``."""
        reply = self.request("GET", f"{self.base_urls[position]}/v1/models")
        document = self._json_object(reply, "a list of models")
        entries = document.get("data")
        if not isinstance(entries, list):
            raise self._unusable(reply, "a list of models")
        return tuple(
            ServedModel(entry["id"], _integer(entry.get("max_model_len")))
            for entry in entries
            if isinstance(entry, dict) and isinstance(entry.get("id"), str)
        )

    def tokenize(self, prompt: str, position: int = 0) -> tuple[int, ...] | None:
        """The server's own token ids of ``prompt`` as ``/v1/completions`` encodes it; None where it offers none."""
        fields = {key: value for key, value in self._request_fields.items() if key == "add_special_tokens"}
        reply = self.request(
            "POST",
            f"{self.base_urls[position]}/tokenize",
            json_body={"model": self.config.model, "prompt": prompt, "add_special_tokens": True, **fields},
            accept_status=lambda status: status in (200, 404, 405, 501),
        )
        if reply.status != 200:
            return None
        tokens = self._json_object(reply, "token ids").get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            return None
        return tuple(tokens)

    def version(self, position: int = 0) -> str | None:
        """What ``/version`` says; None where it is not offered. Our embedded server is said to be it."""
        reply = self.request("GET", f"{self.base_urls[position]}/version", accept_status=lambda _status: True)
        try:
            document = reply.json() if reply.status == 200 else None
        except ValueError:
            return None
        if not isinstance(document, dict) or not isinstance(version := document.get("version"), str):
            return None
        return f"{version} ({EMBEDDED_SERVER})" if "embedded_server" in document else version

    def scrape(self) -> tuple[str, ...]:
        """The metrics text of every metrics URL, in the Scenario's order."""
        return tuple(self._scrape_one(url) for url in self.config.metrics_urls)

    def _scrape_one(self, url: str) -> str:
        reply = self.request("GET", url)
        # A proxy's error page has status 200 more often than one would like.
        if "html" in reply.content_type or reply.text.lstrip()[:1] in ("<", "{", "["):
            raise ServiceError.of(
                Code.NOT_METRICS,
                _shown(url),
                f"answered something else than Prometheus text ({self._excerpt(reply)})",
                hint="Check service.metrics_url: it ends in /metrics on the inference server.",
            )
        return reply.text

    def reset(self, url: str) -> ResetReply:
        """POST to one reset URL; any HTTP status is an answer, judged by the caller."""
        reply = self.request("POST", url, accept_status=lambda _status: True)
        try:
            document = json.loads(reply.text) if reply.text.strip() else None
        except ValueError:
            document = None
        success = document.get("success") if isinstance(document, dict) else None
        return ResetReply(
            _shown(url), reply.status, success if isinstance(success, bool) else None, self._excerpt(reply)
        )

    def request(
        self,
        method: Literal["GET", "POST"],
        url: str,
        *,
        json_body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        accept_status: Callable[[int], bool] = lambda status: status == 200,
    ) -> Reply:
        """One request, complete within ``service.timeout_seconds`` from start to end.

        Raises ServiceError for every failure and for a status that ``accept_status`` refuses.
        """
        if self._halted.is_set():
            raise ServiceError.of(Code.HALTED, _shown(url), "not sent: the run has been stopped")
        all_headers = dict(headers or {})
        if self._authorization and _origin(url) in self._key_origins:
            all_headers["Authorization"] = self._authorization
        deadline = self._clock() + self.config.timeout_seconds
        try:
            with self._http.stream(method, url, json=json_body, headers=all_headers) as response:
                body = bytearray()
                for chunk in response.iter_bytes():
                    body += chunk
                    # httpx limits the silence between two chunks; this limits a reply that never ends.
                    if self._clock() > deadline or len(body) > _LARGEST_REPLY:
                        raise httpx.ReadTimeout("the reply does not end")
                reply = Reply(
                    url,
                    response.status_code,
                    response.headers.get("content-type", "").lower(),
                    body.decode("utf-8", errors="replace"),
                )
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise self._transport_error(url, error) from error
        if not accept_status(reply.status):
            raise self._status_error(reply)
        return reply

    def _transport_error(self, url: str, error: Exception) -> ServiceError:
        where = _shown(url)
        causes = tuple(_cause_chain(error))
        if isinstance(error, (httpx.InvalidURL, httpx.UnsupportedProtocol)):
            return ServiceError.of(
                Code.WRONG_URL, where, f"is not a usable URL: {self.clean(str(error))}", allowed="http://… or https://…"
            )
        if isinstance(error, httpx.TimeoutException):
            return ServiceError.of(
                Code.TIMEOUT,
                where,
                f"no complete answer within {self.config.timeout_seconds:g} s",
                hint="Is the server overloaded or hanging? service.timeout_seconds allows more time.",
            )
        if isinstance(error, httpx.ProxyError):
            return ServiceError.of(
                Code.PROXY_FAILED,
                where,
                f"the proxy of the environment refused: {self.clean(str(error))}",
                hint="Put the server's host into NO_PROXY, or unset HTTP_PROXY / HTTPS_PROXY.",
            )
        if any(isinstance(cause, ssl.SSLError) for cause in causes):
            return ServiceError.of(
                Code.TLS_FAILED,
                where,
                f"no secure connection: {self.clean(str(error))}",
                hint="Use http:// for a server without TLS; name a private certificate authority in SSL_CERT_FILE.",
            )
        if any(isinstance(cause, socket.gaierror) for cause in causes):
            return ServiceError.of(
                Code.UNKNOWN_HOST, where, "the host name cannot be resolved", hint="Check the URL's host and your DNS."
            )
        if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
            return ServiceError.of(
                Code.CONNECTION_REFUSED,
                where,
                "connection refused: nothing listens there",
                hint="Start the server, or correct host and port in the Scenario's service section.",
            )
        if isinstance(error, httpx.ConnectError):
            return ServiceError.of(
                Code.UNREACHABLE,
                where,
                f"no connection: {self.clean(str(error)) or type(error).__name__}",
                hint="Check host, port and network.",
            )
        return ServiceError.of(
            Code.CONNECTION_LOST,
            where,
            f"the connection broke before the answer was complete: {self.clean(str(error)) or type(error).__name__}",
            hint="Look at the server's log: it may have crashed or been restarted.",
        )

    def _status_error(self, reply: Reply) -> ServiceError:
        where = _shown(reply.url)
        said = self._excerpt(reply)
        if reply.status in (401, 403):
            state = "was sent" if self._authorization else "is not configured"
            return ServiceError.of(
                Code.UNAUTHORIZED,
                where,
                f"refused with status {reply.status} (service.api_key {state})",
                hint="Set service.api_key to the key that the server was started with.",
            )
        if reply.status == 404:
            return ServiceError.of(
                Code.NOT_FOUND,
                where,
                f"answered 404: {said}",
                hint="Check the URL's path, and service.model against the server's /v1/models.",
            )
        code = Code.SERVER_ERROR if reply.status >= 500 else Code.HTTP_STATUS
        hint = "Look at the server's log." if reply.status >= 500 else None
        return ServiceError.of(code, where, f"answered {reply.status}: {said}", hint=hint)

    def _json_object(self, reply: Reply, wanted: str) -> dict[str, Any]:
        try:
            document = reply.json()
        except ValueError:
            raise self._unusable(reply, wanted) from None
        if not isinstance(document, dict):
            raise self._unusable(reply, wanted)
        return document

    def _unusable(self, reply: Reply, wanted: str) -> ServiceError:
        return ServiceError.of(
            Code.UNEXPECTED_ANSWER,
            _shown(reply.url),
            f"answered {reply.status}, but not {wanted}: {self._excerpt(reply)}",
            hint="Is this an OpenAI-compatible server, and no proxy's error page?",
        )

    def _excerpt(self, reply: Reply) -> str:
        """The server's own words: an OpenAI-style error message if there is one, else the start of the body."""
        text = reply.text
        try:
            document = json.loads(text)
        except ValueError:
            document = None
        if isinstance(document, dict):
            inner = document.get("error")
            message = inner.get("message") if isinstance(inner, dict) else document.get("message")
            if isinstance(message, str):
                text = message
        line = " ".join(self.clean(text).split())
        if not line:
            return "an empty body"
        return line if len(line) <= _LONGEST_EXCERPT else line[: _LONGEST_EXCERPT - 1] + "…"

    def clean(self, text: str) -> str:
        """``text`` without the API key."""
        return text.replace(self.config.api_key, "***") if self.config.api_key else text


def base_url(inference_url: str) -> str:
    """The server's root: ``inference_url`` without ``/v1/completions`` or ``/v1/chat/completions``."""
    return _ENDPOINT.sub("", inference_url).rstrip("/")


def _authorization(api_key: str) -> str | None:
    if not api_key:
        return None
    if not api_key.isascii() or not api_key.isprintable() or api_key != api_key.strip():
        raise ServiceError.of(
            Code.BAD_API_KEY,
            "service.api_key",
            "cannot be sent in an HTTP header",
            allowed="printable ASCII characters, no spaces around them",
        )
    return f"Bearer {api_key}"


def _origin(url: str) -> tuple[str, str, int | None]:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return (url, "", None)
    return (parsed.scheme, parsed.host, parsed.port)


def _loopback_patterns(urls: tuple[str, ...]) -> set[str]:
    patterns = set()
    for url in urls:
        host = _origin(url)[1]
        try:
            loopback = ipaddress.ip_address(host).is_loopback
        except ValueError:
            loopback = host == "localhost" or host.endswith(".localhost")
        if loopback:
            patterns.add(f"all://[{host}]" if ":" in host else f"all://{host}")
    return patterns


def _shown(url: str) -> str:
    """``url`` as it may be shown: without user name and password."""
    return re.sub(r"//[^/@]*@", "//", url)


def _cause_chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
