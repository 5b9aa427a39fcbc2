"""Records come back as they were written, and other programs read them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from tests.unit.reporting.test_report_page import records

from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.reporting.records_file import read_records, write_records


def test_json_lines_come_back_whole(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write_records(path, records(5))
    assert read_records(path) == records(5)


def test_csv_has_a_summary_of_the_times_between_tokens(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    write_records(path, records(3))
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["index"] for row in rows] == ["0", "1", "2"]
    assert (rows[1]["hit_tokens"], rows[1]["itl_mean_ms"], rows[1]["itl_max_ms"]) == ("64", "10.0", "11.0")
    assert "itl_ms" not in rows[0]


def test_parquet_is_read_by_its_own_library(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = tmp_path / "r.parquet"
    write_records(path, records(4))
    table = pq.read_table(path).to_pylist()
    assert [row["planned_hit_tokens"] for row in table] == [0, 64, 0, 64]
    assert table[0]["ttft_ms"] == 50.0


def test_other_endings_and_damaged_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError) as caught:
        write_records(tmp_path / "r.xlsx", [])
    assert caught.value.problems[0].code == "RECORDS_FORMAT"
    (tmp_path / "r.jsonl").write_text('{"index": 0}\n')
    with pytest.raises(ArtifactError) as caught:
        read_records(tmp_path / "r.jsonl")
    assert caught.value.problems[0].code == "RECORDS_DAMAGED"
    (tmp_path / "r.jsonl").write_text('{"index": 0}\n{"index": NaN}\n')
    with pytest.raises(ArtifactError) as caught:
        read_records(tmp_path / "r.jsonl")
    assert (caught.value.problems[0].code, caught.value.problems[0].where) == (
        "INVALID_JSON",
        f"{tmp_path / 'r.jsonl'} line 2",
    )
    with pytest.raises(ArtifactError) as caught:
        read_records(tmp_path / "none.jsonl")
    assert caught.value.problems[0].code == "MISSING_FILE"
