"""The figures of a run that can be set beside another run's: latencies by percentile or mean, and requests a second.

Every one is a statistic of one value a request, in an order in which neighbours were served at about the same time: so
that all of them are resampled and split into blocks in the same way (:mod:`.intervals`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ais_bench_prefix_cache.analysis.performance import percentile_name
from ais_bench_prefix_cache.analysis.request_record import RequestRecord
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import CalculationError
from ais_bench_prefix_cache.foundation.findings import nearest, quoted

Values = npt.NDArray[np.float64]

RATE = "requests_per_s"
_LATENCIES = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2el": "e2el_ms"}
_NAME = re.compile(r"(ttft|tpot|e2el)_(?:mean|p(\d{1,2}(?:\.\d+)?))")
ALLOWED = f"ttft_p50, tpot_p99, e2el_mean … (ttft, tpot or e2el; any percentile or mean), {RATE}"


@dataclass(frozen=True)
class Metric:
    """``column`` is the record's field, None for requests a second; ``percentile`` None for a mean."""

    name: str
    column: str | None
    percentile: float | None = None

    @property
    def higher_is_better(self) -> bool:
        return self.column is None

    @property
    def unit(self) -> str:
        return "/s" if self.column is None else "ms"

    def values(self, done: Sequence[RequestRecord]) -> Values:
        """One value for each request that succeeded and has one: milliseconds, or seconds until the next was sent."""
        if self.column is None:
            return _gaps(done)
        ordered = sorted(done, key=lambda record: record.index)
        known = (getattr(record, self.column) for record in ordered)
        return np.asarray([value for value in known if value is not None], dtype=float)

    def of(self, values: Values) -> Any:
        """The figure along the last axis of values: milliseconds, or requests a second."""
        if self.column is None:
            return 1.0 / np.maximum(values.mean(axis=-1), 1e-9)
        if self.percentile is None:
            return values.mean(axis=-1)
        return np.percentile(values, self.percentile, axis=-1)

    @property
    def least_requests(self) -> int:
        """Fewer requests than these have none beyond the percentile."""
        return 1 if self.percentile is None else int(np.ceil(round(100.0 / (100.0 - self.percentile), 6)))


def metric_named(name: str) -> Metric:
    """``ttft_p99``, ``tpot_mean``, ``requests_per_s``. Raises CalculationError for another name."""
    if name == RATE:
        return Metric(name, None)
    matched = _NAME.fullmatch(name)
    if matched is None or (matched[2] is not None and not float(matched[2]) > 0):
        known = [f"{latency}_{what}" for latency in _LATENCIES for what in ("mean", "p50", "p90", "p95", "p99")]
        near = nearest(name, [*known, RATE])
        hint = f"did you mean {near}?" if near else None
        raise CalculationError.of(
            Code.WRONG_OPTION, quoted(name), "this is no figure of a run", allowed=ALLOWED, hint=hint
        )
    percentile = None if matched[2] is None else float(matched[2])
    what = "mean" if percentile is None else percentile_name(percentile)
    return Metric(f"{matched[1]}_{what}", _LATENCIES[matched[1]], percentile)


def _gaps(done: Sequence[RequestRecord]) -> Values:
    """Seconds from each sending to the next, and from the last one to the end: their sum is the duration."""
    moments = [(record.sent_s, record.end_s) for record in done]
    known = [(sent, end) for sent, end in moments if sent is not None and end is not None]
    if len(known) < len(moments) or not known:
        return np.empty(0)
    sent = sorted(sent for sent, _ in known)
    return np.diff([*sent, max(end for _, end in known)])
