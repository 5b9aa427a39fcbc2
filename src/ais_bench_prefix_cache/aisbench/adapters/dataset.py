"""AISBench's data set over the formal requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ais_bench.benchmark.datasets.base import BaseDataset
from datasets import Dataset, Features, Value

from ais_bench_prefix_cache.foundation.names import NO_RANK

"""``dp_rank`` of a request that the server's balancer may put anywhere (Arrow wants one type a column)."""
NO_PREDECESSOR = -1

_COLUMNS = Features(
    {
        # More than 2 GiB of text overflow the offsets of Arrow's ordinary strings.
        "question": Value("large_string"),
        "max_out_len": Value("int64"),
        "answer": Value("string"),
        "dp_rank": Value("int64"),
        "lane_predecessor": Value("int64"),
        "line_offset": Value("int64"),
        "line_bytes": Value("int64"),
    }
)


class PrefixCacheDataset(BaseDataset):  # type: ignore[misc]
    """The formal requests in send order, with only the columns that sending needs.

    They are the rows of ``full.jsonl``, or those of an image data set with its ``max_tokens_key``.

    ``lane_predecessor`` is the row number of the request before it in its lane (cold mode), ``line_offset`` and
    ``line_bytes`` say where its line lies in the file.
    """

    def load(self, path: str, max_tokens_key: str = "max_tokens", **_: Any) -> Dataset:
        columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        last_of_lane: dict[tuple[str, int], int] = {}
        offset = 0
        with Path(path).open("rb") as lines:
            for number, line in enumerate(lines):
                row = json.loads(line)
                rank = row.get("dp_rank")
                predecessor = NO_PREDECESSOR
                if rank is not None:
                    lane = (row["group_id"], rank)
                    predecessor = last_of_lane.get(lane, NO_PREDECESSOR)
                    last_of_lane[lane] = number
                columns["question"].append(row["question"])
                columns["max_out_len"].append(row[max_tokens_key])
                columns["answer"].append(row["answer"])
                columns["dp_rank"].append(NO_RANK if rank is None else rank)
                columns["lane_predecessor"].append(predecessor)
                columns["line_offset"].append(offset)
                columns["line_bytes"].append(len(line))
                offset += len(line)
        return Dataset.from_dict(columns, features=_COLUMNS)

    def repeated_dataset(self, abbr: str, n: int) -> None:
        """Every request is sent once, so nothing is repeated and nothing copied."""
        if n != 1:
            raise ValueError(f"a formal request is sent exactly once, but n={n} was asked for")
        self.dataset = self.reader.dataset
