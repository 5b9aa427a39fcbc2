"""The requests of a data set without their audit fields, in the form that a benchmark reads. Standard library only.

Rows are read and written one by one, so memory does not grow with the file (unless it is one JSON array).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ais_bench_prefix_cache.datasets.conversations.exports import (
    ARRAY_FORMS,
    CONVERSATION_FORMS,
    turn_of,
    whole_conversations,
)
from ais_bench_prefix_cache.datasets.format.documents import is_count
from ais_bench_prefix_cache.datasets.format.rows import render_row
from ais_bench_prefix_cache.datasets.format.writing import FileRecord, FileSet, GrowingFile
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.foundation.findings import shown
from ais_bench_prefix_cache.foundation.regular_files import open_regular
from ais_bench_prefix_cache.foundation.row_files import BadRow, RowFile
from ais_bench_prefix_cache.foundation.row_texts import USUAL_FIELDS, field_value, find_field, has_half_character

PLAIN = "plain"
DEFAULT_SUFFIX = "_extracted"

RowForm = Callable[[int, Mapping[str, Any], "str | None"], dict[str, Any]]
"""From the row's number (from 0), the row and the model's name to what is written."""


def _user_message(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": row["question"]}]


FORMS: dict[str, RowForm] = {
    PLAIN: lambda _number, row, _model: {key: row[key] for key in ("question", "answer", "max_tokens")},
    "vllm-custom": lambda _number, row, _model: {"prompt": row["question"], "output_tokens": row["max_tokens"]},
    "sglang": lambda _number, row, _model: {"messages": _user_message(row), "max_tokens": row["max_tokens"]},
    "aiperf-single-turn": lambda _number, row, _model: {"text": row["question"], "output_length": row["max_tokens"]},
    "aiperf-mooncake-trace": lambda _number, row, _model: {
        "text_input": row["question"],
        "output_length": row["max_tokens"],
    },
    "guidellm": lambda _number, row, _model: {"prompt": row["question"], "output_tokens_count": row["max_tokens"]},
    "evalscope": lambda _number, row, _model: {"prompt": row["question"], "max_tokens": row["max_tokens"]},
    "openai-batch": lambda number, row, model: {
        "custom_id": f"request-{number:08d}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": model, "messages": _user_message(row), "max_tokens": row["max_tokens"]},
    },
}
"""What one line of each format holds; ``docs/extract.md`` says how each benchmark is told to read it."""
FORMS_WITH_MODEL = frozenset({"openai-batch"})
FORM_NAMES = (*FORMS, *CONVERSATION_FORMS)


def default_output(source: Path, form: str) -> Path:
    """``name_extracted.jsonl`` beside ``name.jsonl``; ``name_<form>.jsonl`` for another benchmark's format."""
    suffix = DEFAULT_SUFFIX if form == PLAIN else f"_{form}"
    plain = source.with_suffix("") if source.suffix == ".gz" else source
    ending = ".jsonl" if plain.suffix in (".json", ".csv", ".tsv", ".parquet") else plain.suffix
    ending = ".json" if form in ARRAY_FORMS else ending
    return plain.with_name(f"{plain.stem}{suffix}{ending}")


def extract(source: Path, output: Path, *, form: str = PLAIN, model: str | None = None) -> FileRecord:
    """Write ``output`` from ``source``; an existing file is replaced as a whole, or stays as it is.

    ``form`` is one of :data:`FORM_NAMES`; the record's rows are requests, or conversations.
    ``model`` names the served model, for the formats that carry it. Raises :class:`ArtifactError` with the number of
    rows that are wrong, and where the first ones stand.
    """
    if output.exists() and source.exists() and output.samefile(source):
        raise ArtifactError.of(Code.SAME_FILE, str(output), "the output file is the input file")
    try:
        with open_regular(source, follow_links=True) as stream, FileSet(replace=True) as files:
            growing = files.open(output)
            if form in FORMS:
                rows = _write_requests(stream, source, growing, form, model)
            else:
                rows = _write_conversations(stream, source, growing, form)
            record = growing.finish()._replace(rows=rows)
            if not record.rows:
                raise ArtifactError.of(Code.EMPTY_FILE, str(source), "the file holds no rows")
            files.commit()
    except FileNotFoundError:
        raise ArtifactError.of(Code.MISSING_FILE, str(source), "the file does not exist") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise ArtifactError.of(Code.UNREADABLE_FILE, str(source), f"it cannot be read: {reason}") from None
    return record


def _write_requests(stream: BinaryIO, source: Path, growing: GrowingFile, form: str, model: str | None) -> int:
    make, number = FORMS[form], 0
    for _, row in RowFile(stream, source, ArtifactError, ("max_tokens",)).read(_request_row):
        growing.write(render_row(make(number, row, model)))
        number += 1
    return number


def _write_conversations(stream: BinaryIO, source: Path, growing: GrowingFile, form: str) -> int:
    """One conversation a line, in an array with brackets and commas around the lines; returns their number."""
    count = 0
    for line in _conversation_lines(stream, source, form):
        if form not in ARRAY_FORMS:
            growing.write(line)
        else:
            growing.write((b",\n" if count else b"[\n") + line.rstrip(b"\n"))
        count += 1
    if form in ARRAY_FORMS and count:
        growing.write(b"\n]\n")
    return count


def _conversation_lines(stream: BinaryIO, source: Path, form: str) -> Iterator[bytes]:
    rows = RowFile(stream, source, ArtifactError).read(lambda row: turn_of(row, form))
    try:
        for conversation in whole_conversations(rows):
            yield render_row(CONVERSATION_FORMS[form](conversation))
    except BadRow as bad:
        raise ArtifactError.of(bad.code, str(source), str(bad), allowed=bad.allowed, hint=bad.hint) from None


def _request_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The three fields of a request; its prompt is looked for in the usual places."""
    prompt = find_field(row, USUAL_FIELDS) or USUAL_FIELDS[0]
    request: dict[str, Any] = {}
    for key, field, allowed in (
        ("question", prompt, "text"),
        ("answer", "answer", "text"),
        ("max_tokens", "max_tokens", "a whole number from 1 up"),
    ):
        if find_field(row, [field]) is None:
            raise BadRow(
                Code.MISSING_KEY,
                f"the field {key!r} is missing",
                hint=f"The row has {', '.join(map(repr, row)) or 'no fields'}.",
            )
        value = field_value(row, field)
        if isinstance(value, str) and has_half_character(value):
            raise BadRow(Code.WRONG_TYPE, f"{field} holds half of a character (a lone surrogate)", allowed)
        if not _is_right(key, value):
            raise BadRow(Code.WRONG_TYPE, f"{field} says {shown(value)}", allowed)
        request[key] = value
    return request


def _is_right(key: str, value: object) -> bool:
    if key == "max_tokens":
        return is_count(value) and value > 0
    return isinstance(value, str) and (bool(value) or key == "answer")
