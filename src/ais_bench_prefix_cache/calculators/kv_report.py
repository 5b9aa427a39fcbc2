"""What ``kv`` answers: memory of requests, page tables, fragmentation, a shared prefix, and what fits into a cache.

The document is JSON-ready; sizes are bytes on one tensor-parallel rank, lengths are tokens.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ais_bench_prefix_cache.calculators.number_checks import require_at_least_one
from ais_bench_prefix_cache.calculators.page_table import page_table
from ais_bench_prefix_cache.calculators.sizing import (
    CacheSizing,
    fragmentation,
    prefixes_that_fit,
    requests_that_fit,
    shared_prefix_memory,
)
from ais_bench_prefix_cache.foundation.grid_table import render_grid

GIB = 2**30


@dataclass(frozen=True)
class SizedModel:
    """A model's layers, the type of its cached numbers, and the ranks that share its heads."""

    sizing: CacheSizing
    dtype: str
    tensor_parallel: int = 1


@dataclass(frozen=True)
class Load:
    """The load to be answered for. A part is answered where its question is asked: see :func:`kv_document`.

    ``free_blocks``: physical blocks in the order in which they are taken. ``fragmentation``: block sizes to compare.
    ``cache_gib`` or ``cache_blocks``: the cache of one rank, vLLM's null block included.
    """

    block_size: int = 16
    lengths: tuple[int, ...] = ()
    requests: tuple[int, ...] = (1,)
    free_blocks: tuple[int, ...] | None = None
    tokens: tuple[int, ...] = ()
    fragmentation: tuple[int, ...] | None = None
    prefix: int | None = None
    suffix: int | None = None
    cache_gib: float | None = None
    cache_blocks: int | None = None


def kv_document(model: SizedModel, load: Load) -> dict[str, Any]:
    """Every answer that ``load`` asks for.

    Raises:
        CalculationError: a number is impossible, or the model cannot be divided as asked.
    """
    require_at_least_one(
        **{
            "--block-size": load.block_size,
            "--lengths": min(load.lengths, default=1),
            "--requests": min(load.requests),
        }
    )
    sizing = model.sizing
    document: dict[str, Any] = {
        "bytes_per_token": sizing.bytes_per_token,
        "state_bytes": sizing.state_bytes,
        "dtype": model.dtype,
        "tensor_parallel": model.tensor_parallel,
        "layers": [asdict(layer) for layer in sizing.layers],
        "block_size": load.block_size,
        "bytes_per_block": sizing.block_bytes(load.block_size),
        "memory": [
            {"length": length, "requests": requests, **_bytes(requests * sizing.request_bytes(length))}
            for length in load.lengths
            for requests in load.requests
        ],
    }
    if load.free_blocks is not None:
        document["page_tables"] = [_page_table(load, length) for length in load.lengths]
    if load.fragmentation is not None:
        document["fragmentation"] = [_fragmentation(load.lengths, size) for size in load.fragmentation]
    if load.suffix is not None:
        document["shared_prefix"] = [_shared_prefix(load, load.suffix, sizing, requests) for requests in load.requests]
    if load.cache_gib is not None:
        cache_bytes = int(load.cache_gib * GIB)
        document["capacity"] = _capacity(load, sizing, sizing.blocks_in(cache_bytes, load.block_size))
    elif load.cache_blocks is not None:
        document["capacity"] = _capacity(load, sizing, load.cache_blocks)
    return document


def _bytes(count: int) -> dict[str, Any]:
    return {"bytes": count, "gib": count / GIB}


def _page_table(load: Load, length: int) -> dict[str, Any]:
    table = page_table(length, load.block_size, load.free_blocks or ())
    return {
        "length": length,
        "blocks": [asdict(entry) for entry in table.entries],
        "allocated_tokens": table.allocated_tokens,
        "tail_waste_tokens": table.tail_waste_tokens,
        "tokens": [
            {"token": token, **dict(zip(("physical_block", "offset"), table.locate(token), strict=True))}
            for token in load.tokens
        ],
    }


def _fragmentation(lengths: tuple[int, ...], block_size: int) -> dict[str, Any]:
    result = fragmentation(lengths, block_size)
    return {
        "block_size": block_size,
        "tokens": result.tokens,
        "allocated_tokens": result.allocated_tokens,
        "wasted_tokens": result.wasted_tokens,
        "blocks": result.blocks,
    }


def _shared_prefix(load: Load, suffix: int, sizing: CacheSizing, requests: int) -> dict[str, Any]:
    prefix = load.prefix or 0
    memory = shared_prefix_memory(sizing, prefix_tokens=prefix, suffix_tokens=suffix, requests=requests)
    return {
        "prefix_tokens": prefix,
        "suffix_tokens": suffix,
        "requests": requests,
        "separate": _bytes(memory.separate_bytes),
        "shared": _bytes(memory.shared_bytes),
        "saved": _bytes(memory.saved_bytes),
    }


