"""What a cache of a known size would have hit: the data set replayed through ``kvcache``'s block pool.

No tokens are needed: a block of a group's canonical prefix is the same for all that share it, every other block is
unique. Requests are replayed one after another, so with many in flight at once the real cache evicts a little earlier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ais_bench_prefix_cache.analysis.planned_traffic import NO_RANK, RequestColumns
from ais_bench_prefix_cache.analysis.run_facts import CachePrediction
from ais_bench_prefix_cache.kvcache.block_hash import BlockHash
from ais_bench_prefix_cache.kvcache.block_pool import BlockPool

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

    pools = [BlockPool(usable) for _ in range(dp_size)]
    hit_tokens = 0
    for number, request in enumerate(requests):
        hits = _send(pools[request.rank], request, number, block_size)
        hit_tokens += hits * block_size if request.counted else 0
    return CachePrediction(capacity_tokens, hit_tokens, sum(pool.evictions for pool in pools))


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


def _send(pool: BlockPool, request: _Request, number: int, block_size: int) -> int:
    """Run one request to its end; returns how many blocks it hit."""
    shared = request.shared_tokens // block_size
    canonical = [_canonical_block(request.group_id, index) for index in range(shared)]
    hit_blocks = pool.longest_cached_prefix(canonical[: (request.prompt_tokens - 1) // block_size])
    hits = len(hit_blocks)
    pool.touch(hit_blocks)
    blocks = hit_blocks + pool.allocate(-(-request.tokens // block_size) - hits)
    for index in range(hits, request.tokens // block_size):
        pool.cache(blocks[index], canonical[index] if index < shared else BlockHash(b"%d %d" % (number, index)))
    pool.free(blocks)
    return hits


def _canonical_block(group_id: str, index: int) -> BlockHash:
    return BlockHash(f"{group_id} {index}".encode())
