"""Replay requests, known by the hashes of their blocks, through the caches of some ranks: routed, several at once.

There is no time in a replay: a request is started when fewer than ``concurrency`` are running, the oldest ends first,
and while it runs it holds the blocks of its prompt and of its output. A request that finds no room waits for the oldest
ones of its rank to end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import CalculationError
from ais_bench_prefix_cache.kvcache.block_hash import BlockHash
from ais_bench_prefix_cache.kvcache.block_pool import BlockPool
from ais_bench_prefix_cache.kvcache.capacity_curve import CapacityCurve, capacity_curve
from ais_bench_prefix_cache.kvcache.stack_distances import BlockNames, StackDistances, block_names

RoutingRule = Literal["round-robin", "group", "field", "least-loaded", "prefix-aware"]

MOST_BLOCKS = 1 << 24
"""Blocks of all ranks together; a block takes some 100 bytes."""


@dataclass(frozen=True)
class TraceRequest:
    """One request.

    ``block_hashes`` name the full blocks of its prompt, each together with everything before it; ``rank`` is used by
    the routing rule ``field`` only.
    """

    block_hashes: Sequence[BlockHash]
    prompt_tokens: int
    output_tokens: int = 1
    group: str | None = None
    rank: int | None = None


@dataclass(frozen=True)
class ReplayedRequest:
    """Where a request went, and how many of its prompt tokens were found there."""

    rank: int
    hit_tokens: int


@dataclass
class RankTotals:
    """What one rank has counted, as vLLM's counters do: tokens, not requests."""

    requests: int = 0
    queries: int = 0
    hits: int = 0


