"""A server that answers with whatever bytes a test says, as slowly as it says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Behaviour = Callable[[socket.socket], None]
"""What is done with a connection after its request has been read."""


@contextmanager
def raw_server(behaviour: Behaviour) -> Iterator[str]:
    """Its URL, for the time of a block; each connection has a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            _read_request(connection)
            behaviour(connection)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def _read_request(connection: socket.socket) -> None:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)


def for_ever(piece: bytes, *, before: bytes = b"", pause: float = 0.02) -> Behaviour:
    """``before``, then ``piece`` again and again."""

    def behave(connection: socket.socket) -> None:
        connection.sendall(before)
        while True:
            connection.sendall(piece)
            threading.Event().wait(pause)

    return behave


def once(answer: bytes) -> Behaviour:
    """The whole answer, and the end of the connection."""
    return lambda connection: connection.sendall(answer)
