"""A plan's requests replayed through the cache model without their tokens.

No tokens are needed: a block of a group's canonical prefix is the same for all that share it, every other block is
unique.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from ais_bench_prefix_cache.datasets.format.capacity import KeptHits, RadixKept
from ais_bench_prefix_cache.kvcache.block_hash import BlockHash
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
    """Send one request."""
    replay.send(_named(request, replay.block_size), rank=request.rank, counted=request.counted)


def planned_kept_hits(
    requests: Iterable[PlannedRequest], *, engine: str, block_size: int, ranks: int, num_blocks: int, planned_hits: int
) -> KeptHits:
    """What ranks of ``num_blocks`` hit of the counted requests, by the rules of ``engine``."""
    if engine == "sglang":
        trees = RadixKept(num_blocks, page_size=block_size, ranks=ranks)
        for request in requests:
            trees.send(_named(request, block_size), request.rank, request.counted)
        return trees.kept()
    replay = TraceReplay(block_size=block_size, ranks=ranks)
    for request in requests:
        send_planned(replay, request)
    return KeptHits.by_curve(replay.capacity_curve(), num_blocks, planned_hits)


def _named(request: PlannedRequest, block_size: int) -> TraceRequest:
    """Only canonical blocks have names; whatever has none is like no other block."""
    shared = request.shared_tokens // block_size
    canonical = [_canonical_block(request.group, index) for index in range(shared)]
    return TraceRequest(canonical, request.prompt_tokens, request.output_tokens)


def _canonical_block(group: str, index: int) -> BlockHash:
    return BlockHash(hashlib.blake2b(f"{index} {group}".encode(), digest_size=16).digest())
