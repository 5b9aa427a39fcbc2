"""The index finds each row again, knows lanes, and can be divided."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ais_bench_prefix_cache.aisbench.arrivals import arrival_seconds
from ais_bench_prefix_cache.aisbench.request_index import NO_PREDECESSOR, NOT_DUE, IndexReading, RequestIndex
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.foundation.names import NO_RANK

LANES = [("a", 0), ("b", 0), ("a", 1), ("a", 0), ("b", None), ("b", 0), ("a", 0)]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "x.full.jsonl"
    lines = [
        {"group_id": group, "dp_rank": rank, "max_tokens": 10 + number, "question": f"ü {number} \u2028"}
        for number, (group, rank) in enumerate(LANES)
    ]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return path


def test_every_row_is_found_by_its_offset(rows: Path) -> None:
    index = RequestIndex.of_file(rows, "max_tokens")
    data = rows.read_bytes()
    for number, record in enumerate(index.records):
        line = data[record["offset"] : record["offset"] + record["size"]]
        assert json.loads(line)["question"] == f"ü {number} \u2028"
    assert index.column("max_tokens") == list(range(10, 17))
    assert index.column("dp_rank") == [0, 0, 1, 0, -1, 0, 0]
    assert index.column("predecessor") == [NO_PREDECESSOR] * 3 + [0, NO_PREDECESSOR, 1, 3]
    assert set(index.column("due_us")) == {NOT_DUE}


def test_a_part_keeps_the_rows_numbers_through_a_file(rows: Path, tmp_path: Path) -> None:
    index = RequestIndex.of_file(rows, "max_tokens")
    index.part([0, 3, 6]).save(tmp_path / "index.npy")
    part = RequestIndex.load(tmp_path / "index.npy")
    assert len(part) == 3
    assert (part.column("row"), part.column("predecessor")) == ([0, 3, 6], [NO_PREDECESSOR, 0, 3])


def test_the_rows_are_seen_while_the_index_is_made(rows: Path) -> None:
    reading = IndexReading(rows, "max_tokens")
    assert [row["group_id"] for row in reading] == [group for group, _ in LANES]
    assert len(reading.index()) == len(LANES)


def test_a_line_that_is_no_json_is_named(rows: Path) -> None:
    rows.write_bytes(rows.read_bytes() + b"{\n")
    with pytest.raises(ArtifactError, match="line 8: it is not JSON"):
        RequestIndex.of_file(rows, "max_tokens")


def test_even_arrivals_have_one_gap_and_random_ones_its_mean(rows: Path) -> None:
    assert arrival_seconds(4, 2.0, "even", 1).tolist() == [0.0, 0.5, 1.0, 1.5]
    seconds = arrival_seconds(20_000, 50.0, "poisson", 1)
    gaps = np.diff(seconds)
    assert seconds[0] == 0.0
    assert gaps.min() > 0
    # Mean and standard deviation of an exponential distribution are equal; both within five standard errors.
    assert gaps.mean() == pytest.approx(0.02, rel=5 / 20_000**0.5)
    assert gaps.std() == pytest.approx(0.02, rel=10 / 20_000**0.5)
    assert arrival_seconds(5, 1.0, "poisson", 1).tolist() != arrival_seconds(5, 1.0, "poisson", 2).tolist()
    index = RequestIndex.of_file(rows, "max_tokens").due_at(arrival_seconds(7, 1000.0, "even", 1))
    assert index.column("due_us") == [0, 1000, 2000, 3000, 4000, 5000, 6000]


def test_turns_wait_for_the_end_of_what_they_continue_and_for_a_first_token_that_their_rows_name(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.full.jsonl"
    turns = [(None, None, 0), (0, None, 40), (0, 1, 40), (None, 0, 0), (3, None, 30)]
    lines = [
        {
            "group_id": "a",
            "dp_rank": rank,
            "continues": continues,
            "waits_for": waits_for,
            "shared_prefix_tokens": 0,
            "max_tokens": 4,
            "think_ms": pause,
        }
        for rank, (continues, waits_for, pause) in zip((0, 1, 0, None, 0), turns, strict=True)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    index = RequestIndex.of_file(path, "max_tokens")
    assert index.column("predecessor") == [NO_PREDECESSOR, NO_PREDECESSOR, 1, 0, NO_PREDECESSOR]
    assert index.column("continues") == [NO_PREDECESSOR, 0, 0, NO_PREDECESSOR, 3]
    assert index.column("think_ms") == [0, 40, 40, 0, 30]
    assert index.column("dp_rank") == [0, 1, 0, NO_RANK, 0]
    due = index.due_at(np.array([0.0, 1.0])).column("due_us")
    assert due == [0, NOT_DUE, NOT_DUE, 1_000_000, NOT_DUE]
