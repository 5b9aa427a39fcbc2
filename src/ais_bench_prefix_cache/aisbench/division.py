"""Which requests each of several senders sends, so that theory stays exact.

Requests with one key never leave each other and keep their order: a lane in cold mode, whose requests find in the cache
what those before them left; conversations that rely on each other; a single request in warm-up mode, where nothing
depends on the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ais_bench_prefix_cache.aisbench.request_index import NO_PREDECESSOR, RequestIndex
from ais_bench_prefix_cache.foundation.names import NO_RANK

Split = Literal["lane", "rank"]


def divided(index: RequestIndex, count: int, split: Split = "lane", urls: int = 1) -> list[NDArray[np.int64]]:
    """The positions in ``index`` of at most ``count`` parts, each ascending, none empty.

    ``split`` by rank keeps whole data-parallel ranks together; where requests have none, those that go to one of
    ``urls`` entry points. There are never more parts than there are lanes, ranks or requests.
    """
    keys = _keys(index, split, urls)
    names, key_of, sizes = np.unique(keys, return_inverse=True, return_counts=True)
    count = min(count, len(names))
    # Single requests in turn: every part then has the planned mixture at any time.
    one_each = len(names) == len(keys)
    part_of_key = np.arange(len(names)) % count if one_each else _balanced(sizes, count)
    part = part_of_key[key_of]
    return [np.flatnonzero(part == number) for number in range(count)]


def shares(total: int, sizes: Sequence[int]) -> list[int]:
    """``total`` slots for parts of these sizes: at least one each, otherwise in proportion."""
    if total < len(sizes):
        raise ValueError(f"{total} slots for {len(sizes)} senders")
    exact = [total * size / sum(sizes) for size in sizes]
    found = [max(1, int(share)) for share in exact]
    while sum(found) > total:
        found[found.index(max(found))] -= 1
    while sum(found) < total:
        missing = [share - has for share, has in zip(exact, found, strict=True)]
        found[missing.index(max(missing))] += 1
    return found


def _keys(index: RequestIndex, split: Split, urls: int) -> NDArray[np.int64]:
    """One number for each request; equal ones stay together."""
    rows, ranks = index.column("row"), index.column("dp_rank")
    by_rank = split == "rank" and NO_RANK not in ranks
    # Each row points to one before it that it stays with; the first of all of them gives them their name.
    before = {row: row for row in rows}
    first_of_rank: dict[int, int] = {}

    def first(row: int) -> int:
        while before[row] != row:
            before[row] = row = before[before[row]]
        return row

    for row, rank, *others in zip(rows, ranks, index.column("predecessor"), index.column("continues"), strict=True):
        if by_rank:
            others.append(first_of_rank.setdefault(rank, row))
        for other in others:
            if other != NO_PREDECESSOR:
                one, two = sorted((first(row), first(other)))
                before[two] = one
    names: NDArray[np.int64] = np.fromiter(map(first, rows), dtype=np.int64, count=len(rows))
    return names % urls if split == "rank" and not by_rank and urls > 1 else names


def _balanced(sizes: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The part of each key: the largest first, each to the part that has the fewest requests so far."""
    parts = [(0, number) for number in range(count)]
    part_of_key = np.empty(len(sizes), dtype=np.int64)
    for key in np.argsort(-sizes, kind="stable").tolist():
        requests, number = heapq.heappop(parts)
        part_of_key[key] = number
        heapq.heappush(parts, (requests + int(sizes[key]), number))
    return part_of_key
