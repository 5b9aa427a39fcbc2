"""Rows from a file that a user brings: JSON Lines, one JSON array, CSV or Parquet, each of them also in gzip.

What a file is, its first bytes say; only CSV is known by its name. Rows are streamed, but for an array, which is read
whole. A file with bad rows gives one error, which counts them.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import PrefixCacheError, Problem
from ais_bench_prefix_cache.foundation.foreign_files import HEAD_BYTES, foreign_file
from ais_bench_prefix_cache.foundation.strict_json import LARGEST_FILE_BYTES, JsonError, decode_utf8, parse_json

FORMATS = "JSON Lines, a JSON array of objects, CSV or Parquet, each also in gzip"
LONGEST_ROW_BYTES = 64 << 20
MOST_UNPACKED_BYTES = 4 << 30
BOMB_RATIO = 300
"""Packed data that unpack to more than so many times their size, and to more than the longest row, are refused."""
ROWS_AT_ONCE = 64
PLACES_SHOWN = 5

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_Read = TypeVar("_Read")


class BadRow(ValueError):
    """A row cannot be used; the message is a sentence about it."""

    def __init__(self, code: Code, message: str, allowed: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.allowed = allowed
        self.hint = hint


class _BadFile(BadRow):
    """No row of the file can be used."""


class RowFile:
    """The rows of an open file. ``path`` names it in messages, and a CSV file by its ending.

    Rows are objects; of a CSV file they are texts by column, under the names ``integers`` integers where they can be
    read so. Errors are of the class ``error``; what the operating system refuses is an :class:`OSError`.
    """

    def __init__(
        self, stream: BinaryIO, path: Path, error: type[PrefixCacheError], integers: Collection[str] = ()
    ) -> None:
        self._stream = stream
        self._path = path
        self._error = error
        self._integers = integers
        self._unit = "line"

    def place(self, number: int) -> str:
        """Where a row stands, for messages."""
        return f"{self._path.name} {self._unit} {number}"

    def read(self, read: Callable[[Mapping[str, Any]], _Read]) -> Iterator[tuple[int, _Read]]:
        """What ``read`` makes of each row, with the row's number: its line, or its count from 1 where it has none.

        ``read`` raises :class:`BadRow` for one that cannot be used. After the first of them nothing more is given: the
        others are only counted.

        Raises:
            PrefixCacheError: with one problem, which says what the file is, or how many of its rows are bad and why.
        """
        faults = _Faults(self._path)
        try:
            for number, value in self._values():
                faults.rows += 1
                try:
                    if isinstance(value, BadRow):
                        raise value
                    if not isinstance(value, dict):
                        raise BadRow(Code.INVALID_JSON, f"the {self._unit} is not a JSON object", "one JSON object")
                    made = read(value)
                except BadRow as fault:
                    faults.add(number, fault)
                else:
                    if not faults:
                        yield number, made
        except _BadFile as failure:
            raise self._error.of(
                failure.code, str(self._path), str(failure), allowed=failure.allowed, hint=failure.hint
            ) from None
        if faults:
            raise self._error(faults.problem(self._unit))

    def _values(self) -> Iterator[tuple[int, Any]]:
        """What stands where rows should, as it was found."""
        stream, name = _buffered(self._stream), self._path.name.lower()
        head = stream.peek(HEAD_BYTES)[:HEAD_BYTES]
        if head.startswith(b"\x1f\x8b"):
            stream, name = io.BufferedReader(_Unpacked(stream), 64 * HEAD_BYTES), name.removesuffix(".gz")
            head = stream.peek(HEAD_BYTES)[:HEAD_BYTES]
        foreign = foreign_file(head)
        if foreign is not None:
            raise _BadFile(Code.FOREIGN_FILE, f"the file is {foreign.what}", FORMATS, foreign.hint)
        start = head.removeprefix(_BYTE_ORDER_MARK).lstrip()
        if head.startswith(b"PAR1"):
            self._unit = "row"
            return _parquet_rows(stream)
        if name.endswith((".csv", ".tsv")):
            return _csv_rows(stream, self._integers)
        if start.startswith(b"["):
            self._unit = "row"
            return _array_rows(stream)
        if start.split(b"\n", 1)[0].strip() == b"{":
            message = "the file is one JSON object over several lines"
            raise _BadFile(Code.INVALID_JSON, message, FORMATS, "Save its rows as an array, or one a line.")
        return _json_lines(stream)


class _Faults:
    """The bad rows of one file, by their kind: the first of it, how many there are, and where the next ones stand."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._first: dict[Code, tuple[int, BadRow]] = {}
        self._counts: dict[Code, int] = {}
        self._next: dict[Code, list[str]] = {}
        self.rows = 0

    def __bool__(self) -> bool:
        return bool(self._first)

    def add(self, number: int, fault: BadRow) -> None:
        if self._first.setdefault(fault.code, (number, fault))[1] is not fault and (
            len(self._next.setdefault(fault.code, [])) < PLACES_SHOWN
        ):
            self._next[fault.code].append(str(number))
        self._counts[fault.code] = self._counts.get(fault.code, 0) + 1

    def problem(self, unit: str) -> Problem:
        """All of them as one: of a single bad row its own, otherwise their number and the first of each kind."""
        code, (number, fault) = next(iter(self._first.items()))
        bad = sum(self._counts.values())
        if bad == 1:
            return Problem(code, f"{self._path.name} {unit} {number}", str(fault), fault.allowed, fault.hint)
        if self._counts == {Code.INVALID_JSON: self.rows} and unit == "line":
            message = f"none of its {bad} lines is a JSON object: the file is plain text, or CSV without that ending"
            return Problem(code, str(self._path), message, FORMATS, f"line {number}: {fault}")
        kinds = "\n    ".join(self._kind(unit, each) for each in self._first)
        return Problem(code, str(self._path), f"{bad} of {self.rows} rows cannot be used", hint=kinds)

    def _kind(self, unit: str, code: Code) -> str:
        number, fault = self._first[code]
        text = str(Problem(code, f"{unit} {number}", str(fault), fault.allowed, fault.hint))
        more = self._counts[code] - 1
        if not more:
            return text
        places = self._next[code]
        shown = ", ".join(places) + (", …" if more > len(places) else "")
        return f"{text}\n    and {more} more of this kind: {unit}{'s' if more > 1 else ''} {shown}"


