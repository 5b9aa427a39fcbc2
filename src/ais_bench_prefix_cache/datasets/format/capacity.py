"""The warning that a server of known size cannot hold what a data set counts on."""

from __future__ import annotations

from typing import Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.kvcache.capacity_curve import CapacityCurve

CAPACITY_WARNING = Code.CACHE_TOO_SMALL.value


def capacity_warnings(curve: CapacityCurve, kv_cache_blocks: int | None, planned_hits: int) -> list[dict[str, Any]]:
    """The warning where a rank of ``kv_cache_blocks`` blocks hits fewer than ``planned_hits`` tokens; else empty.

    ``curve`` has the hits for every number of blocks. Empty too where nobody said how many blocks a rank has.
    """
    if kv_cache_blocks is None:
        return []
    block_size, usable = curve.block_size, kv_cache_blocks - 1
    planned_rate = planned_hits / curve.queries
    warning = {
        "code": CAPACITY_WARNING,
        "kv_cache_blocks": kv_cache_blocks,
        "capacity_tokens": kv_cache_blocks * block_size,
        "planned_hits": planned_hits,
        "theoretical_hit_rate": planned_rate,
    }
    if usable < curve.smallest_num_blocks:
        return [
            warning
            | {
                "message": f"the largest request needs {curve.smallest_num_blocks} blocks of {block_size} tokens, but "
                f"a rank has {usable} to give (service.kv_cache_blocks {kv_cache_blocks}, less one that is never used)",
                "needed_kv_cache_blocks": curve.smallest_num_blocks + 1,
                "predicted_hits": None,
                "reachable_hit_rate": None,
            }
        ]
    hits = curve.hit_tokens(usable)
    if hits >= planned_hits:
        return []
    needed = curve.blocks_for(planned_hits) + 1
    return [
        warning
        | {
            "message": f"with {kv_cache_blocks} blocks (service.kv_cache_blocks) a rank evicts blocks that the plan "
            f"counts on: sent one after another, its requests hit {hits / curve.queries:.4f} of their tokens, not "
            f"{planned_rate:.4f}, and several at once, which evict in another order, a little more or less; the plan "
            f"needs {needed} blocks, and more with many requests in flight",
            "needed_kv_cache_blocks": needed,
            "predicted_hits": hits,
            "reachable_hit_rate": hits / curve.queries,
        }
    ]
