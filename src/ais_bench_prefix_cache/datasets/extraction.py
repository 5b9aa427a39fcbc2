"""The requests of a data set without their audit fields, in the form that a benchmark reads. Standard library only.

The file is read and written line by line, so memory does not grow with it.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.datasets.format.documents import is_count
from ais_bench_prefix_cache.datasets.format.rows import render_row
from ais_bench_prefix_cache.datasets.format.writing import FileRecord, FileSet
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.foundation.findings import Findings, shown
from ais_bench_prefix_cache.foundation.strict_json import parse_json

PLAIN = "plain"
DEFAULT_SUFFIX = "_extracted"
MOST_BAD_LINES = 20

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


def default_output(source: Path, form: str) -> Path:
    """``name_extracted.jsonl`` beside ``name.jsonl``; ``name_<form>.jsonl`` for another benchmark's format."""
    suffix = DEFAULT_SUFFIX if form == PLAIN else f"_{form}"
    return source.with_name(f"{source.stem}{suffix}{source.suffix}")


def extract(source: Path, output: Path, *, form: str = PLAIN, model: str | None = None) -> FileRecord:
    """Write ``output`` from ``source``; an existing file is replaced as a whole, or stays as it is.

    ``model`` names the served model, for the formats that carry it. Raises :class:`ArtifactError` with the numbers of
    the lines that are wrong (the first :data:`MOST_BAD_LINES`).
    """
    if output.exists() and source.exists() and output.samefile(source):
        raise ArtifactError.of(Code.SAME_FILE, str(output), "the output file is the input file")
    make = FORMS[form]
    try:
        with source.open("rb") as lines, FileSet(replace=True) as files:
            growing = files.open(output)
            for number, row in enumerate(_request_rows(lines, source)):
                growing.write(render_row(make(number, row, model)))
            record = growing.finish()
            if not record.rows:
                raise ArtifactError.of(Code.EMPTY_FILE, str(source), "the file holds no rows")
            files.commit()
    except FileNotFoundError:
        raise ArtifactError.of(Code.MISSING_FILE, str(source), "the file does not exist") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise ArtifactError.of(Code.UNREADABLE_FILE, str(source), f"it cannot be read: {reason}") from None
    return record


def _request_rows(lines: Iterator[bytes], source: Path) -> Iterator[dict[str, Any]]:
    """The good rows; after the last line, or the twentieth bad one, every problem is raised at once."""
    findings = Findings()
    bad = 0
    for number, line in enumerate(lines, start=1):
        where = f"{source.name} line {number}"
        row = _request_row(line.removeprefix(BOM_UTF8) if number == 1 else line, where, findings)
        if row is None:
            bad += 1
            if bad == MOST_BAD_LINES:
                break
        elif not bad:
            yield row
    findings.raise_if_any()


def _request_row(line: bytes, where: str, findings: Findings) -> dict[str, Any] | None:
    try:
        row = parse_json(line)
    except ValueError as error:
        reason = "the line is blank" if not line.strip() else f"the line {error}"
        findings.add(Code.INVALID_JSON, where, reason, allowed="one JSON object")
        return None
    if not isinstance(row, dict):
        findings.add(Code.INVALID_JSON, where, "the line is not a JSON object", allowed="one JSON object")
        return None
    sound = True
    for key, allowed in (("question", "text"), ("answer", "text"), ("max_tokens", "a whole number from 1 up")):
        if key not in row:
            findings.add(Code.MISSING_KEY, where, f"the field {key!r} is missing")
            sound = False
        elif isinstance(row[key], str) and not _can_be_written(row[key]):
            findings.add(
                Code.WRONG_TYPE, f"{where}: {key}", "it holds half of a character (a lone surrogate)", allowed=allowed
            )
            sound = False
        elif not _is_right(key, row[key]):
            findings.add(Code.WRONG_TYPE, f"{where}: {key}", f"it says {shown(row[key])}", allowed=allowed)
            sound = False
    return row if sound else None


def _can_be_written(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_right(key: str, value: object) -> bool:
    if key == "max_tokens":
        return is_count(value) and value > 0
    return isinstance(value, str) and (bool(value) or key == "answer")