def _buffered(stream: BinaryIO) -> io.BufferedReader:
    return stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, stream))


class _Unpacked(io.RawIOBase):
    """What a gzip file holds, as long as it is no bomb."""

    def __init__(self, packed: io.BufferedReader) -> None:
        self._packed = _Counted(packed)
        self._file = gzip.GzipFile(fileobj=cast(BinaryIO, self._packed))
        self._size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            content = self._file.read(len(buffer))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            message = f"the gzip file is damaged or cut off: {error}"
            raise _BadFile(Code.UNREADABLE_FILE, message, hint="Fetch it again.") from None
        self._size += len(content)
        if self._size > min(MOST_UNPACKED_BYTES, max(LONGEST_ROW_BYTES, BOMB_RATIO * self._packed.size)):
            message = f"the gzip file unpacks to more than {_mebibytes(self._size - len(content))}"
            hint = "If it is what it should be, unpack it with `gunzip` first."
            raise _BadFile(Code.FILE_TOO_LARGE, message, f"{BOMB_RATIO} times its own size", hint)
        buffer[: len(content)] = content
        return len(content)


class _Counted:
    """Counts the bytes that are read."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self.size = 0

    def read(self, size: int) -> bytes:
        content = self._stream.read(size)
        self.size += len(content)
        return content


def _mebibytes(size: int) -> str:
    return f"{size >> 20} MiB"


def _lines(stream: io.BufferedReader) -> Iterator[tuple[int, bytes]]:
    """Lines with their ends, which are LF or CRLF only (a raw U+2028 is text), without a byte-order mark."""
    for number in count(1):
        line = stream.readline(LONGEST_ROW_BYTES + 1)
        if not line:
            return
        if len(line) > LONGEST_ROW_BYTES:
            message = f"line {number} is longer than {_mebibytes(LONGEST_ROW_BYTES)}"
            raise _BadFile(Code.FILE_TOO_LARGE, message, FORMATS)
        yield number, line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line


def _json_lines(stream: io.BufferedReader) -> Iterator[tuple[int, Any]]:
    for number, line in _lines(stream):
        if line.strip():
            try:
                yield number, parse_json(line.rstrip(b"\r\n"))
            except JsonError as error:
                yield number, BadRow(error.code, f"the line {error}", "one JSON object", error.hint)


def _array_rows(stream: io.BufferedReader) -> Iterator[tuple[int, Any]]:
    content = stream.read(LARGEST_FILE_BYTES + 1)
    if len(content) > LARGEST_FILE_BYTES:
        message = f"the file is one JSON array of more than {_mebibytes(LARGEST_FILE_BYTES)}, which is read whole"
        raise _BadFile(Code.FILE_TOO_LARGE, message, hint="Write its rows one a line (JSON Lines).")
    try:
        rows = parse_json(content.removeprefix(_BYTE_ORDER_MARK))
    except JsonError as error:
        raise _BadFile(error.code, f"the file {error}", FORMATS, error.hint) from None
    return enumerate(rows, start=1)


def _csv_rows(stream: io.BufferedReader, integers: Collection[str]) -> Iterator[tuple[int, Any]]:
    """Rows under a header, separated by what separates the header's names: comma, tabulator or semicolon."""
    texts = _texts(stream)
    first = next((text for text in texts if text.strip()), "")
    delimiter = max(",\t;", key=first.count)
    reader = csv.reader(chain([first], texts), delimiter=delimiter, strict=True)
    header: list[str] = []
    try:
        for cells in reader:
            if not cells:
                continue
            if not header:
                header = [cell.strip() for cell in cells]
                twice = next((name for name in header if header.count(name) > 1), None)
                if twice is not None:
                    raise _BadFile(Code.DUPLICATE_KEY, f"the column {twice!r} appears more than once in the header")
            elif len(cells) != len(header):
                message = f"the row has {len(cells)} cells, the header {len(header)}"
                yield reader.line_num, BadRow(Code.INVALID_CSV, message)
            else:
                row: dict[str, Any] = dict(zip(header, cells, strict=True))
                yield reader.line_num, row | {name: _integer(row[name]) for name in integers if name in row}
    except csv.Error as error:
        hint = "Longer texts fit into JSON Lines." if "field limit" in str(error) else None
        raise _BadFile(Code.INVALID_CSV, f"line {reader.line_num}: this is not CSV: {error}", hint=hint) from None


