"""Signs of life for the program that launched AISBench."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

_SECONDS_BETWEEN_BEATS = 0.5


class Heartbeat:
    """Writes the number of finished requests into a file, at most twice a second, whenever something arrived.

    Without a file nothing is written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._finished = 0
        self._next_beat = 0.0
        self._unwritten = False

    def ready(self) -> None:
        """Nothing has arrived yet, but something could."""
        self._unwritten = True
        self.flush()

    def activity(self) -> None:
        """Something arrived."""
        self._unwritten = True
        if time.monotonic() >= self._next_beat:
            self.flush()

    def request_finished(self) -> None:
        self._finished += 1
        self.activity()

    def flush(self) -> None:
        """Write what happened since the last beat; nothing if nothing did."""
        if self._unwritten and self._path is not None:
            # A full disk must not end a run that could go on without telling about its progress.
            with suppress(OSError):
                self._path.write_text(str(self._finished), encoding="ascii")
        self._unwritten = False
        self._next_beat = time.monotonic() + _SECONDS_BETWEEN_BEATS
