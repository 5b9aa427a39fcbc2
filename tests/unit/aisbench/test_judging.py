"""AISBench's files, good and bad, written by hand in the form that AISBench 3.1 gives them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ais_bench_prefix_cache.aisbench.judging import ResultFiles, judge

Rows = list[dict[str, Any]]

MAX_TOKENS = [4, 8, 4]


@pytest.fixture
def files(tmp_path: Path) -> ResultFiles:
    """A complete, successful run of three requests."""
    files = ResultFiles(tmp_path, "data")
    rows = [{"id": i, "success": True, "output_tokens": n, "input": "{\u2028"} for i, n in enumerate(MAX_TOKENS)]
    _write_rows(files.details, [rows[2], rows[0], rows[1]])
    files.csv.write_text("Performance Parameters,Stage\n")
    files.json.write_text(json.dumps({"Total Requests": {"total": 3}, "Failed Requests": {"total": 0}}))
    return files


def _write_rows(path: Path, rows: Rows) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def _rows(files: ResultFiles) -> Rows:
    return [json.loads(line) for line in files.details.open(encoding="utf-8")]


def _judge(files: ResultFiles, *, exit_code: int = 0, ignore_eos: bool = True) -> list[tuple[str, str]]:
    problems = judge(files, exit_code=exit_code, expected_max_tokens=MAX_TOKENS, ignore_eos=ignore_eos)
    return [(problem.code, problem.message) for problem in problems]


def test_a_complete_run_has_no_problem(files: ResultFiles) -> None:
    assert _judge(files) == []


def test_exit_codes_and_signals(files: ResultFiles) -> None:
    assert _judge(files, exit_code=1) == [("AISBENCH_FAILED", "AISBench ended with exit code 1")]
    assert _judge(files, exit_code=-9) == [("AISBENCH_FAILED", "AISBench was ended by signal 9")]


def test_failed_requests_are_counted_by_reason(files: ResultFiles) -> None:
    _write_rows(files.failed, [{"error_info": "HTTP 500"}, {"error_info": "HTTP 500"}, {}])
    assert _judge(files) == [("AISBENCH_REQUESTS_FAILED", "3 of 3 requests failed: 2 x HTTP 500; 1 x unknown reason")]


def test_rows_that_say_they_failed_are_found_without_a_failed_file(files: ResultFiles) -> None:
    rows = _rows(files)
    rows[0]["success"] = False
    _write_rows(files.details, rows)
    assert _judge(files) == [("AISBENCH_REQUESTS_FAILED", "1 of 3 requests failed")]


def test_missing_doubled_and_foreign_rows(files: ResultFiles) -> None:
    rows = _rows(files)
    _write_rows(files.details, [rows[0], rows[0], {"id": 7, "success": True, "output_tokens": 4}])
    assert _judge(files) == [
        ("AISBENCH_INCOMPLETE", "2 of 3 requests are missing, the first is number 0"),
        ("AISBENCH_INCOMPLETE", "1 requests stand there more than once"),
        ("AISBENCH_INCOMPLETE", "rows that were not planned, such as id 7"),
    ]


@pytest.mark.parametrize("name", ["csv", "json"])
def test_a_missing_summary(files: ResultFiles, name: str) -> None:
    getattr(files, name).unlink()
    assert _judge(files) == [("AISBENCH_INCOMPLETE", "AISBench wrote no summary of the run")]


def test_a_summary_over_a_part_of_the_run(files: ResultFiles) -> None:
    files.json.write_text(json.dumps({"Total Requests": {"total": 2}, "Failed Requests": {"total": 0}}))
    assert _judge(files) == [("AISBENCH_INCOMPLETE", "sums up 2 requests instead of 3")]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"Total Requests": 3}'])
def test_a_damaged_summary(files: ResultFiles, text: str) -> None:
    files.json.write_text(text)
    assert _judge(files) == [("AISBENCH_INCOMPLETE", "AISBench's summary cannot be read")]


@pytest.mark.parametrize("text", ['{"id": 0', "[]\n"])
def test_damaged_details(files: ResultFiles, text: str) -> None:
    files.details.write_text(text)
    assert _judge(files) == [("AISBENCH_INCOMPLETE", "AISBench left no readable record of its requests")]


def test_scratch_files_tell_of_a_dead_worker(files: ResultFiles) -> None:
    files.leftovers.mkdir()
    assert _judge(files) == [("AISBENCH_INCOMPLETE", "a worker of AISBench died and left its scratch files")]


def test_a_short_answer_is_an_error_only_with_ignore_eos(files: ResultFiles) -> None:
    rows = _rows(files)
    rows[-1]["output_tokens"] = 5
    _write_rows(files.details, rows)
    assert _judge(files, ignore_eos=False) == []
    assert _judge(files) == [
        (
            "AISBENCH_OUTPUT_LENGTH",
            "1 of 3 answers do not have their planned length although ignore_eos is set: request 1 has 5 tokens "
            "instead of 8",
        )
    ]
