"""A reverse proxy that hands requests on to a server, except where a rule says how to misbehave."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Union

import httpx


@dataclass(frozen=True)
class Seen:
    """A request at the proxy. ``formal`` is what AISBench sends: it streams, probes and warm-ups do not.

    ``number`` counts the requests of the same kind (formal, or path) from 1.
    """

    method: str
    path: str
    formal: bool
    number: int


@dataclass(frozen=True)
class Answer:
    """Do not ask the server; answer this."""

    status: int
    body: str = ""
    content_type: str = "text/html"
    reason: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


Action = Union[Answer, Literal["pass", "cut", "hang"]]
"""``cut``: break the connection in the middle of the server's answer; ``hang``: say nothing until the proxy stops."""


@dataclass
class FaultProxy:
    """Where requests go (``target``) and what is done to them (``rule``); both may change at any time."""

    target: str
    rule: Callable[[Seen], Action] = lambda _seen: "pass"
    seen: list[Seen] = field(default_factory=list)
    url: str = ""
    stopping: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def see(self, method: str, path: str, body: bytes) -> Seen:
        formal = False
        with suppress(ValueError):
            formal = bool(json.loads(body or b"{}").get("stream"))
        with self.lock:
            number = 1 + sum(each.formal if formal else (each.path == path and not each.formal) for each in self.seen)
            seen = Seen(method, path, formal, number)
            self.seen.append(seen)
        return seen

    def reset(self, target: str) -> None:
        """As new, for the next test."""
        self.target, self.rule = target, lambda _seen: "pass"
        self.seen.clear()


@contextmanager
def fault_proxy(target: str) -> Iterator[FaultProxy]:
    """A proxy on a free loopback port for the time of a block."""
    proxy = FaultProxy(target)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._handle(b"")

        def do_POST(self) -> None:
            self._handle(self.rfile.read(int(self.headers.get("content-length", 0))))

        def _handle(self, body: bytes) -> None:
            self.close_connection = True
            action = proxy.rule(proxy.see(self.command, self.path, body))
            if isinstance(action, Answer):
                content = action.body.encode()
                self.send_response(action.status, action.reason)
                for name, value in action.headers:
                    self.send_header(name, value)
                self.send_header("connection", "close")
                self.send_header("content-type", action.content_type)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            elif action == "hang":
                proxy.stopping.wait()
            else:
                with suppress(OSError, httpx.HTTPError):
                    self._hand_on(body, cut=action == "cut")

        def _hand_on(self, body: bytes, *, cut: bool) -> None:
            headers = {
                name: value
                for name, value in self.headers.items()
                if name.lower() not in ("host", "connection", "content-length", "accept-encoding")
            }
            with (
                httpx.Client(trust_env=False, timeout=60) as client,
                client.stream(self.command, proxy.target + self.path, content=body, headers=headers) as response,
            ):
                self.send_response(response.status_code)
                self.send_header("content-type", response.headers.get("content-type", ""))
                self.send_header("transfer-encoding", "chunked")
                self.send_header("connection", "close")
                self.end_headers()
                for chunk in response.iter_raw():
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                    self.wfile.flush()
                    if cut:
                        return
                self.wfile.write(b"0\r\n\r\n")

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    server = Server(("127.0.0.1", 0), Handler)
    proxy.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.stopping.set()
        server.shutdown()
        server.server_close()