def _texts(stream: io.BufferedReader) -> Iterator[str]:
    for number, line in _lines(stream):
        try:
            yield decode_utf8(line)
        except JsonError as error:
            raise _BadFile(error.code, f"line {number} {error}", hint=error.hint) from None


def _integer(cell: str) -> int | str:
    # int() also takes signs, underscores and other scripts' digits; Python converts no more than 4300 digits.
    return int(cell) if cell.isascii() and cell.isdigit() and len(cell) < 20 else cell


def _parquet_rows(stream: io.BufferedReader) -> Iterator[tuple[int, Any]]:
    try:
        from pyarrow import ArrowException  # An extra, and it takes a tenth of a second.
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise _BadFile(
            Code.MULTIMODAL_EXTRA_MISSING,
            "the file is Parquet; reading it needs pyarrow, which is not installed",
            hint="pip install 'ais-bench-prefix-cache[multimodal]'",
        ) from None
    number = 0
    size = 0
    try:
        # Its end is read first.
        whole = stream if stream.seekable() else io.BytesIO(stream.read(LARGEST_FILE_BYTES))
        with ParquetFile(whole, pre_buffer=False) as file:
            for batch in file.iter_batches(ROWS_AT_ONCE, use_threads=False):
                size += batch.nbytes
                if size > MOST_UNPACKED_BYTES:
                    raise _BadFile(Code.FILE_TOO_LARGE, f"its rows take more than {_mebibytes(MOST_UNPACKED_BYTES)}")
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        if isinstance(error, BadRow):
            raise
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise _BadFile(Code.UNREADABLE_FILE, f"the Parquet file is damaged: {reason}", hint="Fetch it again.") from None
