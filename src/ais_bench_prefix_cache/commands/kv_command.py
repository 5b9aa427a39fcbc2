"""``kv``: how much memory a KV cache takes, and what fits into it."""

from __future__ import annotations

import argparse
from pathlib import Path

from ais_bench_prefix_cache.calculators.kv_report import Load, SizedModel, kv_document, kv_tables
from ais_bench_prefix_cache.calculators.model_config import model_dtype, sizing_of_model
from ais_bench_prefix_cache.calculators.model_file import read_model_config
from ais_bench_prefix_cache.calculators.sizing import DTYPE_BYTES, CacheSizing, ModelNumbers
from ais_bench_prefix_cache.commands.argument_types import integer, integers, positive_integer, positive_number
from ais_bench_prefix_cache.commands.console import print_json, show
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import CalculationError, Problem

DESCRIPTION = (
    "Size the KV cache of a model, from its config.json or from numbers. Lists are written with commas. "
    "All sizes are those of one tensor-parallel rank."
)
EXAMPLES = (
    "kv --model-config /models/Qwen3-8B/config.json --cache-gib 40 --lengths 4096",
    "kv --layers 32 --kv-heads 8 --head-dim 128 --lengths 1024,8192",
)
MODEL_OPTIONS = ("layers", "kv_heads", "head_dim", "latent_dim", "rotary_dim", "window", "window_layers")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the model, the load and the cache."""
    model = parser.add_argument_group("the model, from a file or from numbers")
    model.add_argument("--model-config", type=Path, metavar="FILE", help="the model's config.json")
    model.add_argument("--layers", type=integer, metavar="N", help="layers that keep a cache")
    model.add_argument("--kv-heads", type=integer, metavar="N", help="KV heads of a layer (1: multi-query attention)")
    model.add_argument("--head-dim", type=integer, metavar="N", help="numbers in a key or value vector of one head")
    model.add_argument("--latent-dim", type=integer, metavar="N", help="latent attention: kv_lora_rank")
    model.add_argument("--rotary-dim", type=integer, metavar="N", help="latent attention: qk_rope_head_dim")
    model.add_argument("--window", type=integer, metavar="TOKENS", help="sliding window of some layers")
    model.add_argument("--window-layers", type=integer, metavar="N", help="how many of the layers have it (all)")
    model.add_argument(
        "--dtype", choices=tuple(DTYPE_BYTES), help="type of the cached numbers (the model's own, else bf16)"
    )
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
    """Print every answer; returns the exit code."""
    _refuse_options_without_effect(arguments)
    document = kv_document(_model(arguments), _load(arguments))
    if arguments.json:
        print_json(document)
    else:
        show(kv_tables(document))
    return 0


def _load(arguments: argparse.Namespace) -> Load:
    def numbers(listed: list[int] | None) -> tuple[int, ...] | None:
        return None if listed is None else tuple(listed)

    return Load(
        block_size=arguments.block_size,
        lengths=tuple(arguments.lengths),
        requests=tuple(arguments.requests),
        free_blocks=numbers(arguments.free_blocks),
        tokens=tuple(arguments.tokens),
        fragmentation=numbers(arguments.fragmentation),
        prefix=arguments.prefix,
        suffix=arguments.suffix,
        cache_gib=arguments.cache_gib,
        cache_blocks=arguments.cache_blocks,
    )


def _model(arguments: argparse.Namespace) -> SizedModel:
    given = [name for name in MODEL_OPTIONS if getattr(arguments, name) is not None]
    ranks = arguments.tensor_parallel
    if arguments.model_config is None:
        dtype = arguments.dtype or "bf16"
        layers = _model_numbers(arguments).cache_layers(ranks)
        return SizedModel(CacheSizing(layers, DTYPE_BYTES[dtype]), dtype, ranks)
    if given:
        raise CalculationError.of(
            Code.WRONG_OPTION,
            f"--{given[0].replace('_', '-')}",
            "cannot be given together with --model-config",
            hint="The file says it already; only --dtype and --tensor-parallel may be added.",
        )
    config = read_model_config(arguments.model_config)
    dtype = arguments.dtype or model_dtype(config)
    return SizedModel(sizing_of_model(config, dtype=dtype, tensor_parallel=ranks), dtype, ranks)


def _model_numbers(arguments: argparse.Namespace) -> ModelNumbers:
    latent = arguments.latent_dim is not None or arguments.rotary_dim is not None
    needed = ("layers", "latent_dim", "rotary_dim") if latent else ("layers", "kv_heads", "head_dim")
    missing = [name for name in needed if getattr(arguments, name) is None]
    if missing:
        raise CalculationError(
            Problem(Code.WRONG_OPTION, f"--{name.replace('_', '-')}", "is needed", hint="Or give --model-config FILE.")
            for name in missing
        )
    return ModelNumbers(**{name: getattr(arguments, name) for name in (*needed, "window", "window_layers")})


def _refuse_options_without_effect(arguments: argparse.Namespace) -> None:
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
