"""Latency, throughput, concurrency and goodput of a run, from its request records.

Percentiles interpolate linearly between the two nearest values (numpy's default), as AISBench's do; a rate is divided
last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ais_bench_prefix_cache.analysis.request_record import RequestRecord

PERFORMANCE_KEY = "performance"
"""Where ``analysis.json`` keeps :func:`performance_section` (ours)."""
PERCENTILES = (50.0, 90.0, 95.0, 99.0)
LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms")
_LATE_MS = 10.0
"""A request that is sent later than this after its time was not sent at its time."""


def performance_section(
    records: Sequence[RequestRecord],
    *,
    batch_size: int,
    request_rate: float | None = None,
    slo: Mapping[str, float] | None = None,
    percentiles: Sequence[float] = PERCENTILES,
    are_turns: bool = False,
) -> dict[str, Any]:
    """``analysis.performance``; only requests that succeeded count in latencies and throughput.

    ``batch_size`` and ``request_rate`` (requests a second) are what was asked for; ``slo`` holds upper bounds in
    milliseconds for any of ``ttft_ms``, ``tpot_ms`` and ``e2el_ms``. With ``are_turns`` the requests are turns of
    conversations, and ``by_turn`` tells them apart.
    """
    done = [record for record in records if record.success]
    section: dict[str, Any] = {
        "requests": len(records),
        "failed_requests": len(records) - len(done),
        "retried_requests": sum(record.retries > 0 for record in records),
        "latency": latency_section(done, percentiles),
    }
    if are_turns:
        section["by_turn"] = _by_turn(done)
    moments = [(record.sent_s, record.end_s) for record in done]
    known = [(sent, end) for sent, end in moments if sent is not None and end is not None]
    if known and len(known) == len(done):
        seconds = max(end for _, end in known) - min(sent for sent, _ in known)
        section["duration_s"] = round(seconds, 6)
        section["throughput"] = _throughput(done, seconds)
        section["concurrency"] = {"asked": batch_size, **_concurrency(known, seconds)}
        section["request_rate"] = _request_rate(done, request_rate)
        if slo:
            section["goodput"] = _goodput(records, slo, seconds)
    return section


def latency_section(
    records: Iterable[RequestRecord], percentiles: Sequence[float] = PERCENTILES
) -> dict[str, dict[str, float]]:
    """For each latency that was measured: ``count``, ``mean``, ``min``, the percentiles (``p50`` …) and ``max``.

    Milliseconds. Times between tokens are those of all requests together.
    """
    records = list(records)
    section = {}
    for name in LATENCIES:
        if name == "itl_ms":
            values = [value for record in records for value in record.itl_ms]
        else:
            values = [value for record in records if (value := getattr(record, name)) is not None]
        if values:
            section[name] = _distribution(values, percentiles)
    return section


def _by_turn(done: Sequence[RequestRecord]) -> dict[str, Any]:
    """Input and hit tokens, planned and (None where the server does not say) seen, and times to the first token."""
    turns: dict[int, list[RequestRecord]] = {}
    for record in done:
        turns.setdefault(record.lane_sequence or 0, []).append(record)
    section = {}
    for turn, records in sorted(turns.items()):
        seen = [record.hit_tokens for record in records]
        ttft = [record.ttft_ms for record in records if record.ttft_ms is not None]
        section[str(turn)] = {
            "requests": len(records),
            "input_tokens": sum(record.planned_input_tokens or 0 for record in records),
            "planned_hit_tokens": sum(record.planned_hit_tokens or 0 for record in records),
            "hit_tokens": None if None in seen else sum(hits or 0 for hits in seen),
            **({"ttft_ms": _distribution(ttft, PERCENTILES)} if ttft else {}),
        }
    return section


def percentile_name(percentile: float) -> str:
    """``p50``, ``p99.9``."""
    return f"p{percentile:g}"


def _distribution(values: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    array = np.asarray(values, dtype=float)
    found = {
        "mean": array.mean(),
        "min": array.min(),
        **{
            percentile_name(percentile): value
            for percentile, value in zip(percentiles, np.percentile(array, percentiles), strict=True)
        },
        "max": array.max(),
    }
    return {"count": len(array), **{name: round(float(value), 4) for name, value in found.items()}}


def _throughput(done: Sequence[RequestRecord], seconds: float) -> dict[str, float | None]:
    """Tokens a second are None where the server did not say for each request how many it had."""

    def a_second(tokens: Sequence[int | None]) -> float | None:
        known = [count for count in tokens if count is not None]
        return round(sum(known) / seconds, 4) if seconds and len(known) == len(tokens) else None

    return {
        "requests_per_s": round(len(done) / seconds, 4) if seconds else None,
        "input_tokens_per_s": a_second([record.input_tokens for record in done]),
        "output_tokens_per_s": a_second([record.output_tokens for record in done]),
    }


def _concurrency(moments: Sequence[tuple[float, float]], seconds: float) -> dict[str, float]:
    """Requests in flight: the mean over the duration, and the most at one moment."""
    changes = sorted([(sent, 1) for sent, _ in moments] + [(end, -1) for _, end in moments])
    in_flight = most = 0
    for _, change in changes:
        in_flight += change
        most = max(most, in_flight)
    busy = sum(end - sent for sent, end in moments)
    return {"mean": round(busy / seconds, 3) if seconds else float(most), "max": most}


def _request_rate(done: Sequence[RequestRecord], asked: float | None) -> dict[str, Any]:
    """What was asked for and what was sent, in requests a second, and why the two differ."""
    sent = sorted(record.sent_s for record in done if record.sent_s is not None)
    span = sent[-1] - sent[0]
    section: dict[str, Any] = {
        "asked_per_s": asked,
        "sent_per_s": round((len(sent) - 1) / span, 4) if span > 0 else None,
    }
    if asked is not None:
        late = [
            (1000 * (record.sent_s - record.due_s), record)
            for record in done
            if record.sent_s is not None and record.due_s is not None and not record.retries
        ]
        section["due_per_s"] = _due_rate(done)
        section["late_requests"] = sum(lateness > _LATE_MS for lateness, _ in late)
        if late:
            section["lateness_ms"] = _distribution([lateness for lateness, _ in late], PERCENTILES)
        section["waited_for_lane"] = sum(record.lane_wait_ms > _LATE_MS for _, record in late)
        section["waited_for_slot"] = sum(record.slot_wait_ms > _LATE_MS for _, record in late)
    return section


def _due_rate(done: Sequence[RequestRecord]) -> float | None:
    """The rate of the arrivals themselves: a finite number of random gaps does not have the mean exactly."""
    due = [record.due_s for record in done if record.due_s is not None]
    span = max(due) - min(due) if due else 0.0
    return round((len(due) - 1) / span, 4) if span > 0 else None


def _goodput(records: Sequence[RequestRecord], slo: Mapping[str, float], seconds: float) -> dict[str, Any]:
    """Requests that keep every bound; what was not measured (a TPOT of one token) breaks none."""

    def good(record: RequestRecord) -> bool:
        values = ((getattr(record, name), bound) for name, bound in slo.items())
        return record.success and all(value is None or value <= bound for value, bound in values)

    met = sum(map(good, records))
    return {
        "slo": dict(slo),
        "requests": met,
        "share": round(met / len(records), 6) if records else None,
        "requests_per_s": round(met / seconds, 4) if seconds else None,
    }
