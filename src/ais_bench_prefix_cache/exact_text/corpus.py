"""The corpus: JSONL rows with one text field, read strictly, white space normalised, chosen by the Scenario's rules."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem, ScenarioError
from ais_bench_prefix_cache.foundation.random_streams import RandomStream

if TYPE_CHECKING:
    from ais_bench_prefix_cache.scenario.model import CorpusSelection

MAX_REPORTED_PROBLEMS = 20
FEW_ROWS = 128
"""A corpus of no more rows is read so often that drawing each pass's order anew would take most of the time."""
REMEMBERED_SHUFFLES = 1024


def normalize_question(text: str) -> str:
    """The contract's normal form: trimmed, each run of white space one space."""
    return " ".join(text.split())


def question_sha256(question: str) -> str:
    """The digest of a normalised question in UTF-8, in hex."""
    return hashlib.sha256(question.encode("utf-8")).hexdigest()


@dataclass(frozen=True)
class Corpus:
    """Rows in file order. ``rows[i]`` is the normalised text of row i, ``row_sha256[i]`` its digest.

    Row numbers are zero-based and count non-blank lines only. ``sha256`` digests the file's bytes.
    """

    path: Path
    field: str
    sha256: str
    rows: tuple[str, ...]
    row_sha256: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)


class RowSelection:
    """The rows of a corpus that a :class:`CorpusSelection` names, in order, cycle after cycle.

    ``cycle(n)`` is the order of the n-th pass: a list selection repeats itself, ``random`` is shuffled anew each time
    (a corpus of few rows for its first :data:`REMEMBERED_SHUFFLES` passes, whose orders then come again).
    """

    def __init__(self, rows: tuple[int, ...], shuffle_labels: tuple[int, tuple[str | int, ...]] | None) -> None:
        self.rows = rows
        # Nothing to shuffle in one row.
        self._shuffle_labels = shuffle_labels if len(rows) > 1 else None
        self._remembered: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def cycle(self, number: int) -> list[int]:
        if self._shuffle_labels is None:
            return list(self.rows)
        few = len(self.rows) <= FEW_ROWS
        if few:
            number %= REMEMBERED_SHUFFLES
            if number in self._remembered:
                return self._remembered[number]
        random_seed, labels = self._shuffle_labels
        order = RandomStream(random_seed, *labels, number).permutation(len(self.rows)).tolist()
        shuffled = [self.rows[position] for position in order]
        if few:
            self._remembered[number] = shuffled
        return shuffled


