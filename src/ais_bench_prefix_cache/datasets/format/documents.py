"""JSON documents (manifest, analysis) whose every byte is checked.

A document is written in exactly one way: two spaces of indentation, characters as themselves, keys in their documented
order, one newline at the end. Its last key, ``content_sha256``, digests everything else. So any edit shows, a changed
number and an added space alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError, Problem
from ais_bench_prefix_cache.foundation.regular_files import open_regular
from ais_bench_prefix_cache.foundation.strict_json import JsonError, canonical_sha256, parse_json

DIGEST_KEY = "content_sha256"
_SHA256 = re.compile("[0-9a-f]{64}")


def content_sha256(document: Mapping[str, Any]) -> str:
    """The digest of a document without its own digest."""
    return canonical_sha256({key: value for key, value in document.items() if key != DIGEST_KEY})


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of ``document`` with its digest as the last key."""
    content = {key: value for key, value in document.items() if key != DIGEST_KEY}
    return {**content, DIGEST_KEY: content_sha256(content)}


def render_document(document: Mapping[str, Any]) -> bytes:
    """The bytes of a document's file."""
    return (json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2) + "\n").encode()


def read_document(path: Path, *, what: str) -> tuple[dict[str, Any], bytes]:
    """The JSON object in ``path`` and the file's bytes; ``what`` names it in errors (``manifest``).

    Raises :class:`ArtifactError` where the file is missing, unreadable or not one JSON object with unique keys.
    """
    with _opened(path, what) as stream:
        content = stream.read()
    try:
        document = parse_json(content)
    except JsonError as error:
        raise ArtifactError.of(Code.INVALID_JSON, str(path), f"the {what} {error}") from None
    if not isinstance(document, dict):
        raise ArtifactError.of(Code.INVALID_JSON, str(path), f"the {what} is not a JSON object")
    try:
        canonical_sha256(document)
    except UnicodeEncodeError:
        raise ArtifactError.of(Code.INVALID_JSON, str(path), f"the {what} holds half of a character") from None
    return document, content


@contextmanager
def _opened(path: Path, what: str) -> Iterator[BinaryIO]:
    """A file of a data set or run. Raises :class:`ArtifactError` where it is missing or cannot be opened or read."""
    try:
        with open_regular(path) as stream:
            yield stream
    except FileNotFoundError:
        raise ArtifactError.of(Code.MISSING_FILE, str(path), f"the {what} does not exist") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise ArtifactError.of(Code.UNREADABLE_FILE, str(path), f"the {what} cannot be read: {reason}") from None


def read_json_lines(path: Path, *, what: str) -> list[dict[str, Any]]:
    """The JSON objects of a file, one a line.

    Raises :class:`ArtifactError` where the file is missing, unreadable or has a line that is no object, by its number.
    """
    rows: list[dict[str, Any]] = []
    try:
        with _opened(path, what) as stream:
            for line in stream:
                row = parse_json(line)
                if not isinstance(row, dict):
                    raise JsonError(Code.INVALID_JSON, "is not a JSON object")
                rows.append(row)
    except JsonError as error:
        raise ArtifactError.of(
            Code.INVALID_JSON, f"{path} line {len(rows) + 1}", f"this line of the {what} {error}"
        ) from None
    return rows


def read_sealed(path: Path, *, what: str) -> dict[str, Any]:
    """As :func:`read_document`, with the document's own digest checked. Raises :class:`ArtifactError`."""
    document, content = read_document(path, what=what)
    problems = digest_problems(path, document, content, what=what)
    if problems:
        raise ArtifactError(problems)
    return document


def digest_problems(path: Path, document: Mapping[str, Any], content: bytes, *, what: str) -> list[Problem]:
    """What a document's own bytes and digest reveal: edits of its content, and of its layout."""
    recorded = document.get(DIGEST_KEY)
    if recorded is None:
        return [Problem(Code.DIGEST_MISSING, f"{path}: {DIGEST_KEY}", f"the {what} has lost the digest of its content")]
    if recorded != content_sha256(document):
        return [
            Problem(
                Code.CONTENT_EDITED,
                f"{path}: {DIGEST_KEY}",
                f"the {what}'s content is not what was written: its digest does not match",
            )
        ]
    if render_document(document) != content:
        return [
            Problem(
                Code.LAYOUT_EDITED,
                str(path),
                f"the {what}'s values are intact, but its bytes are not what was written (spaces, order or escapes)",
            )
        ]
    return []


def is_count(value: object) -> TypeGuard[int]:
    """Whether ``value`` is a whole number from 0 up (and not a boolean)."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_sha256(value: object) -> TypeGuard[str]:
    """Whether ``value`` is a SHA-256 in hexadecimal digits."""
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None
