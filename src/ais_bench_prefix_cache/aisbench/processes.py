"""A child process whose whole family can be found and ended."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import IO

from ais_bench_prefix_cache.aisbench.environment import RUN_MARK_VARIABLE
from ais_bench_prefix_cache.foundation.interruptions import signals_held
from ais_bench_prefix_cache.foundation.quoting import without_secret

_TAIL_LINES = 60
_LOG_BYTES = 8 * 1024 * 1024
_LINE_BYTES = 64 * 1024
_LINE_CHARACTERS = 4096
"""Far less than what is read of a line, so that no key is cut in two at the end of what is shown."""
_SECONDS_TO_END_POLITELY = 4.0
_SECONDS_BETWEEN_LOOKS = 0.05
_PROC = Path("/proc")
_TERMINAL_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PROGRESS_BAR = re.compile(r"Progress: +\d+%|POST=\d|Warmup: +\d+%|Calculating performance details: +\d+%")
"""AISBench's bars move the cursor about, so that each of their states is a line."""


class ProcessFamily:
    """A command in a session of its own, with everything that descends from it.

    Output goes to ``log`` (bounded, without progress bars and colours) and the last lines to :attr:`tail`. In both,
    each key of ``replacements`` is replaced by its value, and ``secret`` is taken out before anything is cut.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        log: Path | None,
        replacements: Mapping[str, str],
        secret: str = "",
    ) -> None:
        self._mark = secrets.token_hex(16)
        self._replacements = replacements
        self._secret = secret
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**environment, RUN_MARK_VARIABLE: self._mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout, log), daemon=True)
        self._reader.start()

    def poll(self) -> int | None:
        """The exit code of the command itself, once it has ended (negative: the signal that ended it)."""
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """As :meth:`poll`, but wait up to ``seconds`` for the end."""
        try:
            return self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """End the whole family: SIGTERM, a few seconds of grace, SIGKILL until nobody is left.

        SIGTERM comes first because Python's resource tracker ignores it: it sees its family die and frees the shared
        memory that they leave. Whoever interrupts this program meanwhile waits: a tracker that is killed frees nothing.
        """
        with signals_held():
            self._signal_all(signal.SIGTERM)
            self._wait_until_gone(_SECONDS_TO_END_POLITELY)
            deadline = time.monotonic() + _SECONDS_TO_END_POLITELY
            while self._signal_all(signal.SIGKILL) and time.monotonic() < deadline:
                self._process.poll()
                time.sleep(_SECONDS_BETWEEN_LOOKS)
            self._process.wait()
            self._reader.join(timeout=_SECONDS_TO_END_POLITELY)

    def _wait_until_gone(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._process.poll()
            if not self._members():
                return
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _signal_all(self, number: signal.Signals) -> bool:
        """Signal everyone who is left; False if nobody was."""
        members = self._members()
        if not _PROC.is_dir():
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
        for pid in members:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        return bool(members)

    def _members(self) -> set[int]:
        """Living processes of the family, also those that left its session or lost their parent."""
        members = _processes_with_environment(f"{RUN_MARK_VARIABLE}={self._mark}".encode())
        if self._process.returncode is None and self._process.poll() is None:
            members.add(self._process.pid)
        return members

    def _read(self, output: IO[bytes], log: Path | None) -> None:
        written = 0
        with output, _open_or_null(log) as log_file:
            for line in _lines(output):
                text = _TERMINAL_CONTROL.sub("", line.decode("utf-8", errors="replace")).rstrip()
                text = without_secret(text, self._secret)[:_LINE_CHARACTERS]
                for old, new in self._replacements.items():
                    text = text.replace(old, new)
                if not text or _PROGRESS_BAR.match(text):
                    continue
                self.tail.append(text)
                if written < _LOG_BYTES:
                    # Even on a full disk the pipe must be read on, or the family would wait for ever.
                    with suppress(OSError):
                        written += log_file.write(text.encode() + b"\n")


def _lines(output: IO[bytes]) -> Iterator[bytes]:
    """Lines as they come, without those that end in a carriage return: a progress bar overwrites them."""
    pending = b""
    while chunk := os.read(output.fileno(), 65536):
        *complete, pending = (pending + chunk).split(b"\n")
        for line in complete:
            yield line.rstrip(b"\r").rpartition(b"\r")[2][:_LINE_BYTES]
        pending = pending.rpartition(b"\r")[2][:_LINE_BYTES]
    yield pending


def _open_or_null(path: Path | None) -> FileIO:
    return FileIO(os.devnull if path is None else path, "a")


def _processes_with_environment(entry: bytes) -> set[int]:
    """Ids of living processes that were started with this environment entry (Linux)."""
    found = set()
    for directory in _PROC.glob("[0-9]*"):
        try:
            if entry in (directory / "environ").read_bytes().split(b"\0") and not _is_zombie(directory):
                found.add(int(directory.name))
        except OSError:
            continue
    return found


def _is_zombie(directory: Path) -> bool:
    return (directory / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
