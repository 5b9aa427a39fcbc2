"""A request in an engine, and what an engine's counters have to know about it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Union

from ais_bench_prefix_cache.kvcache.radix_scheduler import RadixScheduler
from ais_bench_prefix_cache.kvcache.scheduler import BatchedRequest, BatchScheduler, BatchStep

Scheduler = Union[BatchScheduler, RadixScheduler]
"""vLLM's or SGLang's."""


class GeneratedToken(NamedTuple):
    """One token of one choice, as the HTTP side gets it."""

    choice: int
    token_id: int
    finished: bool
    hit_tokens: int


@dataclass(eq=False)
class Generation(BatchedRequest[Any]):
    """A request with its answer's way back and its times (seconds, monotonic clock)."""

    choice: int = 0
    prompt_digest: int = 0
    stream: bool = False
    output: asyncio.Queue[GeneratedToken] = field(default_factory=asyncio.Queue)
    arrived: float = 0.0
    started: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0


class EngineMetrics(Protocol):
    """The counters of one engine."""

    def count_step(self, step: BatchStep[Any]) -> None:
        """A step has ended; its requests have not got their tokens yet."""

    def count_token(self, request: Generation, now: float) -> None:
        """``request`` has just got a token, the last one if it is finished; its times are those before."""

    def count_images(self, queries: int, hits: int) -> None:
        """The front end has looked up the images of a request."""

    def refresh(self, scheduler: Scheduler) -> None:
        """Bring the gauges up to date."""
