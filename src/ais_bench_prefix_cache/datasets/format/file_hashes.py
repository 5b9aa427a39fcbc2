"""Sizes and SHA-256 of a data set's row files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem
from ais_bench_prefix_cache.foundation.findings import Findings

READ_BYTES = 1 << 20


class FileHashes:
    """Sizes and SHA-256 of the row files; large ones are hashed beside the check of their rows, in a thread."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._results: dict[str, tuple[int, str]] = {}
        self._errors: list[Problem] = []
        self._thread = None
        if sum(map(_size, files.values())) > READ_BYTES:
            from threading import Thread

            self._thread = Thread(target=self._run, args=(dict(files),), daemon=True)
            self._thread.start()
        else:
            self._run(files)

    def results(self, findings: Findings) -> dict[str, tuple[int, str]]:
        """Size and digest under each file's key; a file that cannot be read is reported and left out."""
        if self._thread is not None:
            self._thread.join()
        findings.extend(self._errors)
        return self._results

    def _run(self, files: Mapping[str, Path]) -> None:
        for key, path in files.items():
            try:
                self._results[key] = size_and_sha256(path)
            except FileNotFoundError:
                self._errors.append(Problem(Code.MISSING_FILE, str(path), "the file does not exist"))
            except OSError as error:
                reason = error.strerror or str(error)
                self._errors.append(Problem(Code.UNREADABLE_FILE, str(path), f"it cannot be read: {reason}"))


def _size(path: Path) -> int:
    """Bytes of a file; none where it cannot be told, which reading it then reports."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def size_and_sha256(path: Path) -> tuple[int, str]:
    """Bytes and digest of a file, read once."""
    digest, size = hashlib.sha256(), 0
    buffer = memoryview(bytearray(READ_BYTES))
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            digest.update(buffer[:count])
            size += count
    return size, digest.hexdigest()
