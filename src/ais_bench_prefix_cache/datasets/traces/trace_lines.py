"""The lines of a data set that is made from a trace: texts in any ranges, what they hit in the trace's order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ais_bench_prefix_cache.datasets.format.rows import LineBatch, line_with_text, request_id, text_in_row
from ais_bench_prefix_cache.datasets.range_workers import TOKENS_IN_A_RANGE, made_in_order
from ais_bench_prefix_cache.datasets.traces.kind import NO_ANSWER, TraceLedger, TraceRow
from ais_bench_prefix_cache.foundation.findings import Findings
from ais_bench_prefix_cache.kvcache.block_hash import BlockHash, block_hashes
from ais_bench_prefix_cache.kvcache.trace_replay import ReplayedRequest, TraceRequest

if TYPE_CHECKING:
    from ais_bench_prefix_cache.datasets.traces.reading import TraceRow as ReadRow
    from ais_bench_prefix_cache.datasets.traces.trace_prompts import TracePrompts


@dataclass(frozen=True)
class MadeText:
    """What a row of the trace became: its text as JSON writes it, and its tokens as the server's blocks."""

    row: ReadRow
    escaped: bytes
    block_hashes: Sequence[BlockHash]
    tokens: int


@dataclass(frozen=True)
class TextMaker:
    """Makes the texts of rows of a trace. It can be sent to another process where prompts are made one by one."""

    prompts: TracePrompts
    block_size: int

    def begin(self) -> Callable[[Sequence[ReadRow]], list[MadeText]]:
        """Makes the texts of a range of rows."""
        return lambda rows: [self._made(row) for row in rows]

    def _made(self, row: ReadRow) -> MadeText:
        text, ids = self.prompts.build(row.ids, row.prompt_tokens, row.line)
        return MadeText(row, text_in_row(text).encode(), block_hashes(ids, self.block_size), len(ids))


def trace_batches(
    rows: Iterator[ReadRow],
    maker: TextMaker,
    send: Callable[[TraceRequest], ReplayedRequest],
    ledger: TraceLedger,
    *,
    workers: int = 1,
    ray: str | None = None,
) -> Iterator[LineBatch]:
    """The lines of all rows; ``send`` replays each, in their order, and ``ledger`` takes it in.

    Several processes make the texts where prompts are made one by one.

    Raises:
        GenerationError: a prompt cannot be made.
        ArtifactError: a prompt does not share what the trace's blocks share.
    """
    if not maker.prompts.one_by_one:
        workers, ray = 1, None
    index = 0
    for made in made_in_order(maker, _ranges(rows), workers=workers, ray=ray):
        findings = Findings()
        files: list[list[bytes]] = []
        for text in made:
            row = _row(index, text, send).as_json()
            ledger.add(index, row, f"row {index}", findings)
            lines = (row, *ledger.companions(index, row))
            files = files or [[] for _ in lines]
            for parts, each in zip(files, lines, strict=True):
                parts.extend(line_with_text(each, text.escaped))
            index += 1
        findings.raise_if_any()
        yield LineBatch(len(made), tuple([b"".join(parts) for parts in files]))


def _row(index: int, text: MadeText, send: Callable[[TraceRequest], ReplayedRequest]) -> TraceRow:
    """The row of a text, without the text."""
    row = text.row
    replayed = send(TraceRequest(text.block_hashes, text.tokens, row.output_tokens))
    return TraceRow(
        request_id=request_id(index),
        sequence_index=index,
        timestamp_ms=row.timestamp_ms,
        dp_rank=replayed.rank,
        question="",
        answer=NO_ANSWER,
        actual_input_tokens=text.tokens,
        max_tokens=row.output_tokens,
        theoretical_hit_tokens=replayed.hit_tokens,
        trace_hash_ids=list(row.ids),
    )


def _ranges(rows: Iterator[ReadRow]) -> Iterator[list[ReadRow]]:
    """Rows of a trace, about :data:`TOKENS_IN_A_RANGE` tokens at a time."""
    part: list[ReadRow] = []
    tokens = 0
    for row in rows:
        part.append(row)
        tokens += row.prompt_tokens
        if tokens >= TOKENS_IN_A_RANGE:
            yield part
            part, tokens = [], 0
    if part:
        yield part
