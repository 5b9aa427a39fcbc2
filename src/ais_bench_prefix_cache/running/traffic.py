"""What a run sends, and what is known of it before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.aisbench.config_rendering import TEMPLATES
from ais_bench_prefix_cache.aisbench.request_index import IndexReading, RequestIndex
from ais_bench_prefix_cache.analysis.history_law import law_of_answers
from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
from ais_bench_prefix_cache.analysis.run_facts import HistoryFact
from ais_bench_prefix_cache.analysis.seen_request import SeenRequest
from ais_bench_prefix_cache.datasets.format.engine import VerifiedDataSet
from ais_bench_prefix_cache.service.preflight import SamplePrompt, Workload
from ais_bench_prefix_cache.service.warming import WarmupEntry


@dataclass(frozen=True)
class FormalTraffic:
    """The formal requests of a verified data set.

    ``columns`` is None where nobody knows the hits before: image tokens are the server's. ``warmup`` is what must be in
    the caches, ``images_per_request`` how many images each message has, ``template`` AISBench's configuration.
    ``chat_histories``: conversations whose histories are messages; ``history`` is then what they lost.
    """

    rows_path: Path
    index: RequestIndex
    template: Path
    workload: Workload
    columns: RequestColumns | None = None
    warmup: tuple[WarmupEntry, ...] = ()
    images_per_request: int = 0
    chat_histories: bool = False
    scripted: bool = False
    history: HistoryFact | None = None

    def as_answered(self, seen: Sequence[SeenRequest]) -> FormalTraffic:
        """With the tokens and hits of the law on what the server told, where histories were sent as messages."""
        if not self.chat_histories or self.columns is None:
            return self
        block_size = self.workload.block_size
        columns, history = law_of_answers(self.columns, seen, block_size=block_size, scripted=self.scripted)
        return replace(self, columns=columns, history=history)


def formal_traffic(data: VerifiedDataSet) -> FormalTraffic:
    """The traffic of a data set of any kind that can be run, in one reading of its rows."""
    return _text_traffic(data) if data.kind.hits_are_known else _image_traffic(data)


def _text_traffic(data: VerifiedDataSet) -> FormalTraffic:
    reading = IndexReading(data.first_file, data.kind.answer_length_key)
    samples: dict[str, SamplePrompt] = {}
    longest = 0

    def rows() -> Iterator[Mapping[str, Any]]:
        nonlocal longest
        for row in reading:
            longest = max(longest, row["actual_input_tokens"] + row["max_tokens"])
            group = row["group_id"]
            # The longest prompt of a group shows the most of the tokenizer.
            if group not in samples or samples[group].input_tokens < row["actual_input_tokens"]:
                samples[group] = SamplePrompt(group, row["question"], row["actual_input_tokens"])
            yield row

    columns = RequestColumns.from_rows(rows())
    manifest = data.manifest
    workload = Workload(
        mode=manifest["prefix_cache"]["mode"],
        block_size=manifest["tokenizer"]["block_size"],
        longest_request_tokens=longest,
        canonical_prefix_tokens={
            group: entry["canonical_prefix_tokens"] for group, entry in manifest["groups"].items()
        },
        samples=tuple(samples.values()),
    )
    return FormalTraffic(
        rows_path=data.first_file,
        index=reading.index(),
        template=TEMPLATES / data.kind.aisbench_template,
        workload=workload,
        columns=columns,
        chat_histories=manifest.get("conversations", {}).get("form") == "chat",
        scripted=manifest.get("conversations", {}).get("answers") == "scripted",
        warmup=tuple(WarmupEntry.from_plan(entry) for entry in manifest["warmup"]["plan"]),
    )


def _image_traffic(data: VerifiedDataSet) -> FormalTraffic:
    manifest = data.manifest
    (dataset,) = manifest["datasets"].values()
    rows_path = data.first_file
    reading = IndexReading(rows_path, data.kind.answer_length_key)
    text, *_ = (row["question"] for row in reading)
    requests = manifest["requests"]
    workload = Workload(
        mode="images",
        block_size=manifest["effective_config"]["tokenizer"]["block_size"],
        # Image tokens come on top of this: how many, only the server knows.
        longest_request_tokens=requests["text_tokens"] + requests["output_tokens"],
        canonical_prefix_tokens={},
        samples=(SamplePrompt("the first request", text, requests["text_tokens"]),),
    )
    return FormalTraffic(
        rows_path=rows_path,
        index=reading.index(),
        template=TEMPLATES / data.kind.aisbench_template,
        workload=workload,
        images_per_request=dataset["image_count_per_request"],
    )
