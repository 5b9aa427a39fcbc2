"""A vLLM-like service without a network: an ``httpx.MockTransport`` that can misbehave in every way a test asks for.

Its tokenizer is one token for every four characters; its cache is a set of block chains per rank. It knows nothing of
the code under test.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

from ais_bench_prefix_cache.counters.reader import EngineCounters
from ais_bench_prefix_cache.foundation.errors import ServiceError
from ais_bench_prefix_cache.scenario.effective import service_with
from ais_bench_prefix_cache.scenario.model import ServiceConfig
from ais_bench_prefix_cache.service.client import ServiceClient
from ais_bench_prefix_cache.service.readings import EngineId, Reading
from ais_bench_prefix_cache.service.scraping import CounterReader

URL = "http://service.test:8000"


def service_config(**changes: Any) -> ServiceConfig:
    urls = {
        "inference_url": f"{URL}/v1/completions",
        "metrics_url": f"{URL}/metrics",
        "reset_url": f"{URL}/reset_prefix_cache",
    }
    return replace(service_with(**urls, model="tiny", dp_size=2, timeout_seconds=1.0), **changes)


@dataclass
class FakeService:
    """Options first, then what has happened."""

    dp_size: int = 2
    block_size: int = 16
    dropped_blocks: int = 0
    labels: tuple[str, ...] = ("0", "1", "2", "3")
    caching: bool = True
    honour_header: bool = True
    tokens_details: bool = True
    extra_prompt_tokens: int = 0
    counters_frozen: bool = False
    foreign_queries: int = 0
    reset_status: int = 200
    reset_bodies: list[str] = field(default_factory=lambda: ['{"success": true}'])
    reset_ranks: tuple[int, ...] | None = None
    capacity_blocks: int | None = None
    hybrid: bool = False
    """Only the end of a prompt, and where a later one left it, can be hit: as with sliding windows on vLLM 0.32."""
    override: Callable[[httpx.Request], httpx.Response | None] = lambda _request: None

    requests: list[httpx.Request] = field(default_factory=list)
    queries: dict[int, int] = field(default_factory=dict)
    hits: dict[int, int] = field(default_factory=dict)
    cached: dict[int, dict[str, None]] = field(default_factory=dict)
    restart_points: set[str] = field(default_factory=set)
    turn: int = 0

    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self.handle)

    def read(self, texts: Any) -> Reading:
        """The parser that goes with this service's metrics text (JSON, to keep real parsing out of these tests)."""
        counters = {}
        for line in texts[0].splitlines()[1:]:
            label, queries, hits = line.split()
            counters[EngineId(0, label)] = EngineCounters(int(queries), int(hits))
        return Reading(tuple(texts), counters)

    def handle(self, request: httpx.Request) -> httpx.Response:
        """What the service answers."""
        self.requests.append(request)
        overridden = self.override(request)
        if overridden is not None:
            return overridden
        path = request.url.path
        if path in ("/v1/completions", "/v1/chat/completions"):
            return self._complete(request)
        if path == "/metrics":
            return httpx.Response(200, text=self._metrics(), headers={"content-type": "text/plain; version=1.0.0"})
        if path == "/reset_prefix_cache":
            return self._reset()
        if path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "tiny", "max_model_len": 8192}]})
        if path == "/tokenize":
            return httpx.Response(200, json={"tokens": self.encode(json.loads(request.content)["prompt"])})
        return httpx.Response(404, json={"detail": "Not Found"})

    def encode(self, prompt: str) -> list[int]:
        pieces = [prompt[start : start + 4] for start in range(0, len(prompt), 4)]
        return [0] * self.extra_prompt_tokens + [int.from_bytes(piece.encode(), "big") for piece in pieces]

    def _complete(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        tokens = self.encode(body["prompt"] if "prompt" in body else body["messages"][0]["content"])
        header = request.headers.get("x-data-parallel-rank")
        if header is not None and self.honour_header:
            rank = int(header)
        else:
            rank = self.turn % self.dp_size
            self.turn += 1
        size = self.block_size
        chains = [repr(tokens[: end * size]) for end in range(1, len(tokens) // size + 1)]
        cached = self.cached.setdefault(rank, {})
        hit = 0
        if self.caching:
            while hit < len(chains) and chains[hit] in cached:
                hit += 1
            if self.hybrid:
                hit = self._hybrid_hit(rank, chains, hit, (len(tokens) - 1) // size)
            hit = max(0, min(hit, (len(tokens) - 1) // size) - self.dropped_blocks)
            for chain in chains:
                cached.pop(chain, None)
                cached[chain] = None
            while self.capacity_blocks is not None and len(cached) > self.capacity_blocks:
                del cached[next(iter(cached))]
        if not self.counters_frozen:
            self.queries[rank] = self.queries.get(rank, 0) + len(tokens)
            self.hits[rank] = self.hits.get(rank, 0) + hit * size
            other = (rank + 1) % self.dp_size
            self.queries[other] = self.queries.get(other, 0) + self.foreign_queries
        usage: dict[str, Any] = {"prompt_tokens": len(tokens)}
        if self.tokens_details:
            usage["prompt_tokens_details"] = {"cached_tokens": hit * size}
        return httpx.Response(200, json={"choices": [{"text": "x"}], "usage": usage})

    def _hybrid_hit(self, rank: int, chains: list[str], left_at: int, end: int) -> int:
        points = [
            count for count in range(1, min(left_at, end) + 1) if f"{rank} {chains[count - 1]}" in self.restart_points
        ]
        for count in (left_at, end):
            if 0 < count <= len(chains):
                self.restart_points.add(f"{rank} {chains[count - 1]}")
        return max(points, default=0)

    def _metrics(self) -> str:
        lines = ["# label queries hits"]
        for rank in range(self.dp_size):
            lines.append(f"{self.labels[rank]} {self.queries.get(rank, 0)} {self.hits.get(rank, 0)}")
        return "\n".join(lines) + "\n"

    def _reset(self) -> httpx.Response:
        body = self.reset_bodies.pop(0) if len(self.reset_bodies) > 1 else self.reset_bodies[0]
        # vLLM says false where a rank is busy, and empties the idle ones.
        if self.reset_status == 200 and ("false" not in body or self.reset_ranks is not None):
            for rank in self.reset_ranks if self.reset_ranks is not None else range(self.dp_size):
                self.cached[rank] = {}
        return httpx.Response(self.reset_status, text=body)


class Clock:
    """Time that passes only while someone sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def connect(service: FakeService, **changes: Any) -> tuple[ServiceClient, CounterReader, Clock]:
    config = service_config(**{"dp_size": service.dp_size, "timeout_seconds": 5.0, **changes})
    client = ServiceClient(config, transport=service.transport())
    clock = Clock()
    return client, CounterReader(client, service.read, clock=clock, sleep=clock.sleep), clock


def failures(action: Callable[[], object]) -> list[str]:
    with pytest.raises(ServiceError) as caught:
        action()
    return [f"[{problem.code}] {problem.where}: {problem.message}" for problem in caught.value.problems]
