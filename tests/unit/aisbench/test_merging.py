"""Records of two load generators in one place: nothing lost, and moments of another machine on this one's clock."""

from __future__ import annotations

import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ais_bench_prefix_cache.aisbench.merging import Part, merge, read_parts, write_parts


def generator(directory: Path, database: str, rows: list[int], moments: list[float]) -> Path:
    """What a load generator leaves, as AISBench writes it."""
    (directory / "db_data").mkdir(parents=True)
    connection = sqlite3.connect(directory / "db_data" / database)
    connection.execute("CREATE TABLE numpy_store (id INTEGER PRIMARY KEY AUTOINCREMENT, arr_blob BLOB NOT NULL)")
    buffer = io.BytesIO()
    np.save(buffer, np.array(moments))
    connection.execute("INSERT INTO numpy_store (arr_blob) VALUES (?)", (buffer.getvalue(),))
    connection.commit()
    connection.close()
    (directory / "x_details.jsonl").write_text("".join(json.dumps({"id": row}) + "\n" for row in rows))
    usage = [
        {"sequence_index": row, "due": None, "sent": moments[0], "first_token": moments[1], "finished": moments[2]}
        for row in rows
    ]
    (directory / "x_usage.jsonl").write_text("".join(json.dumps(row) + "\n" for row in usage))
    return directory


def stored_moments(database: Path) -> Any:
    connection = sqlite3.connect(database)
    ((blob,),) = connection.execute("SELECT arr_blob FROM numpy_store").fetchall()
    connection.close()
    return np.load(io.BytesIO(blob)).tolist()


def lines(path: Path) -> Any:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_are_put_together_on_one_clock(tmp_path: Path) -> None:
    here = generator(tmp_path / "1", "aa.db", [0, 2], [10.0, 11.0, 12.5])
    there = generator(tmp_path / "2", "bb.db", [1], [500.0, 501.0, 502.0])
    write_parts([Part(str(here), 0.0), Part(str(there), -489.5)], tmp_path / "parts.json")
    target = tmp_path / "all"
    merge(read_parts(tmp_path / "parts.json"), target)
    assert [row["id"] for row in lines(target / "x_details.jsonl")] == [0, 2, 1]
    usage = lines(target / "x_usage.jsonl")
    assert [(row["sequence_index"], row["sent"], row["finished"]) for row in usage] == [
        (0, 10.0, 12.5),
        (2, 10.0, 12.5),
        (1, 10.5, 12.5),
    ]
    assert [row["due"] for row in usage] == [None] * 3
    assert stored_moments(target / "db_data" / "aa.db") == [10.0, 11.0, 12.5]
    assert stored_moments(target / "db_data" / "bb.db") == [10.5, 11.5, 12.5]


def test_two_databases_of_one_name_are_not_mixed(tmp_path: Path) -> None:
    parts = [Part(str(generator(tmp_path / name, "aa.db", [0], [1.0, 2.0, 3.0])), 0.0) for name in "12"]
    with pytest.raises(RuntimeError, match=r"two load generators have a database aa\.db"):
        merge(parts, tmp_path / "all")
