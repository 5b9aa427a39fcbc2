"""Lanes and rows stay whole, parts are balanced, and nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from ais_bench_prefix_cache.aisbench.division import divided, shares
from ais_bench_prefix_cache.aisbench.request_index import RequestIndex
from ais_bench_prefix_cache.foundation.names import NO_RANK

FIELDS = ("row", "offset", "size", "max_tokens", "dp_rank", "predecessor", "continues", "due_us")


def index_of(lanes: Sequence[tuple[object, int | None] | None]) -> RequestIndex:
    """An index of requests with these (group, rank), in this order; None is a request of warm-up mode.

    A lane without a rank is a conversation.
    """
    last: dict[object, int] = {}
    records = np.zeros(len(lanes), dtype=[(name, "<i8") for name in FIELDS])
    for row, lane in enumerate(lanes):
        records[row]["row"] = row
        records[row]["dp_rank"] = NO_RANK if lane is None or lane[1] is None else lane[1]
        records[row]["predecessor"] = -1 if lane is None else last.get(lane, -1)
        records[row]["continues"] = -1
        last[lane] = row
    return RequestIndex(records)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 50])
@pytest.mark.parametrize("split", ["lane", "rank"])
def test_lanes_and_ranks_stay_whole(count: int, split: Any) -> None:
    random = np.random.default_rng(count)
    lanes = [("abcde"[random.integers(5)], int(random.integers(4))) for _ in range(400)]
    parts = divided(index_of(lanes), count, split)
    assert sorted(np.concatenate(parts).tolist()) == list(range(400))
    assert all(part.tolist() == sorted(part.tolist()) for part in parts)
    whole = (lambda lane: lane) if split == "lane" else (lambda lane: lane[1])
    names = [{whole(lanes[position]) for position in part} for part in parts]
    assert sum(map(len, names)) == len({whole(lane) for lane in lanes}), "a lane is in two parts"
    assert len(parts) == min(count, 20 if split == "lane" else 4)
    largest = max(len(list(group)) for _, group in groupby(sorted(map(whole, lanes))))
    assert max(map(len, parts)) <= 400 / len(parts) + largest


def test_requests_without_lanes_are_dealt_out_in_turn() -> None:
    parts = divided(index_of([None] * 7), 3)
    assert [part.tolist() for part in parts] == [[0, 3, 6], [1, 4], [2, 5]]
    assert len(divided(index_of([None] * 2), 9)) == 2


def test_requests_without_lanes_are_kept_by_their_entry_point_where_ranks_are_asked_for() -> None:
    parts = divided(index_of([None] * 6), 4, "rank", urls=2)
    assert [part.tolist() for part in parts] == [[0, 2, 4], [1, 3, 5]]


def test_a_conversation_stays_whole() -> None:
    parts = divided(index_of([("a", None), ("b", None), ("a", None), ("b", None), ("c", None)]), 2)
    assert [part.tolist() for part in parts] == [[0, 2, 4], [1, 3]]


@pytest.mark.parametrize(("split", "parts"), [("lane", [[0, 1, 3, 4], [2, 5]]), ("rank", [[0, 1, 2, 3, 4, 5]])])
def test_conversations_that_rely_on_each_other_stay_together(split: Any, parts: list[list[int]]) -> None:
    """Turns that visit both ranks: 1 continues 0, 3 waits for 0, 4 continues 3; 5 continues 2."""
    index = index_of([None] * 6)
    index.records["dp_rank"] = [0, 1, 0, 0, 1, 1]
    index.records["continues"] = [-1, 0, -1, -1, 3, 2]
    index.records["predecessor"] = [-1, -1, -1, 0, -1, -1]
    assert [part.tolist() for part in divided(index, 2, split)] == parts


@pytest.mark.parametrize(
    ("total", "sizes", "expected"),
    [(16, [76, 112, 112], [4, 6, 6]), (4, [1, 1, 1], [2, 1, 1]), (3, [1, 1, 98], [1, 1, 1]), (10, [1, 9], [1, 9])],
)
def test_slots_are_shared_in_proportion_and_all_of_them(total: int, sizes: list[int], expected: list[int]) -> None:
    assert shares(total, sizes) == expected


def test_there_are_no_senders_without_a_slot() -> None:
    with pytest.raises(ValueError, match="2 slots for 3 senders"):
        shares(2, [5, 5, 5])