def load_corpus(path: Path, field: str, *alternatives: str) -> Corpus:
    """Read a JSONL corpus whose text is in ``field`` or, where a row has no such text, in one of ``alternatives``.

    Lines end with LF or CRLF only (a raw U+2028 is text); blank lines and a byte-order mark are skipped. Raises
    :class:`ScenarioError` naming the file and every bad line (the first :data:`MAX_REPORTED_PROBLEMS`).
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ScenarioError.of(
            Code.CORPUS_NOT_FOUND, "scenario: corpus.path", f"the file {str(path)!r} does not exist"
        ) from error
    except IsADirectoryError as error:
        raise ScenarioError.of(
            Code.CORPUS_NOT_A_FILE, "scenario: corpus.path", f"{str(path)!r} is a directory", allowed="a JSONL file"
        ) from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ScenarioError.of(
            Code.CORPUS_UNREADABLE, "scenario: corpus.path", f"the file {str(path)!r} cannot be read: {reason}"
        ) from error

    rows: list[str] = []
    problems: list[Problem] = []
    for line_number, line in enumerate(_lines(data), start=1):
        if not line.strip(b" \t\r"):
            continue
        parsed = _parse_line(path, (field, *alternatives), line_number, line)
        if isinstance(parsed, Problem):
            problems.append(parsed)
            if len(problems) == MAX_REPORTED_PROBLEMS:
                break
        else:
            rows.append(parsed)
    if problems:
        raise ScenarioError(problems)
    if not rows:
        raise ScenarioError.of(
            Code.CORPUS_EMPTY,
            "scenario: corpus.path",
            f"the file {str(path)!r} holds no rows",
            allowed=f"at least one line with a JSON object that has a non-blank text in {field!r}",
        )
    return Corpus(
        path=path,
        field=field,
        sha256=hashlib.sha256(data).hexdigest(),
        rows=tuple(rows),
        row_sha256=tuple(question_sha256(row) for row in rows),
    )


def select_rows(
    corpus: Corpus, selection: CorpusSelection, *, random_seed: int, labels: tuple[str | int, ...], where: str
) -> RowSelection:
    """The rows that a selection names. ``labels`` name the random stream, ``where`` the selection in the Scenario.

    Raises :class:`ScenarioError` for row numbers that do not exist and for digests that match no row or several.
    """
    if selection.mode == "random":
        return RowSelection(tuple(range(len(corpus))), (random_seed, labels))
    problems: list[Problem] = []
    rows: list[int] = []
    for position, row in enumerate(selection.indices):
        if 0 <= row < len(corpus):
            rows.append(row)
            continue
        name = "indices" if selection.mode == "mixed" else "values"
        problems.append(
            Problem(
                Code.CORPUS_ROW_MISSING,
                f"{where}.{name}[{position}]",
                f"the corpus {str(corpus.path)!r} has no row {row}",
                allowed=f"0 to {len(corpus) - 1}",
            )
        )
    if selection.question_sha256:
        by_digest: dict[str, list[int]] = {}
        for row, digest in enumerate(corpus.row_sha256):
            by_digest.setdefault(digest, []).append(row)
        name = "question_sha256" if selection.mode == "mixed" else "values"
        for position, digest in enumerate(selection.question_sha256):
            matches = by_digest.get(digest.lower(), [])
            if len(matches) == 1:
                rows.append(matches[0])
                continue
            found = "no row" if not matches else f"{len(matches)} rows ({', '.join(map(str, matches[:5]))})"
            problems.append(
                Problem(
                    Code.CORPUS_DIGEST_MATCH,
                    f"{where}.{name}[{position}]",
                    f"{digest} matches {found} of the corpus {str(corpus.path)!r}",
                    allowed="the digest of exactly one row",
                )
            )
    if problems:
        raise ScenarioError(problems)
    return RowSelection(tuple(rows), None)


def _lines(data: bytes) -> Iterator[bytes]:
    return iter(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"))


def _parse_line(path: Path, fields: tuple[str, ...], line_number: int, line: bytes) -> str | Problem:
    where = f"{path.name} line {line_number}"
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        return Problem(Code.CORPUS_ENCODING, where, f"byte {error.start + 1} is not UTF-8", allowed="UTF-8")
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "it cannot be read"
        return Problem(Code.CORPUS_LINE_NOT_JSON, where, f"the line is not JSON: {reason}", allowed="one JSON object")
    if not isinstance(value, dict):
        return Problem(Code.CORPUS_LINE_NOT_OBJECT, where, "the line is not a JSON object", allowed="one JSON object")
    present = [field for field in fields if field in value]
    if not present:
        return Problem(
            Code.CORPUS_FIELD_MISSING,
            where,
            f"the field {' or '.join(map(repr, fields))} is missing",
            hint=f"The line has {', '.join(repr(key) for key in value) or 'no fields'}; corpus.field names the text.",
        )
    field = next((field for field in present if isinstance(value[field], str) and value[field].strip()), present[0])
    question = value[field]
    if not isinstance(question, str):
        return Problem(Code.CORPUS_FIELD_NOT_TEXT, where, f"the field {field!r} is not a string", allowed="a string")
    question = normalize_question(question)
    if not question:
        return Problem(Code.CORPUS_TEXT_BLANK, where, f"the field {field!r} is blank", allowed="text")
    try:
        question.encode("utf-8")
    except UnicodeEncodeError:
        return Problem(
            Code.CORPUS_TEXT_NOT_UNICODE,
            where,
            f"the field {field!r} holds half of a surrogate pair, which no UTF-8 file can hold",
        )
    return question
