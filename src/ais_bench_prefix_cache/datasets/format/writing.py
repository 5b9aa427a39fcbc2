"""Writing files so that a final name never holds anything half-written.

A file grows under a temporary name beside its final one, is hashed while it is written, synced to the disk, and renamed
into place. The files of a data set are renamed together, the manifest last.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

from ais_bench_prefix_cache.datasets.format.documents import render_document, sealed
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.foundation.interruptions import signals_held

PARTIAL_SUFFIX = ".partial"
BUFFER_BYTES = 1 << 20
_TO_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FileRecord(NamedTuple):
    """A finished file: where it is, its rows (lines), bytes and SHA-256."""

    path: Path
    rows: int
    bytes: int
    sha256: str


class FileSet:
    """Files that come into being together, in the order in which they were opened; on any failure none does.

    Use as a context manager: :meth:`open` each file, write to it, then :meth:`commit`. Leaving without a commit, by an
    exception, Ctrl-C or SIGTERM, removes every temporary file. ``replace``, of the set or of one file, allows final
    names that exist already.
    """

    def __init__(self, *, replace: bool) -> None:
        self._replace = replace
        self._files: list[GrowingFile] = []

    def __enter__(self) -> FileSet:
        return self

    def open(self, path: Path, *, replace: bool = False) -> GrowingFile:
        """Start a file that will be called ``path``."""
        if not (replace or self._replace) and path.exists():
            raise ArtifactError.of(
                Code.FILE_EXISTS, str(path), "the file exists already", hint="Allow it with --overwrite."
            )
        if path.exists() and not path.is_file():
            raise ArtifactError.of(
                Code.CANNOT_WRITE, str(path), "it is a directory, device, socket or FIFO, which a file does not replace"
            )
        growing = GrowingFile(path)
        self._files.append(growing)
        return growing

    def write_document(self, path: Path, document: Mapping[str, Any], *, replace: bool = False) -> FileRecord:
        """Add a whole JSON document as the file ``path``."""
        growing = self.open(path, replace=replace)
        growing.write(render_document(document))
        return growing.finish()

    def commit(self) -> None:
        """Rename every file into place. SIGINT and SIGTERM wait until this is done."""
        for growing in self._files:
            growing.finish()
        with signals_held():
            renamed: list[Path] = []
            try:
                for growing in self._files:
                    growing.rename()
                    renamed.append(growing.path)
            except OSError as error:
                for path in renamed:
                    path.unlink(missing_ok=True)
                raise _write_error(error, self._files[len(renamed)].path) from None
            for directory in {growing.path.parent for growing in self._files}:
                _sync_directory(directory)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with signals_held():
            for growing in self._files:
                growing.discard()


class GrowingFile:
    """A file under its temporary name. Counts and hashes what is written, beside whoever makes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partial = path.with_name(f".{path.name}{PARTIAL_SUFFIX}")
        self._digest = hashlib.sha256()
        self._bytes = 0
        self._rows = 0
        self._record: FileRecord | None = None
        self._held: list[bytes] = []
        self._held_bytes = 0
        # Writing and hashing let the interpreter go on.
        self._beside = ThreadPoolExecutor(1)
        self._appending: Future[None] | None = None
        try:
            # A temporary file that a killed command left behind is nobody's any more: see `claimed`. A link in its
            # place could lead anywhere.
            descriptor = os.open(self.partial, _TO_WRITE, 0o666)
            self._stream: BinaryIO = os.fdopen(descriptor, "wb", buffering=BUFFER_BYTES)
        except OSError as error:
            raise _write_error(error, path) from None

    def write(self, content: bytes, rows: int | None = None) -> None:
        """Append ``content``, which has so many rows; without ``rows`` each newline ends one.

        A failure may show later, at the latest at the end.

        Raises:
            ArtifactError: what was written before did not get onto the disk.
        """
        self._rows += content.count(b"\n") if rows is None else rows
        self._held.append(content)
        self._held_bytes += len(content)
        if self._held_bytes >= BUFFER_BYTES:
            self._append_held()

    def _append_held(self) -> None:
        self._wait()
        content = b"".join(self._held)
        self._held, self._held_bytes = [], 0
        self._appending = self._beside.submit(self._append, content)

    def _append(self, content: bytes) -> None:
        self._stream.write(content)
        self._digest.update(content)
        self._bytes += len(content)

    def _wait(self) -> None:
        if self._appending is not None:
            try:
                self._appending.result()
            except OSError as error:
                raise _write_error(error, self.path) from None

    def finish(self) -> FileRecord:
        """Flush to the disk. Nothing can be written afterwards."""
        if self._record is None:
            self._append_held()
            self._wait()
            self._beside.shutdown()
            try:
                self._stream.flush()
                os.fsync(self._stream.fileno())
                self._stream.close()
            except OSError as error:
                raise _write_error(error, self.path) from None
            self._record = FileRecord(self.path, self._rows, self._bytes, self._digest.hexdigest())
        return self._record

    def rename(self) -> None:
        """Give the file its final name, in place of any file that has it."""
        self.partial.replace(self.path)

    def discard(self) -> None:
        """Remove the temporary file, if it is still there."""
        self._beside.shutdown()
        with contextlib.suppress(OSError):
            self._stream.close()
        with contextlib.suppress(OSError):
            self.partial.unlink()


def write_content(path: Path, content: bytes) -> None:
    """Write one file, atomically, over whatever ``path`` held."""
    with FileSet(replace=True) as files:
        files.open(path).write(content)
        files.commit()


def write_document(path: Path, document: Mapping[str, Any]) -> FileRecord:
    """Write one JSON document, atomically, over whatever ``path`` held."""
    with FileSet(replace=True) as files:
        record = files.write_document(path, document)
        files.commit()
    return record


def update_analysis(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    """Replace ``analysis.json`` atomically; returns the document with its new digest.

    ``run`` and ``analyze`` hand in the prepared document with their keys added. A failure leaves the old file.
    """
    complete = sealed(document)
    write_document(path, complete)
    return complete


@contextlib.contextmanager
def claimed(directory: Path) -> Iterator[bool]:
    """Whether this process is the only one that writes into ``directory``; the claim ends with the block or process.

    Temporary files that lie there then are nobody's any more, and are removed.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            for partial in directory.glob(f".*{PARTIAL_SUFFIX}"):
                partial.unlink(missing_ok=True)
            yield True
    finally:
        os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        # Some file systems cannot sync a directory; the rename is atomic there all the same.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_error(error: OSError, path: Path) -> ArtifactError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ArtifactError.of(
            Code.DISK_FULL, str(path), "the disk is full", hint="Free some space and repeat the command."
        )
    return ArtifactError.of(Code.CANNOT_WRITE, str(path), f"it cannot be written: {error.strerror or error}")
