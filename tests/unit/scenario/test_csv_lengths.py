"""Lengths from CSV files: what is accepted, and errors that name file, line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from ais_bench_prefix_cache.foundation.errors import Problem
from ais_bench_prefix_cache.scenario.csv_lengths import INPUT_COLUMNS, OUTPUT_COLUMNS, read_csv_lengths


def read(path: Path, columns: tuple[str, ...] = INPUT_COLUMNS) -> tuple[tuple[int, ...], list[str]]:
    problems: list[Problem] = []
    lengths = read_csv_lengths(path, columns, problems.append)
    return lengths, [str(problem).replace(str(path), "l.csv") for problem in problems]


@pytest.mark.parametrize(
    "data",
    [
        b"input_tokens\n5\n7\n",
        b"input_tokens\r\n5\r\n7",
        b"\xef\xbb\xbfinput_tokens\n5\n7\n",
        b"\n\ncontent_tokens,output_tokens\n5,1\n\n7,x\n\n",
        b'name, input_prompt_tokens \n"a, b", 5\nc,"7"\n',
        b"input_tokens,input_prompt_tokens,content_tokens\n1,5,2\n1,7,2\n",
    ],
)
def test_accepted_files(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "l.csv"
    path.write_bytes(data)
    assert read(path) == ((5, 7), [])


ALLOWED = "(allowed: a positive integer up to 2147483647)"
WANTED = '(allowed: "input_prompt_tokens" or "content_tokens" or "input_tokens")'


@pytest.mark.parametrize(
    ("data", "problems"),
    [
        (b"", [f"l.csv: the CSV file is empty (allowed: a header line with the column {WANTED[10:]}"]),
        (
            b"input_token\n5\n",
            [
                f'l.csv line 1: no column of lengths; found "input_token" {WANTED}\n'
                '    did you mean "input_tokens" where it says "input_token"?'
            ],
        ),
        (b"5\n7\n", [f'l.csv line 1: no column of lengths; found "5" {WANTED}']),
        (
            b"input_tokens,input_tokens\n5,5\n",
            ['l.csv line 1: the column "input_tokens" appears more than once'],
        ),
        (
            b"a,input_tokens\n1,0\n1,-3\n1,1.0\n1,1e3\n1,\n1\n1,x\n1,9\n1,2147483648\n1,+5\n1,1_0\n1,\xd9\xa1\n",
            [
                f'l.csv line 2, column input_tokens: "0" is not a length {ALLOWED}',
                f'l.csv line 3, column input_tokens: "-3" is not a length {ALLOWED}',
                f'l.csv line 4, column input_tokens: "1.0" is not a length {ALLOWED}',
                f'l.csv line 5, column input_tokens: "1e3" is not a length {ALLOWED}',
                f"l.csv line 6, column input_tokens: the length is missing {ALLOWED}",
                f"l.csv line 7, column input_tokens: the length is missing {ALLOWED}",
                f'l.csv line 8, column input_tokens: "x" is not a length {ALLOWED}',
                f'l.csv line 10, column input_tokens: "2147483648" is not a length {ALLOWED}',
                f'l.csv line 11, column input_tokens: "+5" is not a length {ALLOWED}',
                f'l.csv line 12, column input_tokens: "1_0" is not a length {ALLOWED}',
                f'l.csv line 13, column input_tokens: "\u0661" is not a length {ALLOWED}',
            ],
        ),
        (
            b"input_tokens\n5\n\xff\n",
            ["l.csv: the CSV file is not UTF-8: byte 0xff at position 15 (line 3)\n    save it as UTF-8"],
        ),
        ("input_tokens".encode("utf-16"), ["l.csv: the CSV file is UTF-16\n    save it as UTF-8"]),
    ],
)
def test_refused_files(tmp_path: Path, data: bytes, problems: list[str]) -> None:
    path = tmp_path / "l.csv"
    path.write_bytes(data)
    assert read(path) == ((), problems)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    assert read(tmp_path / "l.csv") == ((), ["l.csv: the CSV file does not exist"])
    assert read(tmp_path)[1] == ["l.csv: the CSV file is a directory\n    name the file in it"]


def test_many_wrong_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "l.csv"
    path.write_text("output_tokens\n" + "x\n" * 50)
    lengths, problems = read(path, OUTPUT_COLUMNS)
    assert lengths == ()
    assert len(problems) == 21
    assert problems[-1] == "30 more problems of the kind WRONG_LENGTH"


def test_unclosed_quotes_are_not_csv(tmp_path: Path) -> None:
    path = tmp_path / "l.csv"
    path.write_text('input_tokens\n"5\n')
    lengths, problems = read(path)
    assert lengths == ()
    assert problems[0].startswith("l.csv line 2: this is not CSV: ")
