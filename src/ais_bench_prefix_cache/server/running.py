"""Start and stop the embedded server: in the foreground for ``serve``, in a thread for tests."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.server.configuration import ServerConfiguration, ServerError

if TYPE_CHECKING:
    from ais_bench_prefix_cache.server.application import FaultHook

STARTUP_SECONDS = 30.0
SHUTDOWN_SECONDS = 1
"""How long open connections may go on after the server was told to stop."""


def serve(
    configuration: ServerConfiguration,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    api_key: str | None = None,
    ready: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM; ``ready`` gets the URL once requests are accepted. Port 0 takes a free one.

    Raises :class:`ServerError` where the extra ``server`` is missing, the tokenizer cannot be loaded or the address
    cannot be had. The signal that ended it is raised again, for whoever handles it.
    """
    with _listener(host, port) as listener:
        server = _server(configuration, listener, api_key, None, ready)
        asyncio.run(server.serve(sockets=[listener]))


@contextmanager
def running_server(
    configuration: ServerConfiguration,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    api_key: str | None = None,
    fault_hook: FaultHook | None = None,
) -> Iterator[str]:
    """The server in a thread of this process, for as long as the ``with`` block lasts; yields its URL."""
    url: list[str] = []
    started = threading.Event()

    def ready(address: str) -> None:
        url.append(address)
        started.set()

    with _listener(host, port) as listener:
        server = _server(configuration, listener, api_key, fault_hook, ready)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
        thread.start()
        try:
            if not started.wait(STARTUP_SECONDS):
                raise ServerError.of(Code.SERVER_NOT_STARTED, "server", f"did not start within {STARTUP_SECONDS:g} s")
            yield url[0]
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def _listener(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets that name their protocol; without it every answer waits for a delayed
    # acknowledgement.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            raise ServerError.of(
                Code.ADDRESS_NOT_AVAILABLE,
                f"{host}:{port}",
                f"cannot listen there: {error}",
                hint="Port 0 takes a free one.",
            ) from None
        listener.listen(1024)
        yield listener


def _server(
    configuration: ServerConfiguration,
    listener: socket.socket,
    api_key: str | None,
    fault_hook: FaultHook | None,
    ready: Callable[[str], None],
) -> Any:
    try:
        import uvicorn

        from ais_bench_prefix_cache.server.application import create_application
    except ImportError as error:
        raise ServerError.of(
            Code.SERVER_EXTRA_MISSING,
            "serve",
            f"the embedded server needs a package that is not installed: {error.name}",
            hint="pip install 'ais-bench-prefix-cache[server]'",
        ) from None
    from ais_bench_prefix_cache.server.tokenization import ServerTokenizer

    class AnnouncingServer(uvicorn.Server):
        """Says where it listens as soon as it does."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                host, port = listener.getsockname()[:2]
                ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")

    application = create_application(
        configuration, ServerTokenizer(configuration.tokenizer), api_key=api_key, fault_hook=fault_hook
    )
    return AnnouncingServer(
        uvicorn.Config(
            application,
            access_log=False,
            log_level="critical",
            lifespan="on",
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
    )
