"""Conversations of both sides, turn by turn: what hit, and how long the first token took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from ais_bench_prefix_cache.analysis.request_record import RequestRecord
from ais_bench_prefix_cache.comparisons.measured import MeasuredRun


@dataclass(frozen=True)
class TurnFigures:
    """All requests of one turn number over the runs of a side.

    ``hit_tokens`` of ``input_tokens``, both None where the server did not say for each request; ``ttft_p50`` in
    milliseconds, None where nothing was streamed.
    """

    requests: int
    input_tokens: int | None
    hit_tokens: int | None
    ttft_p50: float | None

    @property
    def hit_rate(self) -> float | None:
        return self.hit_tokens / self.input_tokens if self.input_tokens and self.hit_tokens is not None else None


@dataclass(frozen=True)
class TurnComparison:
    """One turn, counted from 1; a side is None where its conversations are over by then."""

    turn: int
    baseline: TurnFigures | None
    candidate: TurnFigures | None


def compare_turns(baseline: Sequence[MeasuredRun], candidate: Sequence[MeasuredRun]) -> tuple[TurnComparison, ...]:
    """Every turn of either side; nothing unless both sent conversations."""
    if not all(run.config.get("conversation") for run in (*baseline, *candidate)):
        return ()
    sides = [dict(_by_turn(runs)) for runs in (baseline, candidate)]
    return tuple(
        TurnComparison(turn + 1, *(side.get(turn) for side in sides)) for turn in sorted({*sides[0], *sides[1]})
    )


def _by_turn(runs: Sequence[MeasuredRun]) -> Iterator[tuple[int, TurnFigures]]:
    turns: dict[int, list[RequestRecord]] = {}
    for run in runs:
        for record in run.done:
            if record.lane_sequence is not None:
                turns.setdefault(record.lane_sequence, []).append(record)
    for turn, records in turns.items():
        tokens = [record.input_tokens for record in records if record.input_tokens is not None]
        hits = [record.hit_tokens for record in records if record.hit_tokens is not None]
        ttft = [record.ttft_ms for record in records if record.ttft_ms is not None]
        told = len(tokens) == len(hits) == len(records)
        yield (
            turn,
            TurnFigures(
                len(records),
                sum(tokens) if told else None,
                sum(hits) if told else None,
                round(median(ttft), 3) if ttft else None,
            ),
        )
