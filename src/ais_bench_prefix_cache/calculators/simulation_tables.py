"""The result of ``simulate`` as tables and bars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ais_bench_prefix_cache.foundation.grid_table import render_grid


def simulation_tables(documents: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Documents of :meth:`Simulation.document`, of one file with several block sizes, for a terminal."""
    yield render_grid(
        ("Block size", "Blocks", "Ranks", "Requests", "Queries", "Hits", "Hit rate", "Evictions"),
        [
            (
                str(each["block_size"]),
                "unbounded" if each["blocks"] is None else f"{each['blocks']:,}",
                str(each["ranks"]),
                *(f"{each[key]:,}" for key in ("requests", "queries", "hits")),
                _percent(each["hit_rate"]),
                f"{each['evictions']:,}",
            )
            for each in documents
        ],
    )
    for each in documents:
        size = f" (block size {each['block_size']})" if len(documents) > 1 else ""
        for key, title in (("by_rank", "Rank"), ("by_group", "Group")):
            shares = each.get(key, {})
            if len(shares) > 1:
                yield (
                    title
                    + size
                    + "\n"
                    + render_grid(
                        (title, "Requests", "Queries", "Hits", "Hit rate"),
                        [
                            (
                                name,
                                *(f"{share[count]:,}" for count in ("requests", "queries", "hits")),
                                _percent(share["hit_rate"]),
                            )
                            for name, share in shares.items()
                        ],
                    )
                )
        if "capacity_curve" in each:
            yield "\n".join([f"Hit rate against blocks of a rank{size}", *map(_bar, each["capacity_curve"]["points"])])


def _bar(point: dict[str, Any]) -> str:
    return f"{point['blocks']:>12,} {_percent(point['hit_rate']):>7} {'█' * round(point['hit_rate'] * 60)}"


def _percent(rate: float) -> str:
    return f"{rate * 100:.2f}%"
