"""Lengths from a CSV file: one row per request, one named column."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem, ScenarioError
from ais_bench_prefix_cache.foundation.findings import Findings, nearest, quoted
from ais_bench_prefix_cache.foundation.strict_json import JsonError, decode_utf8, read_file

INPUT_COLUMNS = ("input_prompt_tokens", "content_tokens", "input_tokens")
OUTPUT_COLUMNS = ("output_tokens",)
LONGEST_LENGTH = 2**31 - 1


def read_csv_lengths(path: Path, columns: tuple[str, ...], report: Callable[[Problem], None]) -> tuple[int, ...]:
    """The lengths (tokens) in the first of ``columns`` that the file has, row by row.

    UTF-8 with or without a byte-order mark, any line ends, blank lines ignored. Problems (no such file, no such
    column, a cell that is not a positive integer, with line and column) go to ``report``; nothing is returned then.
    """
    name = str(path)
    try:
        text = decode_utf8(read_file(path, "the CSV file", ScenarioError).removeprefix(b"\xef\xbb\xbf"))
    except ScenarioError as error:
        for problem in error.problems:
            report(problem)
        return ()
    except JsonError as error:
        report(Problem(error.code, name, f"the CSV file {error}", hint=error.hint))
        return ()
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    wrong_cells = Findings()
    lengths: list[int] = []
    try:
        header = [cell.strip() for cell in next((row for row in reader if row), [])]
        position = _column(header, columns, name, report)
        if position is None:
            return ()
        for row in reader:
            if not row:
                continue
            cell = row[position].strip() if position < len(row) else ""
            # int() also takes signs, underscores and other scripts' digits.
            length = int(cell) if cell.isascii() and cell.isdigit() and len(cell) <= 10 else 0
            if not 1 <= length <= LONGEST_LENGTH:
                wrong_cells.extend([_wrong_cell(name, reader.line_num, header[position], cell)])
            lengths.append(length)
    except csv.Error as error:
        report(Problem(Code.INVALID_CSV, f"{name} line {reader.line_num}", f"this is not CSV: {error}"))
        return ()
    for problem in wrong_cells.problems:
        report(problem)
    return () if wrong_cells else tuple(lengths)


def _column(header: list[str], columns: tuple[str, ...], name: str, report: Callable[[Problem], None]) -> int | None:
    wanted = " or ".join(map(quoted, columns))
    if not header:
        report(Problem(Code.EMPTY_FILE, name, "the CSV file is empty", f"a header line with the column {wanted}"))
        return None
    for column in columns:
        if header.count(column) > 1:
            report(Problem(Code.DUPLICATE_KEY, f"{name} line 1", f"the column {quoted(column)} appears more than once"))
            return None
        if column in header:
            return header.index(column)
    hint = None
    for cell in header:
        near = nearest(cell, columns)
        if near:
            hint = f"did you mean {quoted(near)} where it says {quoted(cell)}?"
            break
    found = ", ".join(map(quoted, header[:10]))
    report(Problem(Code.MISSING_COLUMN, f"{name} line 1", f"no column of lengths; found {found}", wanted, hint))
    return None


def _wrong_cell(name: str, line: int, column: str, cell: str) -> Problem:
    found = f"{quoted(cell)} is not a length" if cell else "the length is missing"
    allowed = f"a positive integer up to {LONGEST_LENGTH}"
    return Problem(Code.WRONG_LENGTH, f"{name} line {line}, column {column}", found, allowed)
