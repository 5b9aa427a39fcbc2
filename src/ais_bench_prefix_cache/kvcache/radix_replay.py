"""The replay of a trace, through SGLang's caches instead of vLLM's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import CalculationError
from ais_bench_prefix_cache.kvcache.block_hash import BlockHash
from ais_bench_prefix_cache.kvcache.capacity_curve import CapacityCurve
from ais_bench_prefix_cache.kvcache.radix_cache import RadixCache, RadixSequence
from ais_bench_prefix_cache.kvcache.stack_distances import BlockNames
from ais_bench_prefix_cache.kvcache.trace_replay import RoutingRule, TraceReplay, TraceRequest


class RadixReplay(TraceReplay):
    """As :class:`TraceReplay`, with pages for blocks and :class:`RadixCache` for the block pool.

    A page stands as one token in the tree, named by its hash, which names all that is before it, too. Each request
    arrives after the prompts of those before it have been computed, and before their answers have, as far as
    ``concurrency`` lets them run together.
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
        super().__init__(
            block_size=block_size, num_blocks=num_blocks, ranks=ranks, routing=routing, concurrency=concurrency
        )
        # Neither a pool of blocks nor distances in a stack say what a tree of segments keeps.
        self._pools, self._stacks = [], []
        self._trees = [RadixCache(1, num_blocks) for _ in range(ranks)]

    @property
    def evictions(self) -> list[int]:
        """Cached pages dropped so far, by rank."""
        return [tree.evicted_tokens for tree in self._trees]

    def capacity_curve(self) -> CapacityCurve:
        """Not to be had.

        Raises:
            CalculationError: always.
        """
        raise CalculationError.of(
            Code.NO_CAPACITY_CURVE,
            "capacity curve",
            "what SGLang keeps in a smaller cache is not a part of what it keeps in a larger one",
            hint="Simulate each size with --blocks.",
        )

    def _run(self, rank: int, request: TraceRequest, reusable: int, full: int, total: int) -> int:
        tree = self._trees[rank]
        whole, unfinished = divmod(request.prompt_tokens, self.block_size)
        prompt = whole + (unfinished > 0)
        names = _names(request.block_hashes[:whole])
        # With all of its pages and no more, the tree's own rule leaves out the page of the prompt's last token.
        sequence = tree.sequence(names + self._new_names(prompt - len(names)))
        sequence.num_prompt_tokens = whole
        while True:
            hits = tree.admit(sequence)
            if tree.num_pages is None or tree.num_locked_tokens + total - hits <= tree.num_pages:
                break
            tree.release(sequence)
            self._end_oldest(rank, request, total)
        sequence.token_ids += self._new_names(total - prompt)
        # SGLang makes room for a page more than a prompt needs, except where a page is a token,
        tree.make_room(prompt - hits + (self.block_size > 1))
        tree.compute(sequence, prompt - hits)
        tree.insert(sequence, whole)
        if request.output_tokens > 1:
            # and for a page in each step after that, whether the step begins one or not.
            before_last_step = -(-(request.prompt_tokens + request.output_tokens - 2) // self.block_size)
            tree.make_room(before_last_step - prompt + 1)
            tree.compute(sequence, total - prompt)
        self._hold(rank, (sequence, full), total)
        return hits

    def _release(self, rank: int, held: tuple[RadixSequence, int]) -> None:
        sequence, full = held
        self._trees[rank].insert(sequence, full)
        self._trees[rank].release(sequence)

    def _cached_blocks(self, rank: int, request: TraceRequest, names: BlockNames | None) -> int:
        tree = self._trees[rank]
        return tree.lookup(tree.sequence([*_names(request.block_hashes), 0]))

    def _new_names(self, count: int) -> list[int]:
        """Pages that no prompt has."""
        self._generated += count
        return list(range(-self._generated, count - self._generated))


def _names(block_hashes: Sequence[BlockHash]) -> list[int]:
    """63 bits of each hash."""
    names = np.frombuffer(b"".join(block_hash[:8].ljust(8, b"\0") for block_hash in block_hashes), dtype="<u8") >> 1
    return [int(name) for name in names]


def replay_of(engine: str) -> type[TraceReplay]:
    """The replay by the rules of ``vllm`` or ``sglang``."""
    return RadixReplay if engine == "sglang" else TraceReplay