class TraceReplay:
    """The caches of ``ranks`` ranks, each of ``num_blocks`` usable blocks (vLLM's ``num_gpu_blocks`` less one).

    With ``num_blocks=None`` nothing is ever forgotten, and :meth:`capacity_curve` answers for every number of blocks.

    Routing: ``round-robin``; ``group`` (groups go to ranks in turn, in the order in which they appear); ``field`` (the
    request's own ``rank``); ``least-loaded`` (fewest blocks held by running requests, then fewest prompt tokens so
    far); ``prefix-aware`` (longest cached prefix, then least loaded). Ties go to the lowest rank.

    Raises:
        CalculationError: a number is below 1.
    """

    def __init__(
        self,
        *,
        block_size: int,
        num_blocks: int | None = None,
        ranks: int = 1,
        routing: RoutingRule = "round-robin",
        concurrency: int = 1,
    ) -> None:
        for name, number in (("block_size", block_size), ("num_blocks", num_blocks), ("ranks", ranks),
                             ("concurrency", concurrency)):  # fmt: skip
            if number is not None and number < 1:
                raise CalculationError.of(Code.IMPOSSIBLE_VALUE, name, f"is {number}", allowed="1 or more")
        if ranks * (num_blocks or 1) > MOST_BLOCKS:
            raise CalculationError.of(
                Code.IMPOSSIBLE_VALUE,
                "num_blocks",
                f"{num_blocks or 1} blocks on each of {ranks} ranks are more than can be replayed",
                allowed=f"{MOST_BLOCKS} blocks in all; without a number of blocks nothing is ever forgotten",
            )
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.routing = routing
        self.totals = [RankTotals() for _ in range(ranks)]
        """By rank."""
        self._concurrency = concurrency
        self._pools = [] if num_blocks is None else [BlockPool(num_blocks) for _ in range(ranks)]
        self._stacks = [StackDistances() for _ in range(ranks)] if num_blocks is None else []
        self._running: deque[tuple[int, Any, int]] = deque()  # Rank, what it holds, number of blocks.
        self._held = [0] * ranks
        self._group_ranks: dict[str | None, int] = {}
        self._requests = 0
        self._generated = 0

    @property
    def evictions(self) -> list[int]:
        """Cached blocks overwritten so far, by rank."""
        return [pool.evictions for pool in self._pools] or [0] * len(self.totals)

    def send(self, request: TraceRequest, *, rank: int | None = None, counted: bool = True) -> ReplayedRequest:
        """Start a request, on ``rank`` where one is given; with ``counted=False`` (a warm-up) totals stay.

        Raises:
            CalculationError: it can never fit, or its ``rank`` does not exist.
        """
        while len(self._running) >= self._concurrency:
            self._end(0)
        names = block_names(request.block_hashes) if self._stacks else None
        if rank is None:
            rank = self._route(request, names)
        reusable = min(max(request.prompt_tokens - 1, 0) // self.block_size, len(request.block_hashes))
        # The last token that is generated is never computed, so it needs no slot.
        full, unfinished = divmod(request.prompt_tokens + max(request.output_tokens, 1) - 1, self.block_size)
        total = full + (unfinished > 0)
        if names is None:
            hit_blocks = self._run(rank, request, reusable, full, total)
        else:
            hit_blocks = self._stacks[rank].access(
                names, reusable_blocks=reusable, full_blocks=full, total_blocks=total, counted=counted
            )
            self._hold(rank, [], total)
        self._requests += 1
        hits = hit_blocks * self.block_size
        if counted:
            totals = self.totals[rank]
            totals.requests += 1
            totals.queries += request.prompt_tokens
            totals.hits += hits
        return ReplayedRequest(rank, hits)

    def capacity_curve(self) -> CapacityCurve:
        """Hits of the counted requests for every number of blocks.

        Raises:
            CalculationError: the number of blocks was given, or where requests go depends on it.
        """
        if self.num_blocks is not None or self._concurrency > 1 or self.routing == "prefix-aware":
            raise CalculationError.of(
                Code.NO_CAPACITY_CURVE,
                "capacity curve",
                "one replay answers for all numbers of blocks only where it is the same for all of them",
                allowed="an unbounded cache, one request at a time, and any routing but prefix-aware",
            )
        return capacity_curve(
            [stack.hits() for stack in self._stacks],
            smallest_num_blocks=max(stack.smallest_num_blocks for stack in self._stacks),
            block_size=self.block_size,
            queries=sum(totals.queries for totals in self.totals),
        )

    def _run(self, rank: int, request: TraceRequest, reusable: int, full: int, total: int) -> int:
        pool = self._pools[rank]
        hit_blocks = pool.longest_cached_prefix(request.block_hashes[:reusable])
        # A hit block in the free queue leaves it, so it costs a free block just as a new one does.
        while total - sum(pool.ref_cnt(block) > 0 for block in hit_blocks) > pool.num_free:
            self._end_oldest(rank, request, total)
        pool.touch(hit_blocks)
        hits = len(hit_blocks)
        blocks = hit_blocks + pool.allocate(total - hits)
        prompt_blocks = min(len(request.block_hashes), full)
        for block, block_hash in zip(blocks[hits:prompt_blocks], request.block_hashes[hits:], strict=False):
            pool.cache(block, block_hash)
        for block in blocks[max(hits, prompt_blocks) : full]:
            self._generated += 1
            pool.cache(block, b"output %d" % self._generated)
        self._hold(rank, blocks, total)
        return hits

    def _hold(self, rank: int, held: Any, count: int) -> None:
        """A request is running, with ``count`` blocks; ``held`` is what :meth:`_release` gets when it ends."""
        self._running.append((rank, held, count))
        self._held[rank] += count

    def _end_oldest(self, rank: int, request: TraceRequest, total: int) -> None:
        """Make room on ``rank`` for ``request``, which needs ``total`` blocks."""
        oldest = next((index for index, entry in enumerate(self._running) if entry[0] == rank), None)
        if oldest is None:
            raise CalculationError.of(
                Code.REQUEST_TOO_LARGE,
                f"request {self._requests + 1}",
                f"its {request.prompt_tokens} prompt and {request.output_tokens} output tokens need {total} blocks "
                f"of {self.block_size} tokens, but a rank has {self.num_blocks}",
            )
        self._end(oldest)

    def _end(self, index: int) -> None:
        rank, held, count = self._running[index]
        del self._running[index]
        self._held[rank] -= count
        self._release(rank, held)

    def _release(self, rank: int, held: Any) -> None:
        if self._pools:
            self._pools[rank].free(held)

    def _cached_blocks(self, rank: int, request: TraceRequest, names: BlockNames | None) -> int:
        """How many blocks of a prompt ``rank`` has."""
        if names is None:
            return len(self._pools[rank].longest_cached_prefix(request.block_hashes))
        return self._stacks[rank].match(names)

    def _route(self, request: TraceRequest, names: BlockNames | None) -> int:
        ranks = len(self.totals)
        if self.routing == "round-robin":
            return self._requests % ranks
        if self.routing == "group":
            return self._group_ranks.setdefault(request.group, len(self._group_ranks) % ranks)
        if self.routing == "field":
            if request.rank is None or not 0 <= request.rank < ranks:
                raise CalculationError.of(
                    Code.NO_SUCH_RANK,
                    f"request {self._requests + 1}",
                    "names no rank" if request.rank is None else f"names rank {request.rank}",
                    allowed=f"0 to {ranks - 1}",
                )
            return request.rank
        cached = [0] * ranks
        if self.routing == "prefix-aware":
            cached = [self._cached_blocks(rank, request, names) for rank in range(ranks)]
        return min(range(ranks), key=lambda rank: (-cached[rank], self._held[rank], self.totals[rank].queries, rank))
