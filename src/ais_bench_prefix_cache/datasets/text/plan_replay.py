"""A plan's requests replayed through the cache model without their tokens.

No tokens are needed: a block of a group's canonical prefix is the same for all that share it, every other block is
unique.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from ais_bench_prefix_cache.kvcache.block_hash import BlockHash
from ais_bench_prefix_cache.kvcache.capacity_curve import CapacityCurve
from ais_bench_prefix_cache.kvcache.trace_replay import TraceReplay, TraceRequest


@dataclass(frozen=True)
class PlannedRequest:
    """What a cache sees of one request; warm-ups are not ``counted``. All but ``group`` and ``rank`` in tokens."""

    group: str
    rank: int
    prompt_tokens: int
    shared_tokens: int
    output_tokens: int = 1
    counted: bool = True

    @property
    def tokens(self) -> int:
        """All that gets a slot: the prompt, and the output but for its last token."""
        return self.prompt_tokens + self.output_tokens - 1


def send_planned(replay: TraceReplay, request: PlannedRequest) -> None:
    """Send one request. Only canonical blocks have names; whatever has none is like no other block."""
    shared = request.shared_tokens // replay.block_size
    canonical = [_canonical_block(request.group, index) for index in range(shared)]
    trace_request = TraceRequest(canonical, request.prompt_tokens, request.output_tokens)
    replay.send(trace_request, rank=request.rank, counted=request.counted)


def planned_capacity_curve(requests: Iterable[PlannedRequest], *, block_size: int, ranks: int) -> CapacityCurve:
    """The hits of the counted requests for every number of blocks that a rank may have, from one replay."""
    replay = TraceReplay(block_size=block_size, ranks=ranks)
    for request in requests:
        send_planned(replay, request)
    return replay.capacity_curve()


def _canonical_block(group: str, index: int) -> BlockHash:
    return BlockHash(hashlib.blake2b(f"{index} {group}".encode(), digest_size=16).digest())
