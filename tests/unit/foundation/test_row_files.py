"""One reader for rows: the same rows in every form, what other files are called, and what is refused as too much."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ais_bench_prefix_cache.foundation import row_files
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.foundation.row_files import BadRow, RowFile

ROWS = [{"text": 'Wie "viel"? 多少', "n": 1}, {"text": "a\nb,c", "n": 2}, {"text": "x", "n": 30}]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()
CSV = 'text,n\n"Wie ""viel""? 多少",1\n"a\nb,c",2\nx,30\n'


def parquet(rows: list[dict[str, Any]], **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, **options)
    return sink.getvalue()


def read(content: bytes, name: str = "rows.jsonl", path: Path = Path("/d")) -> list[tuple[int, Mapping[str, Any]]]:
    return list(RowFile(io.BytesIO(content), path / name, ArtifactError, ("n",)).read(lambda row: row))


def refusal(content: bytes, name: str = "rows.jsonl") -> str:
    with pytest.raises(ArtifactError) as caught:
        read(content, name)
    (problem,) = caught.value.problems
    return f"[{problem.code}] {problem}"


FORMS = {
    "json lines": (LINES, "a.jsonl"),
    "json lines with blank lines, CRLF and a byte-order mark": (
        b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\r\n\r\n"),
        "a.txt",
    ),
    "json lines in gzip": (gzip.compress(LINES), "a.jsonl.gz"),
    "json lines in gzip under any name": (gzip.compress(LINES), "a.jsonl"),
    "two members of gzip": (gzip.compress(LINES[:40]) + gzip.compress(LINES[40:]), "a.gz"),
    "an array": (json.dumps(ROWS).encode(), "a.json"),
    "a printed array": (b"\xef\xbb\xbf\n" + json.dumps(ROWS, indent=2).encode(), "a.json"),
    "an array in gzip": (gzip.compress(json.dumps(ROWS).encode()), "a.json.gz"),
    "CSV": (CSV.encode(), "a.csv"),
    "CSV with a byte-order mark, CRLF and semicolons": (
        b"\xef\xbb\xbf" + CSV.replace("text,n", "text;n").replace('多少",', '多少";').replace('b,c",', 'b,c";')
        .replace("x,", "x;").encode(),
        "a.CSV",
    ),
    "tabulators": ('text\tn\n"Wie ""viel""? 多少"\t1\n"a\nb,c"\t2\nx\t30\n'.encode(), "a.tsv"),
    "CSV in gzip": (gzip.compress(CSV.encode()), "a.csv.gz"),
    "Parquet": (parquet(ROWS), "a.parquet"),
    "Parquet of several groups under any name": (parquet(ROWS, row_group_size=1, compression="zstd"), "train"),
    "Parquet in gzip": (gzip.compress(parquet(ROWS)), "a.parquet.gz"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "name"), FORMS.values(), ids=FORMS)
def test_the_same_rows_in_every_form(content: bytes, name: str) -> None:
    assert [row for _, row in read(content, name)] == ROWS


def test_rows_are_numbered_by_lines_where_there_are_any() -> None:
    assert [number for number, _ in read(b'\n{"a": 1}\n\n{"a": 2}')] == [2, 4]
    assert [number for number, _ in read(CSV.encode(), "a.csv")] == [2, 4, 5]
    assert [number for number, _ in read(b'[\n\n{"a": 1},\n{"a": 2}]')] == [1, 2]
    file = RowFile(io.BytesIO(b'[{"a": 1}]'), Path("b.json"), ArtifactError)
    assert [file.place(number) for number, _ in file.read(lambda row: row)] == ["b.json row 1"]


def test_a_file_opened_on_disk_and_a_pipe_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(LINES))
    with path.open("rb") as stream:
        assert [row for _, row in RowFile(stream, path, ArtifactError).read(lambda row: row)] == ROWS


FORMS_SAID = "(allowed: JSON Lines, a JSON array of objects, CSV or Parquet, each also in gzip)"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
OTHERS = {
    "a Git LFS pointer": (
        LFS,
        f"[FOREIGN_FILE] /d/rows.jsonl: the file is a Git LFS pointer, the few lines that stand for a large file "
        f"{FORMS_SAID}\n    Fetch the file itself, for example with `git lfs pull`.",
    ),
    "a page": (
        b"\n<!DOCTYPE html>\n<html><body>Sign in</body></html>",
        f"[FOREIGN_FILE] /d/rows.jsonl: the file is an HTML page, not the file that it shows {FORMS_SAID}\n"
        "    Download the file itself: the link to its raw content.",
    ),
    "an archive": (
        b"PK\x03\x04abc",
        f"[FOREIGN_FILE] /d/rows.jsonl: the file is a ZIP archive {FORMS_SAID}\n"
        "    Unpack it; of packed files only gzip is read.",
    ),
    "UTF-16": (
        "{}".encode("utf-16"),
        f"[FOREIGN_FILE] /d/rows.jsonl: the file is UTF-16 {FORMS_SAID}\n    Save it as UTF-8.",
    ),
    "one object": (
        b'{\n  "data": []\n}',
        f"[INVALID_JSON] /d/rows.jsonl: the file is one JSON object over several lines {FORMS_SAID}\n"
        "    Save its rows as an array, or one a line.",
    ),
    "plain text": (
        b"It was a dark\nand stormy night.\n",
        f"[INVALID_JSON] /d/rows.jsonl: none of its 2 lines is a JSON object: the file is plain text, or CSV without "
        f"that ending {FORMS_SAID}\n    line 1: the line is not JSON: Expecting value (line 1, column 1)",
    ),
    "half an array": (
        b'[{"a": 1}, {"a"',
        f"[INVALID_JSON] /d/rows.jsonl: the file is not JSON: Expecting ':' delimiter (line 1, column 16) {FORMS_SAID}",
    ),
}


@pytest.mark.parametrize(("content", "said"), OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("packed", [False, True])
def test_other_files_are_named_as_what_they_are(content: bytes, said: str, packed: bool) -> None:
    assert refusal(gzip.compress(content) if packed else content) == said


ONE = "(allowed: one JSON object)"
STRICT = {
    b'{"a": 1, "a": 2}': "[DUPLICATE_KEY] rows.jsonl line 1: the line is not strict JSON: the key 'a' appears "
    f"more than once {ONE}",
    b'{"a": NaN}': f"[NOT_A_NUMBER] rows.jsonl line 1: the line is not strict JSON: NaN is not a JSON number {ONE}",
    b"\n" + b"[" * 9: "[INVALID_JSON] /d/rows.jsonl: the file is not JSON: Expecting value (line 2, column 10) "
    + FORMS_SAID,
}  # fmt: skip


@pytest.mark.parametrize(("content", "said"), STRICT.items())
def test_json_is_strict(content: bytes, said: str) -> None:
    assert refusal(content) == said


def test_bad_rows_of_every_form_are_one_error_with_a_count() -> None:
    def positive(row: Mapping[str, Any]) -> int:
        if not isinstance(row["n"], int):
            raise BadRow(Code.WRONG_TYPE, f"n says {row['n']!r}", "an integer")
        return row["n"]

    good: list[int] = []
    for content, name, unit in (
        (b'{"n": 5}\n' + b'{"n": "x"}\n' * 8 + b'{"n": 6}\n', "a.jsonl", "line"),
        (b"n\n5\n" + b"x\n" * 8 + b"6\n", "a.csv", "line"),
        (json.dumps([{"n": 5}, *[{"n": "x"}] * 8, {"n": 6}]).encode(), "a.json", "row"),
    ):
        first = 3 if name == "a.csv" else 2
        with pytest.raises(ArtifactError) as caught:
            for _, value in RowFile(io.BytesIO(content), Path(name), ArtifactError, ("n",)).read(positive):
                good.append(value)
        places = ", ".join(str(first + more) for more in range(1, 6))
        assert str(caught.value) == (
            f"{name}: 8 of 10 rows cannot be used\n    {unit} {first}: n says 'x' (allowed: an integer)\n"
            f"    and 7 more of this kind: {unit}s {places}, …"
        )
    assert good == [5, 5, 5]


CSVS = {
    b"a,b\n1\n": "[INVALID_CSV] a.csv line 2: the row has 1 cells, the header 2",
    b"a,a\n1,2\n": "[DUPLICATE_KEY] /d/a.csv: the column 'a' appears more than once in the header",
    b'a\n"x\n': "[INVALID_CSV] /d/a.csv: line 2: this is not CSV: unexpected end of data",
    b"a\n" + b"x" * 200_000: "[INVALID_CSV] /d/a.csv: line 2: this is not CSV: field larger than field limit (131072)\n"
    "    Longer texts fit into JSON Lines.",
    b"a\n\xff\n": "[WRONG_ENCODING] /d/a.csv: line 2 is not UTF-8: byte 0xff at position 0 (line 1)\n"
    "    save it as UTF-8",
}  # fmt: skip


@pytest.mark.parametrize(("content", "said"), CSVS.items())
def test_csv_that_cannot_be_used(content: bytes, said: str) -> None:
    assert refusal(content, "a.csv") == said


@pytest.mark.parametrize("byte", [b"a", b"\n", b"[", b" "])
@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv.gz"])
def test_a_bomb_of_gzip_ends_in_a_named_error(byte: bytes, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "LONGEST_ROW_BYTES", 1 << 20)
    bomb = gzip.compress(b"[" + byte * (32 << 20))
    assert refusal(bomb, name).startswith(f"[FILE_TOO_LARGE] /d/{name}: ")


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "LONGEST_ROW_BYTES", 1 << 20)
    assert refusal(b'{"a": 1}\n' + b"x" * (1 << 21)) == (
        f"[FILE_TOO_LARGE] /d/rows.jsonl: line 2 is longer than 1 MiB {FORMS_SAID}"
    )


@pytest.mark.parametrize("end", [4, 60, -1])
def test_gzip_that_is_cut_off_or_damaged_is_named(end: int) -> None:
    packed = gzip.compress(LINES * 9)
    assert refusal(packed[:end]).startswith("[UNREADABLE_FILE] /d/rows.jsonl: the gzip file is damaged or cut off: ")
    broken = packed[:30] + bytes(len(packed) - 38) + packed[-8:]
    assert refusal(broken).startswith("[UNREADABLE_FILE] /d/rows.jsonl: the gzip file is damaged or cut off: ")


def test_parquet_that_is_damaged_is_named() -> None:
    whole = parquet(ROWS * 200, compression="snappy")
    damaged = [whole[:-9], whole[: len(whole) // 2], b"PAR1" * 9, whole[:40] + b"\xff" * 400 + whole[440:]]
    for content in damaged:
        assert refusal(content, "a.parquet").startswith(
            "[UNREADABLE_FILE] /d/a.parquet: the Parquet file is damaged: "
        ), content[:50]


@pytest.mark.parametrize(
    ("start", "what"),
    [
        (b"\x89PNG\r\n\x1a\n\x00\x00", "a PNG image"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", "a JPEG image"),
        (b"%PDF-1.7\n%\xe2\xe3", "a PDF document"),
        (b"SQLite format 3\x00\x10\x00", "an SQLite database"),
        (b"ARROW1\x00\x00", "an Arrow file"),
    ],
)
def test_a_file_of_another_kind_is_named(start: bytes, what: str) -> None:
    assert refusal(start).startswith(f"[FOREIGN_FILE] /d/rows.jsonl: the file is {what} ")


def test_a_bomb_of_parquet_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "MOST_UNPACKED_BYTES", 1 << 20)
    content = parquet([{"text": "word " * 1000}] * 2000, compression="zstd")
    assert len(content) < 1 << 16
    assert refusal(content, "a.parquet") == "[FILE_TOO_LARGE] /d/a.parquet: its rows take more than 1 MiB"