def _capacity(load: Load, sizing: CacheSizing, blocks: int) -> dict[str, Any]:
    size = load.block_size
    # vLLM keeps one block, its null block, out of use.
    usable = max(0, blocks - 1)
    groups = sizing.block_groups()
    block_of_each_group = sum(group.count * sizing.group_block_bytes(group, size) for group in groups)
    capacity: dict[str, Any] = {
        "blocks": blocks,
        "usable_blocks": usable,
        "usable_tokens": usable * sizing.pool_block_bytes(size) // block_of_each_group * size,
        "bytes_per_block": sizing.pool_block_bytes(size),
        "block_groups": [{"window": group.window, "count": group.count, "layers": group.layers} for group in groups],
        "requests": [],
    }
    for length in load.lengths:
        fitting = {"length": length, "alone": requests_that_fit(sizing, usable, length=length, block_size=size)}
        if load.prefix and load.prefix < length:
            fitting["sharing_the_prefix"] = requests_that_fit(
                sizing, usable, length=length, block_size=size, prefix_tokens=load.prefix
            )
        capacity["requests"].append(fitting)
    if load.prefix:
        capacity["canonical_prefixes"] = prefixes_that_fit(sizing, usable, prefix_tokens=load.prefix, block_size=size)
    return capacity


def kv_tables(document: dict[str, Any]) -> str:
    """The document of :func:`kv_document` as tables for a terminal."""

    def table(title: str, header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
        return f"{title}\n{render_grid(header, [tuple(map(_cell, row)) for row in rows])}"

    header: tuple[str, ...] = ("Layers", "Kind", "Window", "Numbers per token")
    rows: list[tuple[Any, ...]] = [
        (layer["count"], layer["kind"], layer["window"] or "-", _per_token(layer)) for layer in document["layers"]
    ]
    if document["state_bytes"]:
        header = (*header, "Bytes of a state")
        rows = [(*row, layer["state_bytes"] or "-") for row, layer in zip(rows, document["layers"], strict=True)]
    parts = [
        table(
            f"KV cache of one rank ({document['dtype']}, tensor parallel {document['tensor_parallel']})", header, rows
        ),
        f"{document['bytes_per_token']:,} bytes per token ({document['bytes_per_token'] / 1024:g} KiB), "
        f"{document['bytes_per_block']:,} bytes per block of {document['block_size']} tokens"
        + (f", {document['state_bytes']:,} bytes of states per request" if document["state_bytes"] else ""),
    ]
    if document["memory"]:
        rows = [(row["length"], row["requests"], row["bytes"], row["gib"]) for row in document["memory"]]
        parts.append(table("Memory", ("Length", "Requests", "Bytes", "GiB"), rows))
    for paged in document.get("page_tables", ()):
        title = (
            f"Page table of {paged['length']} tokens: {paged['allocated_tokens']} positions allocated, "
            f"{paged['tail_waste_tokens']} wasted in the last block"
        )
        rows = [tuple(block.values()) for block in paged["blocks"]]
        parts.append(table(title, ("Logical block", "Physical block", "First token", "Used"), rows))
        if paged["tokens"]:
            rows = [tuple(token.values()) for token in paged["tokens"]]
            parts.append(table("Where its tokens lie", ("Token", "Physical block", "Offset"), rows))
    if "fragmentation" in document:
        rows = [tuple(row.values()) for row in document["fragmentation"]]
        header = ("Block size", "Tokens", "Allocated", "Wasted", "Block table entries")
        parts.append(table("Fragmentation of all lengths together", header, rows))
    if "shared_prefix" in document:
        rows = [
            (
                *(row[key] for key in ("prefix_tokens", "suffix_tokens", "requests")),
                *(row[key]["gib"] for key in ("separate", "shared", "saved")),
            )
            for row in document["shared_prefix"]
        ]
        header = ("Prefix", "Suffix", "Requests", "Separate GiB", "Shared GiB", "Saved GiB")
        parts.append(table("A shared prefix", header, rows))
    if "capacity" in document:
        capacity = document["capacity"]
        rows = [(f"requests of {row['length']} tokens", row["alone"]) for row in capacity["requests"]]
        rows += [
            (f"requests of {row['length']} tokens that share the prefix", row["sharing_the_prefix"])
            for row in capacity["requests"]
            if "sharing_the_prefix" in row
        ]
        if "canonical_prefixes" in capacity:
            rows.append(("canonical prefixes", capacity["canonical_prefixes"]))
        title = (
            f"What fits into {capacity['usable_blocks']:,} usable of {capacity['blocks']:,} blocks of "
            f"{capacity['bytes_per_block']:,} bytes"
        )
        parts.append(table(title, ("What", "How many"), rows or [("tokens", capacity["usable_tokens"])]))
    return "\n\n".join(parts)


def _per_token(layer: dict[str, Any]) -> Any:
    fixed = layer["fixed_bytes_per_token"]
    return layer["numbers_per_token"] or (f"{fixed} bytes" if fixed else "-")


def _cell(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
