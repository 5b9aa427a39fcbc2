"""What a cache of a known size hits: the data set replayed through ``kvcache``'s block pool, or only its plan.

No tokens are needed: a block of a group's canonical prefix is the same for all that share it, every other block is
unique. Requests are replayed one after another, so with many in flight at once the real cache evicts a little earlier.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
from ais_bench_prefix_cache.analysis.run_facts import CachePrediction
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.names import NO_RANK
from ais_bench_prefix_cache.kvcache.block_hash import BlockHash
from ais_bench_prefix_cache.kvcache.capacity_curve import CapacityCurve
from ais_bench_prefix_cache.kvcache.trace_replay import TraceReplay, TraceRequest

MOST_BLOCKS = 5_000_000
"""A data set of more blocks is not replayed: it would take longer than it tells."""


@dataclass(frozen=True)
class WarmupRequest:
    """One entry of the manifest's warm-up plan."""

    group_id: str
    dp_rank: int
    input_tokens: int
    shared_prefix_tokens: int


def predict_hits(
    columns: RequestColumns,
    *,
    block_size: int,
    capacity_tokens: int,
    dp_size: int,
    warmup: Sequence[WarmupRequest] = (),
) -> CachePrediction | None:
    """The hits of the formal requests on caches of ``capacity_tokens`` for each rank, one block of which is never used.

    None where nothing can be said: the ranks of requests are not planned (warm-up mode on several ranks), the columns
    lack lengths, a request does not fit, the data set is too large to replay; or where everything fits, so that nothing
    is evicted.
    """
    usable = capacity_tokens // block_size - 1
    if len(columns.shared_prefix_tokens) != len(columns) or (dp_size > 1 and NO_RANK in columns.dp_ranks):
        return None
    requests = list(_requests(columns, warmup))
    blocks = [0] * dp_size
    for request in requests:
        size = -(-request.tokens // block_size)
        if size > usable:
            return None
        blocks[request.rank] += size
    if max(blocks) <= usable or sum(blocks) > MOST_BLOCKS:
        return None

    replay = TraceReplay(block_size=block_size, num_blocks=usable, ranks=dp_size)
    for request in requests:
        _send(replay, request)
    return CachePrediction(capacity_tokens, sum(totals.hits for totals in replay.totals), sum(replay.evictions))


def capacity_warning(
    columns: RequestColumns,
    *,
    block_size: int,
    kv_cache_blocks: int,
    dp_size: int,
    warmup: Sequence[WarmupRequest] = (),
) -> dict[str, Any] | None:
    """A warning object where a server with ``kv_cache_blocks`` blocks on each rank cannot hold what the plan counts on.

    Needs no tokens, only the plan: hits for every number of blocks come from one replay. Requests without a planned
    rank are taken to go to the ranks in turn.
    """
    in_turn = [index % dp_size if rank == NO_RANK else rank for index, rank in enumerate(columns.dp_ranks)]
    replay = TraceReplay(block_size=block_size, ranks=dp_size)
    for request in _requests(replace(columns, dp_ranks=in_turn), warmup):
        _send(replay, request)
    return warning_of_curve(
        replay.capacity_curve(), kv_cache_blocks=kv_cache_blocks, planned_hits=sum(columns.hit_tokens)
    )


def warning_of_curve(curve: CapacityCurve, *, kv_cache_blocks: int, planned_hits: int) -> dict[str, Any] | None:
    """The same from the hits for every number of blocks."""
    block_size, usable = curve.block_size, kv_cache_blocks - 1
    planned_rate = planned_hits / curve.queries
    warning = {
        "code": Code.CACHE_TOO_SMALL.value,
        "kv_cache_blocks": kv_cache_blocks,
        "capacity_tokens": kv_cache_blocks * block_size,
        "planned_hits": planned_hits,
        "theoretical_hit_rate": planned_rate,
    }
    if usable < curve.smallest_num_blocks:
        return warning | {
            "message": f"the largest request needs {curve.smallest_num_blocks} blocks of {block_size} tokens, but a "
            f"rank has {usable} to give (service.kv_cache_blocks {kv_cache_blocks}, less one that is never used)",
            "needed_kv_cache_blocks": curve.smallest_num_blocks + 1,
            "predicted_hits": None,
            "reachable_hit_rate": None,
        }
    hits = curve.hit_tokens(usable)
    if hits >= planned_hits:
        return None
    needed = curve.blocks_for(planned_hits) + 1
    return warning | {
        "message": f"with {kv_cache_blocks} blocks (service.kv_cache_blocks) a rank evicts blocks that the plan counts "
        f"on: a hit rate of {hits / curve.queries:.4f} is reachable, not {planned_rate:.4f}; the plan needs {needed} "
        "blocks, and more with many requests in flight",
        "needed_kv_cache_blocks": needed,
        "predicted_hits": hits,
        "reachable_hit_rate": hits / curve.queries,
    }


@dataclass(frozen=True)
class _Request:
    """``tokens`` is all that gets a slot: the prompt, and the output but for its last token."""

    rank: int
    group_id: str
    prompt_tokens: int
    shared_tokens: int
    tokens: int
    counted: bool


def _requests(columns: RequestColumns, warmup: Sequence[WarmupRequest]) -> Iterator[_Request]:
    for entry in warmup:
        yield _Request(
            entry.dp_rank, entry.group_id, entry.input_tokens, entry.shared_prefix_tokens, entry.input_tokens, False
        )
    for index in range(len(columns)):
        prompt_tokens = columns.input_tokens[index]
        yield _Request(
            max(0, columns.dp_ranks[index]),
            columns.group_ids[index],
            prompt_tokens,
            columns.shared_prefix_tokens[index],
            prompt_tokens + columns.max_tokens[index] - 1,
            True,
        )


def _send(replay: TraceReplay, request: _Request) -> None:
    """Only canonical blocks have names; whatever has none is like no other block."""
    shared = request.shared_tokens // replay.block_size
    canonical = [_canonical_block(request.group_id, index) for index in range(shared)]
    replay.send(
        TraceRequest(canonical, request.prompt_tokens, request.tokens - request.prompt_tokens + 1),
        rank=request.rank,
        counted=request.counted,
    )


def _canonical_block(group_id: str, index: int) -> BlockHash:
    return BlockHash(hashlib.blake2b(f"{index} {group_id}".encode(), digest_size=16).digest())
