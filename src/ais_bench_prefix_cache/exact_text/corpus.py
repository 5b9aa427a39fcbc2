"""The corpus: rows with one text field, read strictly, white space normalised, chosen by the Scenario's rules."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem, ScenarioError
from ais_bench_prefix_cache.foundation.random_streams import RandomStream
from ais_bench_prefix_cache.foundation.regular_files import open_regular
from ais_bench_prefix_cache.foundation.row_files import BadRow, RowFile
from ais_bench_prefix_cache.foundation.row_texts import USUAL_FIELDS, field_value, find_field

if TYPE_CHECKING:
    from ais_bench_prefix_cache.scenario.model import CorpusSelection

DEFAULT_FIELD = "question"
"""Of a Scenario that names no other; only this one gives way to what a corpus has in its place."""
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

    Row numbers are zero-based and do not count blank lines. ``field`` is the one that was read, ``sha256`` the
    digest of the file's bytes.
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
    """Read a corpus whose text is in ``field`` or, where a row has no such text, in one of ``alternatives``.

    ``field`` is a key, or a path such as ``messages[].content``. Where it is the default, :data:`DEFAULT_FIELD`, and
    the first row has none of these, the corpus's field is the first of the usual ones that this row has. The forms of
    files are those of :class:`RowFile`. Raises :class:`ScenarioError` naming the file and its bad rows.
    """
    where = "scenario: corpus.path"
    try:
        with open_regular(path, follow_links=True) as stream:
            data = stream.read()
    except FileNotFoundError as error:
        raise ScenarioError.of(Code.CORPUS_NOT_FOUND, where, f"the file {str(path)!r} does not exist") from error
    except IsADirectoryError as error:
        raise ScenarioError.of(
            Code.CORPUS_NOT_A_FILE, where, f"{str(path)!r} is a directory", allowed="a file of rows"
        ) from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ScenarioError.of(
            Code.CORPUS_UNREADABLE, where, f"the file {str(path)!r} cannot be read: {reason}"
        ) from error

    texts = _RowTexts((field, *alternatives))
    rows = tuple(text for _, text in RowFile(BytesIO(data), path, ScenarioError).read(texts.read))
    if not rows:
        raise ScenarioError.of(
            Code.CORPUS_EMPTY,
            where,
            f"the file {str(path)!r} holds no rows",
            allowed=f"at least one JSON object that has a non-blank text in {field!r}",
        )
    return Corpus(
        path=path,
        field=texts.fields[0],
        sha256=hashlib.sha256(data).hexdigest(),
        rows=rows,
        row_sha256=tuple(question_sha256(row) for row in rows),
    )


class _RowTexts:
    """The normalised text of each row, in one of ``fields``; the first row may decide for a usual one instead."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        self.fields = fields
        self._may_decide = fields[0] == DEFAULT_FIELD

    def read(self, row: Mapping[str, Any]) -> str:
        present = self._present(row)
        if not present:
            raise BadRow(
                Code.CORPUS_FIELD_MISSING,
                f"the field {' or '.join(map(repr, self.fields))} is missing",
                hint=f"The row has {', '.join(map(repr, row)) or 'no fields'}; corpus.field names the text.",
            )
        values = {field: field_value(row, field) for field in present}
        field = next((field for field, value in values.items() if isinstance(value, str) and value.strip()), present[0])
        text = values[field]
        if not isinstance(text, str):
            path = find_field({field: text}, [usual for usual in USUAL_FIELDS if usual.startswith(f"{field}[]")])
            hint = f"corpus.field {path!r} takes the texts in it." if path else None
            raise BadRow(Code.CORPUS_FIELD_NOT_TEXT, f"the field {field!r} is not a string", "a string", hint)
        text = normalize_question(text)
        if not text:
            raise BadRow(Code.CORPUS_TEXT_BLANK, f"the field {field!r} is blank", "text")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            message = f"the field {field!r} holds half of a surrogate pair, which no UTF-8 file can hold"
            raise BadRow(Code.CORPUS_TEXT_NOT_UNICODE, message) from None
        return text

    def _present(self, row: Mapping[str, Any]) -> list[str]:
        present = [field for field in self.fields if find_field(row, [field])]
        if self._may_decide and not present:
            usual = find_field(row, USUAL_FIELDS)
            present = [] if usual is None else [usual]
            self.fields = tuple(present) or self.fields
        self._may_decide = False
        return present


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
