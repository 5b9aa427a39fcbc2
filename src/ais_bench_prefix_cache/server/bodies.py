"""Bodies of requests: read within limits of size and time, whoever sends them."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import Request

from ais_bench_prefix_cache.server.protocol import ApiError

UNREAD = {"connection": "close"}
"""With an answer before the body is read: without it the connection would go on swallowing what still comes."""
BODIES_AT_ONCE = 8
"""All bodies that are being read may together be so many times as large as one may be."""
READING_SECONDS = 60.0


LARGE_BODY_BYTES = 1 << 18, 1 << 20, 1 << 22
"""From the first on, bodies are worked on beside the event loop, which goes on answering; each size has a thread, so
that large ones do not wait for the largest."""
WAITING_BODIES = 8
"""So many of one size may be worked on or wait for it: more would only be answered late."""

Result = TypeVar("Result")


class BodyWorkers:
    """Works on the bodies of requests, large ones beside the event loop."""

    def __init__(self) -> None:
        self._threads = [ThreadPoolExecutor(1) for _ in LARGE_BODY_BYTES]
        self._waiting = [0 for _ in LARGE_BODY_BYTES]

    async def work(self, size: int, task: Callable[[], Result]) -> Result:
        """The result of ``task``, which works on a body of ``size`` bytes.

        Raises:
            ApiError: 503: too many of its size wait.
        """
        lane = bisect_right(LARGE_BODY_BYTES, size) - 1
        if lane < 0:
            return task()
        if self._waiting[lane] >= WAITING_BODIES:
            raise ApiError(503, "Too many large bodies are worked on.", kind="ServiceUnavailable")

        def done(worked: asyncio.Future[Result]) -> None:
            self._waiting[lane] -= 1
            if not worked.cancelled():
                worked.exception()  # nobody asks for it where the client went away

        self._waiting[lane] += 1
        working = asyncio.get_running_loop().run_in_executor(self._threads[lane], task)
        # A client may go away while its body is still worked on: then it still counts.
        working.add_done_callback(done)
        return await asyncio.shield(working)

    def stop(self) -> None:
        for thread in self._threads:
            thread.shutdown(wait=False)


class BodyReader:
    """Reads bodies of up to ``max_bytes`` each."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held = 0

    async def read(self, request: Request) -> bytes:
        """The whole body.

        Raises:
            ApiError: 413: it is too large; 408: it does not arrive in time; 503: too many arrive at once.
            ClientDisconnect: the client went away.
        """
        chunks: list[bytes] = []
        try:
            await asyncio.wait_for(self._collect(request, chunks), READING_SECONDS)
        except asyncio.TimeoutError:
            raise ApiError(
                408, f"The body did not arrive within {READING_SECONDS:g} s.", kind="Timeout", headers=UNREAD
            ) from None
        finally:
            self._held -= sum(map(len, chunks))
        return b"".join(chunks)

    async def _collect(self, request: Request, chunks: list[bytes]) -> None:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > self._max_bytes:
                raise ApiError(
                    413,
                    f"The body is larger than {self._max_bytes} bytes.",
                    kind="RequestEntityTooLarge",
                    headers=UNREAD,
                )
            if self._held + len(chunk) > BODIES_AT_ONCE * self._max_bytes:
                raise ApiError(503, "Too many large bodies arrive at once.", kind="ServiceUnavailable", headers=UNREAD)
            chunks.append(chunk)
            self._held += len(chunk)
