"""JSON documents (manifest, analysis) whose every byte is checked.

A document is written in exactly one way: two spaces of indentation, characters as themselves, keys in their documented
order, one newline at the end. Its last key, ``content_sha256``, digests everything else. So any edit shows, a changed
number and an added space alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError, Problem
from ais_bench_prefix_cache.foundation.strict_json import JsonError, canonical_sha256, parse_json, read_file

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from typing import Any, TypeGuard

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
    content = read_file(path, f"the {what}", ArtifactError)
    try:
        document = parse_json(content)
    except JsonError as error:
        raise ArtifactError.of(Code.INVALID_JSON, str(path), f"the {what} {error}") from None
    if not isinstance(document, dict):
        raise ArtifactError.of(Code.INVALID_JSON, str(path), f"the {what} is not a JSON object")
    return document, content


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
