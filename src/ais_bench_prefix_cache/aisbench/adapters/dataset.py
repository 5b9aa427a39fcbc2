"""AISBench's data set over the formal requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ais_bench.benchmark.datasets.base import BaseDataset
from datasets import Dataset, Features, Value

from ais_bench_prefix_cache.aisbench.request_index import RequestIndex
from ais_bench_prefix_cache.aisbench.sending_settings import SendingSettings
from ais_bench_prefix_cache.datasets.format.rows import ANSWER

_COLUMNS = Features(
    {
        # More than 2 GiB of text overflow the offsets of Arrow's ordinary strings.
        "question": Value("large_string"),
        "max_out_len": Value("int64"),
        "answer": Value("string"),
    }
)


def formal_requests(path: str, max_tokens_key: str) -> RequestIndex:
    """Those that the launching program asked for; in an AISBench that was started by hand, all of the file."""
    settings = SendingSettings.from_environment()
    if settings is not None and settings.rows == path:
        return RequestIndex.load(Path(settings.index))
    return RequestIndex.of_file(Path(path), max_tokens_key)


class PrefixCacheDataset(BaseDataset):  # type: ignore[misc]
    """The formal requests in send order, as AISBench counts them.

    They are the rows of ``full.jsonl``, or those of an image data set with its ``max_tokens_key``. The prompts stay in
    the file, from which :class:`~.inferencer.PrefixCacheInferencer` reads each when it is sent: AISBench would keep,
    copy and write them (187 kB of memory for a prompt of 4,096 tokens). ``with_prompts`` is for AISBench's own
    inferencers.
    """

    def load(self, path: str, max_tokens_key: str = "max_tokens", with_prompts: bool = False, **_: Any) -> Dataset:
        requests = formal_requests(path, max_tokens_key)
        prompts = [""] * len(requests)
        if with_prompts:
            with Path(path).open("rb") as rows:
                for position, offset in enumerate(requests.column("offset")):
                    rows.seek(offset)
                    prompts[position] = json.loads(rows.readline())["question"]
        columns = {
            "question": prompts,
            "max_out_len": requests.column("max_tokens"),
            "answer": [ANSWER] * len(requests),
        }
        return Dataset.from_dict(columns, features=_COLUMNS)

    def repeated_dataset(self, abbr: str, n: int) -> None:
        """Every request is sent once, so nothing is repeated and nothing copied."""
        if n != 1:
            raise ValueError(f"a formal request is sent exactly once, but n={n} was asked for")
        self.dataset = self.reader.dataset
