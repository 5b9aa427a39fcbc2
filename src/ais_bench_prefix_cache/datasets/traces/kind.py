"""Data sets made from a trace: rows, manifest sections and rules.

The same files as a text data set, with rows that have the trace's time and block names. Theory is a replay of the
prompts' own tokens through caches that never forget, requests going to the ranks in turn. Beside it the trace's own
names are replayed: a prompt hits exactly the whole blocks that its names hit, and then only the part of one more block
that it shares with an equal last block or keeps because the last token is computed anyway.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from ais_bench_prefix_cache.datasets.format.capacity import CAPACITY_WARNING, KeptHits, RadixKept, capacity_warnings
from ais_bench_prefix_cache.datasets.format.documents import is_count, is_sha256
from ais_bench_prefix_cache.datasets.format.kind import (
    Content,
    DataSetKind,
    DeepCheck,
    JsonRow,
    Ledger,
    Preparation,
    Sources,
    Warnings,
)
from ais_bench_prefix_cache.datasets.format.manifest import SOURCE_KEYS
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.format.recorded import recorded_scenario
from ais_bench_prefix_cache.datasets.format.rows import (
    Free,
    FreeCount,
    FreePositive,
    FreeText,
    Row,
    list_of,
    read_rows,
    request_id,
    request_row,
)
from ais_bench_prefix_cache.datasets.format.sources import file_sha256
from ais_bench_prefix_cache.datasets.format.writing import FileRecord
from ais_bench_prefix_cache.datasets.traces.reading import check_block_trace, read_trace
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError, PrefixCacheError
from ais_bench_prefix_cache.foundation.findings import Findings, shown
from ais_bench_prefix_cache.foundation.token_share import TokenShare
from ais_bench_prefix_cache.kvcache.block_hash import MAX_TOKEN_ID, block_hashes
from ais_bench_prefix_cache.kvcache.trace_replay import ReplayedRequest, TraceReplay, TraceRequest
from ais_bench_prefix_cache.planning.summary import length_summary
from ais_bench_prefix_cache.scenario.model import Scenario

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer

TRACE_KEYS = ("path", "sha256", "block_size")
NO_ANSWER = ""


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value) and value >= 0


def _is_block_name(value: object) -> bool:
    return is_count(value) and value <= MAX_TOKEN_ID


_BLOCK_NAMES = list_of(_is_block_name, f"a list of numbers from 0 to {MAX_TOKEN_ID}")


@dataclass(frozen=True)
class TraceRow(Row):
    """A row of ``full.jsonl``. ``trace_hash_ids`` are the trace's names of its blocks; lengths are tokens."""

    request_id: str
    sequence_index: int
    timestamp_ms: Annotated[float, Free(_is_time, "milliseconds from 0 up")]
    dp_rank: int
    question: FreeText
    answer: str
    actual_input_tokens: FreePositive
    max_tokens: FreePositive
    theoretical_hit_tokens: FreeCount
    trace_hash_ids: Annotated[list[int], _BLOCK_NAMES]


