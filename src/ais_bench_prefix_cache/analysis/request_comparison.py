"""Theory against ``usage.prompt_tokens_details.cached_tokens``, request by request.

A response may hold a number, null, or nothing: null and nothing say nothing about the request and are counted on their
own; only a number is compared.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
from ais_bench_prefix_cache.analysis.seen_request import SeenRequest
from ais_bench_prefix_cache.foundation.names import NO_RANK

TIME_BUCKETS = 20
"""At most this many buckets of equally many requests, in the order in which they were sent."""


@dataclass
class _Tally:
    """Requests compared, and the tokens that theory and server say are hit."""

    requests: int = 0
    matched: int = 0
    input_tokens: int = 0
    expected_hits: int = 0
    seen_hits: int = 0

    def add(self, input_tokens: int, expected: int, seen: int) -> None:
        self.requests += 1
        self.input_tokens += input_tokens
        self.matched += expected == seen
        self.expected_hits += expected
        self.seen_hits += seen

    def as_json(self) -> dict[str, int]:
        return {
            "requests": self.requests,
            "matched": self.matched,
            "mismatched": self.requests - self.matched,
            "input_tokens": self.input_tokens,
            "expected_hits": self.expected_hits,
            "seen_hits": self.seen_hits,
        }


@dataclass(frozen=True)
class RequestComparison:
    """All requests of a run.

    ``compared`` requests reported a number; ``null``, ``absent`` and ``missing`` (no response row) did not.
    ``shortfalls`` counts the differences expected - seen that occur, at most the 16 most frequent. ``seen_step`` is the
    greatest common divisor of all seen numbers, over ``seen_values`` different ones above 0; ``beside_step`` are the
    requests that theory, cut down to whole steps of that size, does not explain. ``prompt_token_excess`` is the
    smallest and largest difference between the server's prompt tokens and ours, of ``prompt_tokens_told`` requests.
    ``repeated_tokens`` are the prompts of all attempts but the first. ``lane_starts_hit`` are requests that hit
    although they are the first of their group on their rank and were sent once.
    """

    compared: int
    matched: int
    null: int
    absent: int
    missing: int
    seen_hits: int
    expected_hits: int
    first_mismatch: Mapping[str, Any] | None
    by_group: Mapping[str, Mapping[str, int]]
    by_rank: Mapping[str, Mapping[str, int]]
    over_time: tuple[Mapping[str, int], ...]
    shortfalls: Mapping[int, int] = field(default_factory=dict)
    seen_step: int = 0
    seen_values: int = 0
    beside_step: int = 0
    prompt_token_excess: tuple[int, int] | None = None
    prompt_tokens_told: int = 0
    retried: int = 0
    repeated_tokens: int = 0
    failed: int = 0
    lane_starts_hit: int = 0

    @property
    def mismatched(self) -> int:
        return self.compared - self.matched

    @property
    def complete(self) -> bool:
        """Whether every request reported a number."""
        return not (self.null or self.absent or self.missing)

    def as_json(self, counted_hits: int | None = None) -> dict[str, Any]:
        """``analysis.requests`` (ours). ``counted_hits`` is what the counters say all requests hit."""
        document: dict[str, Any] = {
            "compared": self.compared,
            "matched": self.matched,
            "mismatched": self.mismatched,
            "reported_null": self.null,
            "reported_nothing": self.absent,
            "without_response": self.missing,
            "expected_hits": self.expected_hits,
            "seen_hits": self.seen_hits,
            "first_mismatch": None if self.first_mismatch is None else dict(self.first_mismatch),
            "by_group": {group: dict(tally) for group, tally in self.by_group.items()},
            "by_dp": {rank: dict(tally) for rank, tally in self.by_rank.items()},
            "over_time": [dict(bucket) for bucket in self.over_time],
            "shortfalls": {str(tokens): count for tokens, count in self.shortfalls.items()},
            "seen_step": self.seen_step,
            "seen_values": self.seen_values,
            "beside_step": self.beside_step,
            "prompt_token_excess": None if self.prompt_token_excess is None else list(self.prompt_token_excess),
            "prompt_tokens_told": self.prompt_tokens_told,
            "retried": self.retried,
            "repeated_tokens": self.repeated_tokens,
            "failed": self.failed,
            "lane_starts_hit": self.lane_starts_hit,
        }
        if counted_hits is not None:
            document["counted_hits"] = counted_hits
            document["agrees_with_counters"] = self.seen_hits == counted_hits if self.complete else None
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RequestComparison:
        """Back from :meth:`as_json`."""
        excess = document["prompt_token_excess"]
        return cls(
            compared=document["compared"],
            matched=document["matched"],
            null=document["reported_null"],
            absent=document["reported_nothing"],
            missing=document["without_response"],
            seen_hits=document["seen_hits"],
            expected_hits=document["expected_hits"],
            first_mismatch=document["first_mismatch"],
            by_group=document["by_group"],
            by_rank=document["by_dp"],
            over_time=tuple(document["over_time"]),
            shortfalls={int(tokens): count for tokens, count in document["shortfalls"].items()},
            seen_step=document["seen_step"],
            seen_values=document["seen_values"],
            beside_step=document.get("beside_step", 0),
            prompt_token_excess=None if excess is None else (excess[0], excess[1]),
            prompt_tokens_told=document.get("prompt_tokens_told", 0),
            retried=document["retried"],
            repeated_tokens=document.get("repeated_tokens", 0),
            failed=document["failed"],
            lane_starts_hit=document.get("lane_starts_hit", 0),
        )


def compare_requests(columns: RequestColumns, seen: Iterable[SeenRequest]) -> RequestComparison:
    """Compare every request's theory with what the server reported of it.

    Of several rows for one request the last counts. ``over_time`` follows the times at which requests were sent where
    all are known, else the order of the data set. Raises ValueError for an index outside of the data set.
    """
    rows: dict[int, SeenRequest] = {}
    for row in seen:
        if not 0 <= row.sequence_index < len(columns):
            raise ValueError(f"request {row.sequence_index} of {len(columns)}")
        rows[row.sequence_index] = row
    states = {"null": 0, "absent": 0}
    groups: dict[str, _Tally] = {}
    ranks: dict[int, _Tally] = {}
    total = _Tally()
    shortfalls: dict[int, int] = {}
    pairs: Counter[tuple[int, int]] = Counter()
    excesses: list[int] = []
    first: Mapping[str, Any] | None = None
    lane_starts_hit = 0
    compared: list[int] = []
    for index in sorted(rows):
        row = rows[index]
        if row.prompt_tokens is not None:
            excesses.append(row.prompt_tokens - columns.input_tokens[index])
        if row.state != "reported" or row.cached_tokens is None:
            states["absent" if row.state == "absent" else "null"] += 1
            continue
        expected, reported = columns.hit_tokens[index], row.cached_tokens
        compared.append(index)
        tokens = columns.input_tokens[index]
        total.add(tokens, expected, reported)
        groups.setdefault(columns.group_ids[index], _Tally()).add(tokens, expected, reported)
        if columns.dp_ranks[index] != NO_RANK:
            ranks.setdefault(columns.dp_ranks[index], _Tally()).add(tokens, expected, reported)
        pairs[expected, reported] += 1
        # A request that is sent again hits what its first sending left.
        if reported > 0 and row.attempts == 1:
            lane_starts_hit += expected == 0 and columns.lane_sequences[index] == 0
        if expected != reported:
            shortfalls[expected - reported] = shortfalls.get(expected - reported, 0) + 1
            first = first or _mismatch(columns, index, reported)
    frequent = sorted(shortfalls.items(), key=lambda item: (-item[1], item[0]))[:16]
    values = {reported for _, reported in pairs if reported > 0}
    step = math.gcd(*values)
    return RequestComparison(
        compared=total.requests,
        matched=total.matched,
        null=states["null"],
        absent=states["absent"],
        missing=len(columns) - len(rows),
        seen_hits=total.seen_hits,
        expected_hits=total.expected_hits,
        first_mismatch=first,
        by_group={group: groups[group].as_json() for group in sorted(groups, key=_natural)},
        by_rank={str(rank): ranks[rank].as_json() for rank in sorted(ranks)},
        over_time=_over_time(columns, rows, compared),
        shortfalls=dict(frequent),
        seen_step=step,
        seen_values=len(values),
        beside_step=sum(
            count for (expected, reported), count in pairs.items() if step and expected // step * step != reported
        ),
        prompt_token_excess=(min(excesses), max(excesses)) if excesses else None,
        prompt_tokens_told=len(excesses),
        retried=sum(row.attempts > 1 for row in rows.values()),
        repeated_tokens=sum((row.attempts - 1) * columns.input_tokens[index] for index, row in rows.items()),
        failed=sum(not row.success for row in rows.values()),
        lane_starts_hit=lane_starts_hit,
    )


def _mismatch(columns: RequestColumns, index: int, reported: int) -> dict[str, Any]:
    rank, lane_sequence = columns.dp_ranks[index], columns.lane_sequences[index]
    return {
        "request_id": f"request-{index:08d}",
        "sequence_index": index,
        "group_id": columns.group_ids[index],
        "dp_rank": None if rank == NO_RANK else rank,
        "lane_sequence": None if lane_sequence == NO_RANK else lane_sequence,
        "input_tokens": columns.input_tokens[index],
        "expected_hit_tokens": columns.hit_tokens[index],
        "seen_hit_tokens": reported,
    }


def _over_time(
    columns: RequestColumns, rows: Mapping[int, SeenRequest], compared: list[int]
) -> tuple[Mapping[str, int], ...]:
    times = [rows[index].sent for index in compared]
    known = [time for time in times if time is not None]
    order = compared
    if len(known) == len(compared):
        order = [index for _, index in sorted(zip(known, compared, strict=True))]
    size = max(1, -(-len(order) // TIME_BUCKETS))
    buckets = []
    for start in range(0, len(order), size):
        tally = _Tally()
        part = order[start : start + size]
        for index in part:
            tally.add(columns.input_tokens[index], columns.hit_tokens[index], rows[index].cached_tokens or 0)
        buckets.append({"first_request": part[0], "last_request": part[-1], **tally.as_json()})
    return tuple(buckets)


def _natural(group_id: str) -> tuple[str, int]:
    name, _, number = group_id.rpartition("-")
    return (name, int(number)) if number.isdecimal() else (group_id, 0)
