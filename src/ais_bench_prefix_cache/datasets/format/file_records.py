"""Rows, sizes and SHA-256 of a data set's files as they are on the disk."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from ais_bench_prefix_cache.datasets.format.writing import FileRecord
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.findings import Findings
from ais_bench_prefix_cache.foundation.regular_files import READ_BYTES, open_regular


def file_records(files: Mapping[str, Path], findings: Findings) -> dict[str, FileRecord]:
    """The record of each file under its key; a file that cannot be read is reported and left out."""
    records = {}
    for key, path in files.items():
        try:
            records[key] = file_record(path)
        except FileNotFoundError:
            findings.add(Code.MISSING_FILE, str(path), "the file does not exist")
        except OSError as error:
            findings.add(Code.UNREADABLE_FILE, str(path), f"it cannot be read: {error.strerror or error}")
    return records


def file_record(path: Path) -> FileRecord:
    """Rows (line ends), bytes and SHA-256 of one file. Raises :class:`OSError`."""
    digest, size, rows = hashlib.sha256(), 0, 0
    with open_regular(path) as stream:
        while chunk := stream.read(READ_BYTES):
            digest.update(chunk)
            size += len(chunk)
            rows += chunk.count(b"\n")
    return FileRecord(path, rows, size, digest.hexdigest())