class TraceLedger(Ledger):
    """Places follow from the order; hits lie within what the trace's own names hit."""

    def __init__(
        self, scenario: Scenario, trace: Mapping[str, Any], kept: Callable[[int], KeptHits | None] | None = None
    ) -> None:
        """``trace`` is the manifest's section; ``kept`` says, once written, what a server of known size hits.

        It is told the planned hits.
        """
        self._ranks = scenario.service.dp_size
        self._output_key = scenario.output_key
        self._blocks = scenario.service.kv_cache_blocks
        self._trace = trace
        self._kept = kept
        self._names = TraceReplay(block_size=trace["block_size"], ranks=self._ranks)
        self._input_tokens, self._max_tokens = array("q"), array("q")
        self._shares = [TokenShare() for _ in range(self._ranks)]

    def expected(self, index: int, row: JsonRow) -> TraceRow:
        return TraceRow(
            request_id=request_id(index),
            sequence_index=index,
            timestamp_ms=row["timestamp_ms"],
            dp_rank=index % self._ranks,
            question=row["question"],
            answer=NO_ANSWER,
            actual_input_tokens=row["actual_input_tokens"],
            max_tokens=row["max_tokens"],
            theoretical_hit_tokens=row["theoretical_hit_tokens"],
            trace_hash_ids=row["trace_hash_ids"],
        )

    def companions(self, index: int, row: JsonRow) -> tuple[JsonRow, ...]:
        return (request_row(row, self._output_key),)

    def add(self, index: int, row: JsonRow, where: str, findings: Findings) -> None:
        tokens, hits, names = row["actual_input_tokens"], row["theoretical_hit_tokens"], row["trace_hash_ids"]
        size = self._names.block_size
        if not tokens // size <= len(names) <= -(-tokens // size):
            message = f"it has {len(names)} trace_hash_ids for {tokens} tokens"
            findings.add(Code.WRONG_VALUE, f"{where}: trace_hash_ids", message, allowed=f"one for every {size} tokens")
        # One rank after the other, whatever the row says: what it says is compared elsewhere.
        rank = index % self._ranks
        request = TraceRequest(block_hashes(names[: tokens // size], 1), tokens)
        shared = self._names.send(request, rank=rank).hit_tokens
        # An unfinished last block may be shared, too, and the last token, computed anyway, costs the trace's replay a
        # larger block: at most one of both.
        if not shared <= hits < shared + size:
            message = f"its prompt hits {hits} tokens, the trace's own blocks {shared}"
            findings.add(Code.SHARING_DIFFERS, where, message)
        self._input_tokens.append(min(tokens, _LARGEST))
        self._max_tokens.append(min(row["max_tokens"], _LARGEST))
        self._shares[rank] += TokenShare(tokens, hits)

    def sections(self, artifacts: Mapping[str, Any]) -> dict[str, Any]:
        total = sum(self._shares, TokenShare())
        return {
            "trace": dict(self._trace),
            "requests": {
                "count": len(self._input_tokens),
                "total_input_tokens": total.total,
                "input_length_summary": length_summary(np.asarray(self._input_tokens, dtype=np.int64)),
                "output_length_summary": length_summary(np.asarray(self._max_tokens, dtype=np.int64)),
            },
            "theory": self._theory(),
            "dp": {"size": self._ranks, "route": "round_robin"},
        }

    def analysis(self, run_id: str, recorded: Warnings | None) -> dict[str, Any]:
        theory = self._theory()
        if self._kept is not None:
            warnings: Warnings = capacity_warnings(self._kept(theory["hit_tokens"]), theory["hit_tokens"])
        else:
            # Whether they are right, a replay of the prompts' tokens shows, which only a tokenizer makes possible.
            warnings = [each for each in recorded or () if each.get("code") == CAPACITY_WARNING and self._blocks]
        return {
            "schema_version": "1.0",
            "run_id": run_id,
            "status": "prepared",
            "theoretical_hit_rate": theory["hit_rate"],
            "theory": theory,
            "warnings": [dict(warning) for warning in warnings],
        }

    def _theory(self) -> dict[str, Any]:
        return {
            **sum(self._shares, TokenShare()).section(),
            "dp": {str(rank): share.section() for rank, share in enumerate(self._shares)},
        }


_LARGEST = (1 << 63) - 1


class TraceDeepCheck(DeepCheck):
    """Every prompt's length, and its hits in a replay of all prompts' tokens."""

    def __init__(self, paths: RunPaths, manifest: Mapping[str, Any], findings: Findings) -> None:
        self._full = paths.full
        self._findings = findings
        self._block_size: int = manifest["tokenizer"]["block_size"]
        ranks = manifest["dp"]["size"]
        self._by_tokens = TraceReplay(block_size=self._block_size, ranks=ranks)
        self._by_names = TraceReplay(block_size=manifest["trace"]["block_size"], ranks=ranks)
        self._prompts = 0

    def texts(self) -> Iterator[tuple[str, Callable[[Sequence[int]], None]]]:
        for row in read_rows(self._full):
            yield row["question"], partial(self._judge, row)

    def _judge(self, row: JsonRow, token_ids: Sequence[int]) -> None:
        where = f"{self._full.name} line {row['sequence_index'] + 1}"
        tokens, rank = len(token_ids), row["dp_rank"]
        self._compare(f"{where}: actual_input_tokens", row["actual_input_tokens"], tokens)
        request = TraceRequest(block_hashes(token_ids, self._block_size), tokens, row["max_tokens"])
        hits = self._by_tokens.send(request, rank=rank).hit_tokens
        self._compare(f"{where}: theoretical_hit_tokens", row["theoretical_hit_tokens"], hits)
        whole = row["trace_hash_ids"][: tokens // self._by_names.block_size]
        self._by_names.send(TraceRequest(block_hashes(whole, 1), tokens), rank=rank)
        self._prompts += 1

    def report(self) -> dict[str, Any]:
        share = TokenShare(*(sum(getattr(each, key) for each in self._by_tokens.totals) for key in ("queries", "hits")))
        return {
            "prompts": self._prompts,
            "tokens": share.total,
            "hit_tokens": share.shared,
            "hit_rate": share.rate,
            "trace_hit_tokens": sum(totals.hits for totals in self._by_names.totals),
        }

    def _compare(self, where: str, claimed: object, found: object) -> None:
        if claimed != found:
            message = f"the file says {claimed}, but encoding and replaying the prompts gives {found}"
            self._findings.add(Code.DEEP_CHECK, where, message)


class TraceKind(DataSetKind):
    """See the module's docstring."""

    name = "trace"
    manifest_keys = (
        *SOURCE_KEYS,
        "trace",
        "requests",
        "theory",
        "dp",
        "artifacts",
        "content_sha256",
    )
    row_type = TraceRow
    run_refusal = (
        Code.TRACE,
        "this data set was made from a trace",
        "Only validate reads it; send its requests with a client that keeps the times of full.jsonl.",
    )

    def row_files(self, paths: RunPaths, manifest: Mapping[str, Any]) -> dict[str, Path]:
        return {"full": paths.full, "requests": paths.requests}

    def prepare(self, preparation: Preparation) -> Content:
        path, scenario = preparation.trace, preparation.scenario
        if path is None:
            raise PrefixCacheError.of(Code.WRONG_OPTION, "--trace", "is needed with --mode trace")
        # The whole trace is read once before anything is written: nothing half-made, and a progress bar that knows its
        # end.
        block_size, count = check_block_trace(path, preparation.trace_block_size)
        trace = dict(zip(TRACE_KEYS, (str(path.resolve()), file_sha256(path), block_size), strict=True))
        sources = replace(preparation.load(), workers=preparation.workers)
        return _content(scenario, path, trace, count, sources, check_each=preparation.check_whole, ray=preparation.ray)

    def ledger(
        self, paths: RunPaths, manifest: Mapping[str, Any], records: Mapping[str, FileRecord], findings: Findings
    ) -> TraceLedger | None:
        scenario = recorded_scenario(paths, manifest, self.scenario_rules, findings)
        where, trace = f"{paths.manifest.name}: trace", manifest.get("trace")
        if not isinstance(trace, dict) or tuple(trace) != TRACE_KEYS:
            findings.add(Code.MISSING_KEY, where, "it does not have its keys", allowed=", ".join(TRACE_KEYS))
            return None
        if not isinstance(trace["path"], str):
            findings.add(Code.WRONG_TYPE, f"{where}.path", f"it says {shown(trace['path'])}")
        if not is_sha256(trace["sha256"]):
            findings.add(Code.WRONG_TYPE, f"{where}.sha256", "it is not a SHA-256 in hexadecimal digits")
        size = trace["block_size"]
        if scenario is None:
            return None
        if not is_count(size) or not size or size % scenario.block_size or size > _LARGEST:
            allowed = f"a multiple of {scenario.block_size}"
            findings.add(Code.WRONG_VALUE, f"{where}.block_size", f"it says {shown(size)}", allowed=allowed)
            return None
        return TraceLedger(scenario, trace)

    def rebuild(
        self, paths: RunPaths, manifest: Mapping[str, Any], sources: Sources, trace: Path | None
    ) -> Content | None:
        if trace is None:
            return None
        recorded = manifest["trace"]
        scenario = recorded_scenario(paths, manifest, self.scenario_rules, Findings())
        if scenario is None or file_sha256(trace) != recorded["sha256"]:
            message = "it is not the trace that the data set was made from: its SHA-256 is another one"
            raise ArtifactError.of(Code.TRACE_CHANGED, str(trace), message, allowed=recorded["sha256"])
        _, count = check_block_trace(trace, recorded["block_size"])
        return _content(scenario, trace, recorded, count, sources)

    def deep_check(
        self, paths: RunPaths, manifest: Mapping[str, Any], tokenizer: PromptTokenizer, findings: Findings
    ) -> TraceDeepCheck:
        return TraceDeepCheck(paths, manifest, findings)


KIND = TraceKind()


def _content(
    scenario: Scenario,
    path: Path,
    trace: Mapping[str, Any],
    count: int,
    sources: Sources,
    *,
    check_each: bool = False,
    ray: str | None = None,
) -> Content:
    from ais_bench_prefix_cache.datasets.traces.trace_lines import TextMaker, trace_batches
    from ais_bench_prefix_cache.datasets.traces.trace_prompts import TracePrompts

    prompts = TracePrompts(
        sources.tokenizer,
        sources.corpus,
        trace_block_size=trace["block_size"],
        block_size=scenario.block_size,
        check_each=check_each,
    )
    service = scenario.service
    replay = TraceReplay(block_size=scenario.block_size, ranks=service.dp_size)
    blocks, trees = service.kv_cache_blocks, None
    if blocks is not None and service.engine == "sglang":
        trees = RadixKept(blocks, page_size=scenario.block_size, ranks=service.dp_size)

    def kept(planned_hits: int) -> KeptHits | None:
        if blocks is None:
            return None
        return KeptHits.by_curve(replay.capacity_curve(), blocks, planned_hits) if trees is None else trees.kept()

    def send(request: TraceRequest) -> ReplayedRequest:
        replayed = replay.send(request)
        if trees is not None:
            trees.send(request, replayed.rank)
        return replayed

    ledger = TraceLedger(scenario, trace, kept)
    rows = read_trace(path, trace_block_size=trace["block_size"])
    maker = TextMaker(prompts, scenario.block_size)
    batches = trace_batches(rows, maker, send, ledger, workers=sources.workers, ray=ray)
    alone = None
    if not prompts.one_by_one:
        alone = "its tokenizer adds tokens at the end of a text, or is not proven to encode words one by one"
    return Content((), count, ledger, (f"trace {dict(trace)}",), batches, alone)
