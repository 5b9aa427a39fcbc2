"""One HTTP exchange at a time, and the law that all of them keep.

An exchange ends within ``service.timeout_seconds`` from start to end, whatever the server does: at that moment its
connection is shut down. An answer has a largest size, a redirect is never followed, a cookie never kept. The API key
travels in one header, to the origins of the inference URLs only, and is removed from everything that a server says
before it is cut or shown.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType
from typing import Any, Literal

import httpx

from ais_bench_prefix_cache.counters.exposition import LARGEST_TEXT_BYTES
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ServiceError
from ais_bench_prefix_cache.foundation.names import API_KEY_VARIABLE
from ais_bench_prefix_cache.foundation.quoting import quoted_words
from ais_bench_prefix_cache.foundation.strict_json import JsonError, parse_json
from ais_bench_prefix_cache.scenario.model import ServiceConfig

_LONGEST_EXCERPT = 200
_MOST_CONNECTIONS = 256
_NO_END = httpx.ReadTimeout("the answer does not end")


@dataclass(frozen=True)
class Reply:
    """A complete HTTP response."""

    url: str
    status: int
    content_type: str
    body: bytes
    location: str | None = None

    @property
    def text(self) -> str:
        """The body as text; bytes that are not UTF-8 are replaced."""
        return self.body.decode("utf-8", errors="replace")

    def json_object(self) -> dict[str, Any] | None:
        """The body as a JSON object; None where it is none (or one with NaN, too deep, too large a number)."""
        try:
            document = parse_json(self.body)
        except JsonError:
            return None
        return document if isinstance(document, dict) else None


class Transport:
    """Exchanges with the service of one Scenario; safe to use from several threads.

    ``transport`` replaces the network, ``clock`` the time in tests.
    """

    def __init__(
        self, config: ServiceConfig, *, transport: httpx.BaseTransport | None, clock: Callable[[], float]
    ) -> None:
        self._timeout = config.timeout_seconds
        self._api_key = config.api_key
        self._authorization = f"Bearer {config.api_key}" if config.api_key else None
        self._clock = clock
        self._halted = threading.Event()
        self._key_origins = {_origin(url) for url in config.inference_urls}
        every_url = (*config.inference_urls, *config.metrics_urls, *config.reset_urls)
        self._http = httpx.Client(
            timeout=httpx.Timeout(config.timeout_seconds),
            # A connection for each exchange, which can be shut down without harm to another.
            limits=httpx.Limits(max_connections=_MOST_CONNECTIONS, max_keepalive_connections=0),
            transport=transport,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            # A proxy of the environment never reaches this machine's own servers.
            mounts=dict.fromkeys(_loopback_patterns(every_url)),
        )

    def close(self) -> None:
        """Send nothing more, and let go of what is open."""
        self.halt()
        self._http.close()

    def halt(self) -> None:
        """From now on, in every thread, send nothing."""
        self._halted.set()

    def exchange(
        self,
        method: Literal["GET", "POST"],
        url: str,
        *,
        json_body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        accept_status: Callable[[int], bool] = lambda status: status == 200,
    ) -> Reply:
        """Ask, and wait for the whole answer.

        Raises:
            ServiceError: for every failure, and for a status that ``accept_status`` refuses.
        """
        if self._halted.is_set():
            raise ServiceError.of(Code.HALTED, shown_url(url), "not sent: the run has been stopped")
        all_headers = dict(headers or {})
        if self._authorization and _origin(url) in self._key_origins:
            all_headers["Authorization"] = self._authorization
        started = self._clock()
        watch = _Watch(self._timeout)
        try:
            with (
                watch,
                self._http.stream(
                    method, url, json=json_body, headers=all_headers, extensions={"trace": watch.on_event}
                ) as response,
            ):
                body = bytearray()
                for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > LARGEST_TEXT_BYTES:
                        raise self._too_large(url)
                    if self._clock() - started > self._timeout:
                        raise _NO_END
                reply = Reply(
                    url,
                    response.status_code,
                    response.headers.get("content-type", "").lower(),
                    bytes(body),
                    response.headers.get("location"),
                )
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise self._transport_error(url, _NO_END if watch.expired else error) from error
        if watch.expired:
            # Without a length an answer ends with its connection, this one as well.
            raise self._transport_error(url, _NO_END)
        if not accept_status(reply.status):
            raise self._status_error(reply)
        return reply

    def excerpt(self, reply: Reply) -> str:
        """The server's own words: an OpenAI-style error message if there is one, else the start of the body."""
        text = reply.text
        document = reply.json_object()
        if document is not None:
            inner = document.get("error")
            message = inner.get("message") if isinstance(inner, dict) else document.get("message")
            if isinstance(message, str):
                text = message
        return self.quote(text) or "an empty body"

    def quote(self, text: str) -> str:
        """Words of a server as they may be shown."""
        return quoted_words(text, self._api_key, _LONGEST_EXCERPT)

    def unusable(self, reply: Reply, wanted: str) -> ServiceError:
        """For an answer that is not ``wanted`` ("a completion")."""
        return ServiceError.of(
            Code.UNEXPECTED_ANSWER,
            shown_url(reply.url),
            f"answered {reply.status}, but not {wanted}: {self.excerpt(reply)}",
            hint="Is this an OpenAI-compatible server, and no proxy's error page?",
        )

    def _too_large(self, url: str) -> ServiceError:
        return ServiceError.of(
            Code.ANSWER_TOO_LARGE,
            shown_url(url),
            "the answer is larger than any that is needed",
            allowed=f"at most {LARGEST_TEXT_BYTES >> 20} MiB",
            hint="Check the URL: is it the inference server's?",
        )

    def _transport_error(self, url: str, error: Exception) -> ServiceError:
        where, said = shown_url(url), self.quote(str(error))
        causes = tuple(_cause_chain(error))
        if isinstance(error, (httpx.InvalidURL, httpx.UnsupportedProtocol)):
            return ServiceError.of(
                Code.WRONG_URL, where, f"is not a usable URL: {said}", allowed="http://… or https://…"
            )
        if isinstance(error, httpx.TimeoutException):
            return ServiceError.of(
                Code.TIMEOUT,
                where,
                f"no complete answer within {self._timeout:g} s",
                hint="Is the server overloaded or hanging? service.timeout_seconds allows more time.",
            )
        if isinstance(error, httpx.ProxyError):
            return ServiceError.of(
                Code.PROXY_FAILED,
                where,
                f"the proxy of the environment refused: {said}",
                hint="Put the server's host into NO_PROXY, or unset HTTP_PROXY / HTTPS_PROXY.",
            )
        if any(isinstance(cause, ssl.SSLError) for cause in causes):
            return ServiceError.of(
                Code.TLS_FAILED,
                where,
                f"no secure connection: {said}",
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
                f"no connection: {said or type(error).__name__}",
                hint="Check host, port and network.",
            )
        if isinstance(error, httpx.DecodingError):
            return ServiceError.of(
                Code.UNEXPECTED_ANSWER,
                where,
                f"answered what cannot be decompressed: {said}",
                hint="Is this an OpenAI-compatible server? A proxy in between may have damaged the answer.",
            )
        return ServiceError.of(
            Code.CONNECTION_LOST,
            where,
            f"the connection broke before the answer was complete: {said or type(error).__name__}",
            hint="Look at the server's log: it may have crashed or been restarted.",
        )

    def _status_error(self, reply: Reply) -> ServiceError:
        where = shown_url(reply.url)
        said = self.excerpt(reply)
        if 300 <= reply.status < 400:
            to = self.quote(shown_url(reply.location or "")) or "no other place"
            return ServiceError.of(
                Code.REDIRECTED,
                where,
                f"answered {reply.status}: it points to {to}",
                hint="Redirects are not followed, so that prompts and the key go nowhere else. If that is the server "
                "under test, write its URL into the Scenario.",
            )
        if reply.status in (401, 403):
            state = "was sent" if self._authorization else "is not configured"
            return ServiceError.of(
                Code.UNAUTHORIZED,
                where,
                f"refused with status {reply.status} (service.api_key {state})",
                hint="Set service.api_key, or the environment variable "
                f"{API_KEY_VARIABLE}, to the key that the server was started with.",
            )
        if reply.status == 404:
            return ServiceError.of(
                Code.NOT_FOUND,
                where,
                f"answered 404: {said}",
                hint="Check the URL's path, and service.model against the server's /v1/models.",
            )
        if reply.status >= 500:
            return ServiceError.of(
                Code.SERVER_ERROR, where, f"answered {reply.status}: {said}", hint="Look at the server's log."
            )
        return ServiceError.of(Code.HTTP_STATUS, where, f"answered {reply.status}: {said}")


class _Watch:
    """Shuts an exchange's connection down when its time is up.

    httpx limits the silence between two reads; a server that never falls silent (a header byte now and then, endless
    100 Continue, empty compressed blocks) would hold it for ever.
    """

    def __init__(self, seconds: float) -> None:
        self.expired = False
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._socket = None

    def on_event(self, _name: str, details: Mapping[str, Any]) -> None:
        """Hears from httpx what happens; a connection is the result of some events."""
        get_extra_info = getattr(details.get("return_value"), "get_extra_info", None)
        if get_extra_info is not None:
            with self._lock:
                self._socket = get_extra_info("socket")
                if self.expired:
                    self._shut_down()

    def _expire(self) -> None:
        with self._lock:
            self.expired = True
            self._shut_down()

    def _shut_down(self) -> None:
        if self._socket is not None:
            # Not the TLS socket's own method, which changes what the reading thread is using.
            with suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def shown_url(url: str) -> str:
    """``url`` as it may be shown: without user name and password."""
    return re.sub(r"//[^/@]*@", "//", url)


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


def _cause_chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__
