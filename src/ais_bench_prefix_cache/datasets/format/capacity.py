"""The warning that a server of known size cannot hold what a data set counts on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.kvcache.capacity_curve import CapacityCurve
from ais_bench_prefix_cache.kvcache.radix_replay import RadixReplay
from ais_bench_prefix_cache.kvcache.trace_replay import TraceRequest

CAPACITY_WARNING = Code.CACHE_TOO_SMALL.value


@dataclass(frozen=True)
class KeptHits:
    """What ranks of ``num_blocks`` blocks, of which ``unused`` are never used, hit of a plan.

    ``largest`` is what the largest request needs, ``hit_tokens`` None where it does not fit. ``needed`` blocks hit all
    that is planned, where one replay tells it. ``queries`` are tokens.
    """

    num_blocks: int
    unused: int
    block_size: int
    queries: int
    largest: int
    hit_tokens: int | None
    needed: int | None = None

    @classmethod
    def by_curve(cls, curve: CapacityCurve, num_blocks: int, planned_hits: int) -> KeptHits:
        """By vLLM's rules: ``curve`` has the hits for every number of blocks, one of which is never used."""
        usable = num_blocks - 1
        return cls(
            num_blocks,
            1,
            curve.block_size,
            curve.queries,
            curve.smallest_num_blocks,
            None if usable < curve.smallest_num_blocks else curve.hit_tokens(usable),
            curve.blocks_for(planned_hits) + 1,
        )


class RadixKept:
    """The same by SGLang's rules, with pages for blocks: requests are sent to trees of that size, one after another."""

    def __init__(self, num_pages: int, *, page_size: int, ranks: int) -> None:
        self._replay = RadixReplay(block_size=page_size, num_blocks=num_pages, ranks=ranks)
        self._num_pages = num_pages
        self._largest = 0
        self._queries = 0

    def send(self, request: TraceRequest, rank: int, counted: bool = True) -> None:
        """The next request; nothing is replayed any more once one does not fit."""
        page_size = self._replay.block_size
        # A prompt makes room for its own tokens and, where a page is more than a token, a page more.
        pages = -(-(request.prompt_tokens + max(request.output_tokens, 1) - 1) // page_size) + (page_size > 1)
        self._largest = max(self._largest, pages)
        self._queries += request.prompt_tokens if counted else 0
        if self._largest <= self._num_pages:
            self._replay.send(request, rank=rank, counted=counted)

    def kept(self) -> KeptHits:
        """After the last request."""
        fits = self._largest <= self._num_pages
        return KeptHits(
            self._num_pages,
            0,
            self._replay.block_size,
            self._queries,
            self._largest,
            sum(totals.hits for totals in self._replay.totals) if fits else None,
        )


def capacity_warnings(kept: KeptHits | None, planned_hits: int) -> list[dict[str, Any]]:
    """The warning where a rank hits fewer than ``planned_hits`` tokens; empty too where nobody said how large it is."""
    if kept is None:
        return []
    blocks, block_size = kept.num_blocks, kept.block_size
    planned_rate = planned_hits / kept.queries
    warning = {
        "code": CAPACITY_WARNING,
        "kv_cache_blocks": blocks,
        "capacity_tokens": blocks * block_size,
        "planned_hits": planned_hits,
        "theoretical_hit_rate": planned_rate,
    }
    if kept.hit_tokens is None:
        less = ", less one that is never used" if kept.unused else ""
        return [
            warning
            | {
                "message": f"the largest request needs {kept.largest} blocks of {block_size} tokens, but "
                f"a rank has {blocks - kept.unused} to give (service.kv_cache_blocks {blocks}{less})",
                "needed_kv_cache_blocks": kept.largest + kept.unused,
                "predicted_hits": None,
                "reachable_hit_rate": None,
            }
        ]
    if kept.hit_tokens >= planned_hits:
        return []
    rate = kept.hit_tokens / kept.queries
    needs = (
        "" if kept.needed is None else f"; the plan needs {kept.needed} blocks, and more with many requests in flight"
    )
    return [
        warning
        | {
            "message": f"with {blocks} blocks (service.kv_cache_blocks) a rank evicts blocks that the plan "
            f"counts on: sent one after another, its requests hit {rate:.4f} of their tokens, not "
            f"{planned_rate:.4f}, and several at once, which evict in another order, a little more or less{needs}",
            "needed_kv_cache_blocks": kept.needed,
            "predicted_hits": kept.hit_tokens,
            "reachable_hit_rate": rate,
        }
    ]
