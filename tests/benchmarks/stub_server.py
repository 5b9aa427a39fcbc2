"""A completions server that answers at once: one token, the usage and the end, in one write. Prints its port."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


_TOKEN = {"id": "c", "object": "text_completion", "choices": [{"index": 0, "text": " a", "finish_reason": "length"}]}
_USAGE = {
    "id": "c",
    "object": "text_completion",
    "choices": [],
    "usage": {"prompt_tokens": 64, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 32}},
}
_EVENTS = _event(_TOKEN) + _event(_USAGE) + b"data: [DONE]\n\n"
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_ANSWER = _HEAD + b"%x\r\n" % len(_EVENTS) + _EVENTS + b"\r\n0\r\n\r\n"


class Stub(asyncio.Protocol):
    """One connection; requests may come in parts."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while True:
            head, separator, rest = self._received.partition(b"\r\n\r\n")
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            size = int(length or 0)
            if not separator or len(rest) < size:
                return
            self._received = rest[size:]
            self._transport.write(_ANSWER)


async def _serve() -> None:
    # With the protocol's number asyncio sets TCP_NODELAY on the connections.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    server = await asyncio.get_running_loop().create_server(Stub, sock=listener, backlog=1024)
    print(listener.getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
