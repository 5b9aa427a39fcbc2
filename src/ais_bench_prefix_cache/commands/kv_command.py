"""``kv``: how much memory a KV cache takes, and what fits into it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.commands.argument_types import integer, integers, positive_integer, positive_number
from ais_bench_prefix_cache.foundation.codes import Code

if TYPE_CHECKING:
    from ais_bench_prefix_cache.calculators.sizing import CacheSizing

DESCRIPTION = (
    "Size the KV cache of a model, from its config.json or from numbers. Lists are written with commas. "
    "All sizes are those of one tensor-parallel rank."
)
DTYPES = ("fp32", "fp16", "bf16", "fp8", "int8")
MODEL_OPTIONS = ("layers", "kv_heads", "head_dim", "latent_dim", "rotary_dim", "window", "window_layers")
GIB = 2**30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``kv``."""
    model = parser.add_argument_group("the model, from a file or from numbers")
    model.add_argument("--model-config", type=Path, metavar="FILE", help="the model's config.json")
    model.add_argument("--layers", type=integer, metavar="N", help="layers that keep a cache")
    model.add_argument("--kv-heads", type=integer, metavar="N", help="KV heads of a layer (1: multi-query attention)")
    model.add_argument("--head-dim", type=integer, metavar="N", help="numbers in a key or value vector of one head")
    model.add_argument("--latent-dim", type=integer, metavar="N", help="latent attention: kv_lora_rank")
    model.add_argument("--rotary-dim", type=integer, metavar="N", help="latent attention: qk_rope_head_dim")
    model.add_argument("--window", type=integer, metavar="TOKENS", help="sliding window of some layers")
    model.add_argument("--window-layers", type=integer, metavar="N", help="how many of the layers have it (all)")
    model.add_argument("--dtype", choices=DTYPES, help="type of the cached numbers (the model's own, else bf16)")
    model.add_argument("--tensor-parallel", type=integer, default=1, metavar="N", help="ranks that share the heads (1)")
    load = parser.add_argument_group("the load")
    load.add_argument("--block-size", type=integer, default=16, metavar="TOKENS", help="tokens of a block (16)")
    load.add_argument("--lengths", type=integers, default=[], metavar="LIST", help="lengths of requests in tokens")
    load.add_argument("--requests", type=integers, default=[1], metavar="LIST", help="requests at the same time (1)")
    load.add_argument(
        "--free-blocks",
        type=integers,
        metavar="LIST",
        help="physical blocks in the order in which they are taken: the page table of a request of each length",
    )
    load.add_argument(
        "--tokens", type=integers, default=[], metavar="LIST", help="with --free-blocks: where these tokens lie"
    )
    load.add_argument(
        "--fragmentation", type=integers, metavar="LIST", help="block sizes: what each makes of all lengths together"
    )
    load.add_argument("--prefix", type=integer, metavar="TOKENS", help="tokens that all requests share at their start")
    load.add_argument("--suffix", type=integer, metavar="TOKENS", help="tokens of their own after the shared prefix")
    cache = parser.add_argument_group("the cache: what fits").add_mutually_exclusive_group()
    cache.add_argument("--cache-gib", type=positive_number, metavar="GIB", help="memory for the cache on one rank")
    cache.add_argument(
        "--cache-blocks", type=positive_integer, metavar="N", help="its blocks, as the server reports them"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")


def execute(arguments: argparse.Namespace) -> int:
    """Run ``kv``; returns the exit code."""
    from ais_bench_prefix_cache.calculators.number_checks import require_at_least_one
    from ais_bench_prefix_cache.commands.console import print_json

    _refuse_options_without_effect(arguments)
    sizing, dtype = _sizing(arguments)
    require_at_least_one(
        **{"--block-size": arguments.block_size}, **{"--lengths": min(arguments.lengths, default=1)},
        **{"--requests": min(arguments.requests)},
    )  # fmt: skip
    document: dict[str, Any] = {
        "bytes_per_token": sizing.bytes_per_token,
        "dtype": dtype,
        "tensor_parallel": arguments.tensor_parallel,
        "layers": [
            {
                "kind": layer.kind,
                "count": layer.count,
                "numbers_per_token": layer.numbers_per_token,
                "window": layer.window,
            }
            for layer in sizing.layers
        ],
        "block_size": arguments.block_size,
        "bytes_per_block": sizing.block_bytes(arguments.block_size),
        "memory": [
            {"length": length, "requests": requests, **_bytes(requests * sizing.request_bytes(length))}
            for length in arguments.lengths
            for requests in arguments.requests
        ],
    }
    if arguments.free_blocks is not None:
        document["page_tables"] = [_page_table(arguments, length) for length in arguments.lengths]
    if arguments.fragmentation is not None:
        document["fragmentation"] = [_fragmentation(arguments.lengths, size) for size in arguments.fragmentation]
    if arguments.suffix is not None:
        document["shared_prefix"] = [_shared_prefix(arguments, sizing, requests) for requests in arguments.requests]
    if arguments.cache_gib is not None or arguments.cache_blocks is not None:
        document["capacity"] = _capacity(arguments, sizing)
    if arguments.json:
        print_json(document)
    else:
        print(_tables(document))
    return 0


def _refuse_options_without_effect(arguments: argparse.Namespace) -> None:
    from ais_bench_prefix_cache.foundation.errors import CalculationError, Problem

    cache = arguments.cache_gib is not None or arguments.cache_blocks is not None
    latent = arguments.latent_dim is not None or arguments.rotary_dim is not None
    needs = [
        ("--tokens", arguments.tokens, "--free-blocks", arguments.free_blocks is not None),
        ("--free-blocks", arguments.free_blocks is not None, "--lengths", arguments.lengths),
        ("--fragmentation", arguments.fragmentation is not None, "--lengths", arguments.lengths),
        ("--prefix", arguments.prefix is not None, "--suffix, --cache-gib or --cache-blocks",
         cache or arguments.suffix is not None),
        ("--window-layers", arguments.window_layers is not None, "--window", arguments.window is not None),
    ]  # fmt: skip
    problems = [
        Problem(Code.WRONG_OPTION, option, f"means nothing without {other}")
        for option, given, other, other_given in needs
        if given and not other_given
    ]
    if latent:
        problems += [
            Problem(Code.WRONG_OPTION, f"--{name.replace('_', '-')}", "means nothing for latent attention")
            for name in ("kv_heads", "head_dim", "window")
            if getattr(arguments, name) is not None
        ]
    if problems:
        raise CalculationError(problems)


def _sizing(arguments: argparse.Namespace) -> tuple[CacheSizing, str]:
    from ais_bench_prefix_cache.calculators.model_config import model_dtype, sizing_of_model
    from ais_bench_prefix_cache.foundation.errors import CalculationError

    given = [name for name in MODEL_OPTIONS if getattr(arguments, name) is not None]
    if arguments.model_config is not None:
        if given:
            raise CalculationError.of(
                Code.WRONG_OPTION,
                f"--{given[0].replace('_', '-')}",
                "cannot be given together with --model-config",
                hint="The file says it already; only --dtype and --tensor-parallel may be added.",
            )
        config = _with_defaults(_read_config(arguments.model_config))
        dtype = arguments.dtype or model_dtype(config)
        return sizing_of_model(config, dtype=dtype, tensor_parallel=arguments.tensor_parallel), dtype
    return _sizing_of_numbers(arguments), arguments.dtype or "bf16"


def _with_defaults(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with what it leaves to the defaults of its class, if transformers knows that class."""
    from ais_bench_prefix_cache.calculators.model_config import lacks_defaults, text_part

    text = dict(text_part(config))
    if not isinstance(text.get("model_type"), str) or not lacks_defaults(text):
        return config
    try:
        from transformers import AutoConfig

        given = {key: value for key, value in text.items() if key not in ("model_type", "architectures")}
        known = AutoConfig.for_model(text["model_type"], **given).to_dict()
    except Exception:
        # An unknown class, or one that refuses the file: what is missing is then said by its key.
        return config
    return text | {key: value for key, value in known.items() if text.get(key) is None}


def _read_config(path: Path) -> dict[str, Any]:
    import json

    from ais_bench_prefix_cache.foundation.errors import CalculationError

    try:
        config = json.loads(path.read_text(encoding="utf-8-sig"))
    except RecursionError:
        raise CalculationError.of(Code.MODEL_CONFIG, str(path), "is nested too deeply") from None
    except ValueError as error:
        raise CalculationError.of(Code.MODEL_CONFIG, str(path), f"is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise CalculationError.of(Code.MODEL_CONFIG, str(path), "is not a JSON object")
    return config


def _sizing_of_numbers(arguments: argparse.Namespace) -> CacheSizing:
    from ais_bench_prefix_cache.calculators.number_checks import require_at_least_one
    from ais_bench_prefix_cache.calculators.sizing import (
        DTYPE_BYTES,
        CacheSizing,
        attention_layers,
        latent_attention_layers,
    )
    from ais_bench_prefix_cache.foundation.errors import CalculationError, Problem

    latent = arguments.latent_dim is not None or arguments.rotary_dim is not None
    needed = ("layers", "latent_dim", "rotary_dim") if latent else ("layers", "kv_heads", "head_dim")
    missing = [name for name in needed if getattr(arguments, name) is None]
    if missing:
        raise CalculationError(
            Problem(Code.WRONG_OPTION, f"--{name.replace('_', '-')}", "is needed", hint="Or give --model-config FILE.")
            for name in missing
        )
    dtype_bytes = DTYPE_BYTES[arguments.dtype or "bf16"]
    if latent:
        layers = (
            latent_attention_layers(arguments.layers, latent_dim=arguments.latent_dim, rotary_dim=arguments.rotary_dim),
        )
        return CacheSizing(layers, dtype_bytes)
    require_at_least_one(layers=arguments.layers)
    windowed = 0
    if arguments.window is not None:
        windowed = arguments.layers if arguments.window_layers is None else arguments.window_layers
    if not 0 <= windowed <= arguments.layers:
        raise CalculationError.of(
            Code.IMPOSSIBLE_VALUE, "--window-layers", f"is {windowed}", allowed=f"0 to --layers, {arguments.layers}"
        )
    return CacheSizing(
        tuple(
            attention_layers(
                count,
                kv_heads=arguments.kv_heads,
                head_dim=arguments.head_dim,
                window=window,
                tensor_parallel=arguments.tensor_parallel,
            )
            for count, window in ((arguments.layers - windowed, None), (windowed, arguments.window))
            if count
        ),
        dtype_bytes,
    )


def _bytes(count: int) -> dict[str, Any]:
    return {"bytes": count, "gib": count / GIB}


def _page_table(arguments: argparse.Namespace, length: int) -> dict[str, Any]:
    from ais_bench_prefix_cache.calculators.page_table import page_table

    table = page_table(length, arguments.block_size, arguments.free_blocks)
    return {
        "length": length,
        "blocks": [
            {
                "logical_block": entry.logical_block,
                "physical_block": entry.physical_block,
                "token_start": entry.token_start,
                "used_tokens": entry.used_tokens,
            }
            for entry in table.entries
        ],
        "allocated_tokens": table.allocated_tokens,
        "tail_waste_tokens": table.tail_waste_tokens,
        "tokens": [
            {"token": token, **dict(zip(("physical_block", "offset"), table.locate(token), strict=True))}
            for token in arguments.tokens
        ],
    }


def _fragmentation(lengths: list[int], block_size: int) -> dict[str, Any]:
    from ais_bench_prefix_cache.calculators.sizing import fragmentation

    result = fragmentation(lengths, block_size)
    return {
        "block_size": block_size,
        "tokens": result.tokens,
        "allocated_tokens": result.allocated_tokens,
        "wasted_tokens": result.wasted_tokens,
        "blocks": result.blocks,
    }


def _shared_prefix(arguments: argparse.Namespace, sizing: CacheSizing, requests: int) -> dict[str, Any]:
    from ais_bench_prefix_cache.calculators.sizing import shared_prefix_memory

    memory = shared_prefix_memory(
        sizing, prefix_tokens=arguments.prefix or 0, suffix_tokens=arguments.suffix, requests=requests
    )
    return {
        "prefix_tokens": arguments.prefix or 0,
        "suffix_tokens": arguments.suffix,
        "requests": requests,
        "separate": _bytes(memory.separate_bytes),
        "shared": _bytes(memory.shared_bytes),
        "saved": _bytes(memory.saved_bytes),
    }


def _capacity(arguments: argparse.Namespace, sizing: CacheSizing) -> dict[str, Any]:
    from ais_bench_prefix_cache.calculators.sizing import prefixes_that_fit, requests_that_fit

    size = arguments.block_size
    blocks = arguments.cache_blocks
    if blocks is None:
        blocks = sizing.blocks_in(int(arguments.cache_gib * GIB), size)
    # vLLM keeps one block, its null block, out of use.
    usable = max(0, blocks - 1)
    groups = sizing.block_groups()
    block_of_each_group = sum(group.count * sizing.group_block_bytes(group, size) for group in groups)
    capacity: dict[str, Any] = {
        "blocks": blocks,
        "usable_blocks": usable,
        "usable_tokens": usable * sizing.pool_block_bytes(size) // block_of_each_group * size,
        "bytes_per_block": sizing.pool_block_bytes(size),
        "block_groups": [
            {"window": group.window, "count": group.count, "layers": group.layers} for group in groups
        ],
        "requests": [
            {
                "length": length,
                "alone": requests_that_fit(sizing, usable, length=length, block_size=size),
                **(
                    {"sharing_the_prefix": requests_that_fit(
                        sizing, usable, length=length, block_size=size, prefix_tokens=arguments.prefix
                    )}
                    if arguments.prefix and arguments.prefix < length
                    else {}
                ),
            }
            for length in arguments.lengths
        ],
    }  # fmt: skip
    if arguments.prefix:
        capacity["canonical_prefixes"] = prefixes_that_fit(
            sizing, usable, prefix_tokens=arguments.prefix, block_size=size
        )
    return capacity


def _tables(document: dict[str, Any]) -> str:
    from ais_bench_prefix_cache.foundation.grid_table import render_grid

    def table(title: str, header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
        return f"{title}\n{render_grid(header, [tuple(map(_cell, row)) for row in rows])}"

    parts = [
        table(
            f"KV cache of one rank ({document['dtype']}, tensor parallel {document['tensor_parallel']})",
            ("Layers", "Kind", "Window", "Numbers per token"),
            [
                (layer["count"], layer["kind"], layer["window"] or "-", layer["numbers_per_token"])
                for layer in document["layers"]
            ],
        ),
        f"{document['bytes_per_token']:,} bytes per token ({document['bytes_per_token'] / 1024:g} KiB), "
        f"{document['bytes_per_block']:,} bytes per block of {document['block_size']} tokens",
    ]
    rows: list[tuple[Any, ...]]
    if document["memory"]:
        rows = [(row["length"], row["requests"], row["bytes"], row["gib"]) for row in document["memory"]]
        parts.append(table("Memory", ("Length", "Requests", "Bytes", "GiB"), rows))
    for page_table in document.get("page_tables", ()):
        title = (
            f"Page table of {page_table['length']} tokens: {page_table['allocated_tokens']} positions allocated, "
            f"{page_table['tail_waste_tokens']} wasted in the last block"
        )
        rows = [tuple(block.values()) for block in page_table["blocks"]]
        parts.append(table(title, ("Logical block", "Physical block", "First token", "Used"), rows))
        if page_table["tokens"]:
            rows = [tuple(token.values()) for token in page_table["tokens"]]
            parts.append(table("Where its tokens lie", ("Token", "Physical block", "Offset"), rows))
    if "fragmentation" in document:
        rows = [tuple(row.values()) for row in document["fragmentation"]]
        header: tuple[str, ...] = ("Block size", "Tokens", "Allocated", "Wasted", "Block table entries")
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


def _cell(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
