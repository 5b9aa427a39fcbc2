"""One row a request: what was planned for it beside what its sender saw. Every figure of a report comes from these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
from ais_bench_prefix_cache.analysis.seen_request import SeenRequest
from ais_bench_prefix_cache.foundation.names import NO_RANK


@dataclass(frozen=True)
class RequestRecord:
    """Lengths are tokens; ``…_s`` are seconds after the first request was sent, ``…_ms`` milliseconds.

    Everything may be unknown (None) but ``index``, ``success`` and ``retries``: images have no plan, and a server need
    not say how much it hit. ``input_tokens``, ``output_tokens`` and ``hit_tokens`` are the server's own figures.
    ``ttft_ms`` is the time to the first token, ``e2el_ms`` to the end of the answer, ``tpot_ms`` (e2el - ttft) /
    (output_tokens - 1), and ``itl_ms`` the times between the parts of the answer, as AISBench defines them.
    """

    index: int
    group_id: str | None
    dp_rank: int | None
    lane_sequence: int | None
    max_tokens: int | None
    planned_input_tokens: int | None
    planned_hit_tokens: int | None
    input_tokens: int | None
    hit_tokens: int | None
    output_tokens: int | None
    due_s: float | None
    sent_s: float | None
    first_token_s: float | None
    end_s: float | None
    lane_wait_ms: float
    slot_wait_ms: float
    ttft_ms: float | None
    tpot_ms: float | None
    e2el_ms: float | None
    itl_ms: tuple[float, ...]
    retries: int
    success: bool
    error: str | None


def request_records(columns: RequestColumns | None, seen: Iterable[SeenRequest]) -> Iterator[RequestRecord]:
    """The records of all seen requests; ``columns`` is their plan, None where there is none."""
    for row in seen:
        index = row.sequence_index
        ttft = _milliseconds(row.sent, row.first_token)
        e2el = _milliseconds(row.sent, row.finished) if row.success else None
        tokens = row.completion_tokens or 0
        tpot = (e2el - ttft) / (tokens - 1) if e2el is not None and ttft is not None and tokens > 1 else None
        yield RequestRecord(
            index=index,
            group_id=None if columns is None else columns.group_ids[index],
            dp_rank=None if columns is None else _known(columns.dp_ranks[index]),
            lane_sequence=None if columns is None else _known(columns.lane_sequences[index]),
            max_tokens=None if columns is None else columns.max_tokens[index],
            planned_input_tokens=None if columns is None else columns.input_tokens[index],
            planned_hit_tokens=None if columns is None else columns.hit_tokens[index],
            input_tokens=row.prompt_tokens,
            hit_tokens=row.cached_tokens,
            output_tokens=row.completion_tokens,
            due_s=row.due,
            sent_s=row.sent,
            first_token_s=row.first_token,
            end_s=row.finished,
            lane_wait_ms=_rounded(1000 * row.lane_wait),
            slot_wait_ms=_rounded(1000 * row.slot_wait),
            ttft_ms=ttft,
            tpot_ms=None if tpot is None else _rounded(tpot),
            e2el_ms=e2el,
            itl_ms=row.itl_ms,
            retries=row.attempts - 1,
            success=row.success,
            error=row.error,
        )


def _known(number: int) -> int | None:
    return None if number == NO_RANK else number


def _milliseconds(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else _rounded(1000 * (end - start))


def _rounded(milliseconds: float) -> float:
    """To a microsecond, below which no clock of an event loop tells anything."""
    return round(milliseconds, 3)
