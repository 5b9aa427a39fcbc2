"""The KV-cache usage during the formal run, sampled beside it and kept as sums only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any


@dataclass
class _Usage:
    samples: int = 0
    total: float = 0.0
    peak: float = 0.0

    def add(self, value: float) -> None:
        self.samples += 1
        self.total += value
        self.peak = max(self.peak, value)

    def as_json(self) -> dict[str, Any]:
        known = self.samples > 0
        return {"average": self.total / self.samples if known else None, "peak": self.peak if known else None}


@dataclass
class KvSampler:
    """A context: while it is open, ``sample`` (rank → usage as a fraction of 1) is called every ``interval`` seconds.

    An ``interval`` of 0 switches sampling off. A failing sample is counted and never stops a run. The global figures
    are over the mean of the ranks at each moment.
    """

    sample: Callable[[], Mapping[int, float]]
    interval: float
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _all: _Usage = field(default_factory=_Usage)
    _ranks: dict[int, _Usage] = field(default_factory=dict)
    _errors: int = 0
    _samples: int = 0

    def __enter__(self) -> KvSampler:
        if self.interval > 0:
            threading.Thread(target=self._work, name="kv-sampling", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()

    def _work(self) -> None:
        while not self._stop.wait(self.interval):
            try:
                usage = self.sample()
            except Exception:
                with self._lock:
                    self._errors += 1
                continue
            with self._lock:
                self._samples += 1
                for dp_rank, value in usage.items():
                    self._ranks.setdefault(dp_rank, _Usage()).add(value)
                if usage:
                    self._all.add(sum(usage.values()) / len(usage))

    def as_json(self) -> dict[str, Any]:
        """``runtime.kv_cache_polling``."""
        with self._lock:
            return {
                "enabled": self.interval > 0,
                "interval_seconds": self.interval,
                "samples": self._samples,
                "errors": self._errors,
                **self._all.as_json(),
                "by_dp": {str(rank): usage.as_json() for rank, usage in sorted(self._ranks.items())},
            }
