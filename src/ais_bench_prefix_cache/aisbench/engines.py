"""What starts load generators. Each is a process with lines on stdin and stdout (:mod:`.generator`)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

from ais_bench_prefix_cache.foundation.names import API_KEY_VARIABLE

_MODULE = "ais_bench_prefix_cache.aisbench.generator"
_SECONDS_TO_END = 30.0
"""AISBench's processes get 8 seconds; the rest is for a loaded machine."""

Inbox = SimpleQueue[tuple[int, str | None]]
"""Lines of all load generators with the number of the one that said it; None when it says no more."""


class Generator(Protocol):
    """A load generator that somebody started."""

    def write(self, line: str) -> None:
        """One line to its stdin. A generator that has gone tells so by its None in the inbox, not here."""

    def end(self) -> None:
        """Close its stdin, which ends it."""

    def wait(self) -> None:
        """Wait until it is gone; after some time it is killed."""


class Engine(Protocol):
    """Starts load generators."""

    def open(self) -> None:
        """Before the first one: find out that it can start them."""

    def start(self, number: int, log: Path, inbox: Inbox) -> Generator:
        """Number ``number``, from 1 on. What it says beside its lines goes to ``log``."""

    def close(self) -> None:
        """After :meth:`open`, also where that failed: all generators have ended."""


class LocalEngine:
    """Processes that this one starts: this Python on this machine, or ``command``, as ssh to another one."""

    def __init__(self, command: Sequence[str] = ()) -> None:
        self._command = command or (sys.executable, "-m", _MODULE)

    def open(self) -> None:
        """Nothing is needed."""

    def start(self, number: int, log: Path, inbox: Inbox) -> Generator:
        return LocalGenerator([word.replace("{n}", str(number)) for word in self._command], number, log, inbox)

    def close(self) -> None:
        """Nothing is left."""


class LocalGenerator:
    """A child process in a session of its own, which a Ctrl-C at the terminal does not reach."""

    def __init__(self, command: Sequence[str], number: int, log: Path, inbox: Inbox) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                encoding="utf-8",
                # The key comes over stdin, wherever the generator runs.
                env={name: value for name, value in os.environ.items() if name != API_KEY_VARIABLE},
                start_new_session=True,
            )
        threading.Thread(target=self._read, args=(number, inbox), daemon=True).start()

    def _read(self, number: int, inbox: Inbox) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            inbox.put((number, line))
        inbox.put((number, None))

    def write(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return

    def end(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            return

    def wait(self) -> None:
        try:
            self._process.wait(timeout=_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
