"""Bodies of requests: read within limits of size and time, whoever sends them."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from ais_bench_prefix_cache.server.protocol import ApiError

UNREAD = {"connection": "close"}
"""With an answer before the body is read: without it the connection would go on swallowing what still comes."""
BODIES_AT_ONCE = 8
"""All bodies that are being read may together be so many times as large as one may be."""
READING_SECONDS = 60.0


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
