"""What the server says of its load while requests run: cache usage and queues, sampled beside them as a series."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from ais_bench_prefix_cache.counters.reader import EngineLoad

MEASURES = ("kv_cache_usage", "running", "waiting")


@dataclass(frozen=True)
class LoadSample:
    """One look: ``moment`` is in seconds of this machine's monotonic clock."""

    moment: float
    by_rank: Mapping[int, EngineLoad]

    def as_json(self, begin: float) -> dict[str, Any]:
        """One line of a series; ``time_s`` counts from ``begin``."""
        line: dict[str, Any] = {"time_s": round(self.moment - begin, 3)}
        for measure in MEASURES:
            line[measure] = {str(rank): getattr(load, measure) for rank, load in sorted(self.by_rank.items())}
        return line


@dataclass
class LoadSampler:
    """A context: while it is open, ``sample`` is called every ``interval`` seconds.

    An ``interval`` of 0 switches sampling off. A failing sample is counted and never stops a run.
    """

    sample: Callable[[], Mapping[int, EngineLoad]]
    interval: float
    errors: int = 0
    _samples: list[LoadSample] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> LoadSampler:
        if self.interval > 0:
            threading.Thread(target=self._work, name="load-sampling", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()

    def _work(self) -> None:
        while not self._stop.wait(self.interval):
            moment = time.perf_counter()
            try:
                by_rank = self.sample()
            except Exception:
                self.errors += 1
            else:
                self._samples.append(LoadSample(moment, by_rank))

    def samples(self, begin: float | None = None, end: float | None = None) -> list[LoadSample]:
        """Those between two moments, by default all: AISBench's start and summary are no load."""
        return [
            sample
            for sample in list(self._samples)
            if (begin is None or sample.moment >= begin) and (end is None or sample.moment <= end)
        ]

    def as_json(self, begin: float | None = None, end: float | None = None) -> dict[str, Any]:
        """``runtime.kv_cache_polling``; the global figures are over the mean of the ranks at each moment."""
        samples = self.samples(begin, end)
        ranks = sorted({rank for sample in samples for rank in sample.by_rank})
        return {
            "enabled": self.interval > 0,
            "interval_seconds": self.interval,
            "samples": len(samples),
            "errors": self.errors,
            **_average_and_peak(_mean(sample.by_rank.values()) for sample in samples),
            "by_dp": {
                str(rank): _average_and_peak(
                    load.kv_cache_usage for sample in samples if (load := sample.by_rank.get(rank)) is not None
                )
                for rank in ranks
            },
        }


def _mean(loads: Iterable[EngineLoad]) -> float | None:
    usages = [load.kv_cache_usage for load in loads if load.kv_cache_usage is not None]
    return sum(usages) / len(usages) if usages else None


def _average_and_peak(values: Iterable[float | None]) -> dict[str, float | None]:
    known = [value for value in values if value is not None]
    return {"average": sum(known) / len(known) if known else None, "peak": max(known) if known else None}
