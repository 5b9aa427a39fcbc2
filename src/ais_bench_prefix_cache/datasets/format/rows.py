"""Rows of JSONL files: their record types, how they are written and how they are read.

A row's keys are the fields of its record type, in their order. Lines end with a newline and hold characters as
themselves, except U+2028, U+2029 and U+0085: some readers take these for the end of a line, so they are escaped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from ais_bench_prefix_cache.datasets.format.documents import is_count, is_sha256
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.foundation.findings import Findings
from ais_bench_prefix_cache.foundation.regular_files import open_regular
from ais_bench_prefix_cache.foundation.strict_json import parse_json

ANSWER = "none"
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_EMPTY_QUESTION = b'"question": ""'


@dataclass(frozen=True)
class Free:
    """What a value may be that is content (a text, a digest of tokens) and follows from nothing else.

    In a record type it annotates the field.
    """

    holds: Callable[[Any], bool]
    allowed: str


FreeText = Annotated[str, Free(lambda value: isinstance(value, str), "a string")]
FreeCount = Annotated[int, Free(is_count, "a whole number from 0 up")]
FreePositive = Annotated[int, Free(lambda value: is_count(value) and value > 0, "a whole number from 1 up")]
FreeSha256 = Annotated[str, Free(is_sha256, "64 hexadecimal digits")]


def list_of(holds: Callable[[Any], bool], allowed: str) -> Free:
    """A list of such values."""
    return Free(lambda value: isinstance(value, list) and all(map(holds, value)), allowed)


@dataclass(frozen=True)
class Row:
    """Base of all record types of rows. Values are JSON's."""

    @classmethod
    def keys(cls) -> tuple[str, ...]:
        """The keys in their order."""
        return tuple(each.name for each in fields(cls))

    @classmethod
    def free_fields(cls) -> dict[str, Free]:
        """The fields that nothing else decides."""
        hints = get_type_hints(cls, include_extras=True)
        annotations = ((name, getattr(hint, "__metadata__", ())) for name, hint in hints.items())
        return {name: each for name, metadata in annotations for each in metadata if isinstance(each, Free)}

    def as_json(self) -> dict[str, Any]:
        """The row as it is written."""
        return vars(self)


def request_id(sequence_index: int) -> str:
    """``request-00000000`` and so on."""
    return f"request-{sequence_index:08d}"


def request_row(full_row: Mapping[str, Any], output_key: str | None) -> dict[str, Any]:
    """The row of ``requests.jsonl`` that belongs to a row of ``full.jsonl``."""
    row = {"question": full_row["question"], "answer": full_row["answer"]}
    if output_key is not None:
        row[output_key] = full_row["max_tokens"]
    return row


def render_row(row: Mapping[str, Any]) -> bytes:
    """The line of one row."""
    return _without_line_ends(_ENCODER.encode(row)).encode() + b"\n"


@dataclass(frozen=True)
class LineBatch:
    """Lines of ``rows`` rows that stand together in each file of a data set; one entry a file, in the files' order."""

    rows: int
    lines: tuple[bytes, ...]


def line_with_text(row: Mapping[str, Any], escaped: bytes) -> tuple[bytes, bytes, bytes]:
    """The line of a row whose ``question`` is empty with a text in that place, in three pieces.

    ``escaped`` is what :func:`text_in_row` makes of the text.
    """
    line = render_row(row)
    place = line.index(_EMPTY_QUESTION) + len(_EMPTY_QUESTION) - 1
    return line[:place], escaped, line[place:]


def text_in_row(text: str) -> str:
    """How :func:`render_row` writes a text, without the quotes around it: parts of a text may be joined."""
    return _without_line_ends(_ENCODER.encode(text)[1:-1])


def parsed_row(line: bytes, where: str, findings: Findings) -> dict[str, Any] | None:
    """The row of a line that nobody has checked; None, with a finding, where it is no JSON object."""
    try:
        row = parse_json(line)
    except ValueError as error:
        findings.add(Code.INVALID_JSON, where, f"it {error}")
        return None
    if not isinstance(row, dict):
        findings.add(Code.INVALID_JSON, where, "it is not a JSON object")
        return None
    return row


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file that has been verified, one by one."""
    with open_regular(path) as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = parse_json(line)
            except ValueError as error:
                raise ArtifactError.of(Code.INVALID_JSON, f"{path} line {number}", f"it {error}") from None
            yield row


def _without_line_ends(line: str) -> str:
    if line.isascii():
        return line
    return line.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").replace("\x85", "\\u0085")
