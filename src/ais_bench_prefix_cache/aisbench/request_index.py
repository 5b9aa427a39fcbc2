"""Which requests are sent, in what order, and where their rows lie: made in one reading of the data set's file.

A sender gets the index as a file and reads each row when it is sent, so that its memory does not grow with the prompts.
A part of an index (:meth:`RequestIndex.part`) is what one of several senders sends: a row keeps its number in the data
set.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.foundation.names import NO_RANK

NO_PREDECESSOR = -1

_COLUMNS = ("row", "offset", "size", "max_tokens", "dp_rank", "predecessor", "continues", "think_ms")
NOT_DUE = -1
"""``due_us`` of a request that is sent as soon as its lane and a slot are free."""
_RECORD = np.dtype([(name, "<i8") for name in (*_COLUMNS, "due_us")])


@dataclass(frozen=True)
class RequestIndex:
    """One record a request, in send order; every column is int64.

    ``row`` is its number in the data set, ``offset`` and ``size`` are where its line lies in the file, in bytes,
    ``predecessor`` is the row whose first token must come before, by the same sender: the one before in its lane (cold
    mode), or what a turn of a conversation relies on besides its history. ``continues`` is the turn whose whole answer
    it waits for and continues, ``think_ms`` the pause after that; both rows are :data:`NO_PREDECESSOR` where there is
    none.
    ``due_us`` are the microseconds after the first request at which it is due.
    """

    records: NDArray[np.void]

    def __len__(self) -> int:
        return len(self.records)

    def column(self, name: str) -> list[int]:
        """One of the columns as plain integers."""
        values: list[int] = self.records[name].tolist()
        return values

    def part(self, positions: Sequence[int] | NDArray[np.int64]) -> RequestIndex:
        """The requests at these positions, in this order."""
        return RequestIndex(self.records[np.asarray(positions, dtype=np.int64)])

    @property
    def arriving(self) -> NDArray[np.bool_]:
        """Which requests arrive by themselves: all but those that continue a conversation."""
        return np.asarray(self.records["continues"] == NO_PREDECESSOR)

    def due_at(self, seconds: NDArray[np.float64]) -> RequestIndex:
        """The same requests, each that is :attr:`arriving` due at so many seconds after the first."""
        records = self.records.copy()
        records["due_us"][self.arriving] = np.rint(1e6 * seconds)
        return RequestIndex(records)

    def save(self, path: Path) -> None:
        """Write it where a sender loads it."""
        np.save(path, self.records, allow_pickle=False)

    @classmethod
    def load(cls, path: Path) -> RequestIndex:
        return cls(np.load(path, allow_pickle=False))

    @classmethod
    def of_file(cls, path: Path, max_tokens_key: str) -> RequestIndex:
        """The index of a file whose rows nobody else wants to see."""
        reading = IndexReading(path, max_tokens_key)
        for _ in reading:
            pass
        return reading.index()


class IndexReading:
    """Iterates over the rows of a verified data set and notes on the way what :meth:`index` needs.

    ``max_tokens_key`` is where a row says how many tokens its answer has. Raises ArtifactError for a line that is not
    JSON.
    """

    def __init__(self, path: Path, max_tokens_key: str) -> None:
        self._path = path
        self._max_tokens_key = max_tokens_key
        self._columns = {name: array("q") for name in _COLUMNS}
        self._last_of_lane: dict[tuple[str, int], int] = {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        offset = 0
        with self._path.open("rb") as lines:
            for number, line in enumerate(lines):
                try:
                    row: dict[str, Any] = json.loads(line)
                except ValueError as error:
                    raise ArtifactError.of(
                        Code.INVALID_JSON, f"{self._path} line {number + 1}", f"it is not JSON: {error}"
                    ) from None
                self._note(number, offset, len(line), row)
                yield row
                offset += len(line)

    def _note(self, number: int, offset: int, size: int, row: dict[str, Any]) -> None:
        rank = row.get("dp_rank")
        max_tokens = row[self._max_tokens_key]
        continues = row.get("continues")
        values = (
            *(number, offset, size, max_tokens, NO_RANK if rank is None else rank, self._predecessor(number, row)),
            *(NO_PREDECESSOR if continues is None else continues, row.get("think_ms", 0)),
        )
        for name, value in zip(_COLUMNS, values, strict=True):
            self._columns[name].append(value)

    def _predecessor(self, number: int, row: dict[str, Any]) -> int:
        """The row whose first token is waited for."""
        if "waits_for" in row:
            return NO_PREDECESSOR if row["waits_for"] is None else int(row["waits_for"])
        if row.get("dp_rank") is None:
            return NO_PREDECESSOR
        lane = (row["group_id"], row["dp_rank"])
        predecessor = self._last_of_lane.get(lane, NO_PREDECESSOR)
        self._last_of_lane[lane] = number
        return predecessor

    def index(self) -> RequestIndex:
        """The index of all rows that were read."""
        records = np.empty(len(self._columns["row"]), dtype=_RECORD)
        records["due_us"] = NOT_DUE
        for name, values in self._columns.items():
            records[name] = values
        return RequestIndex(records)
