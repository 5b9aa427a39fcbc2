"""``simulate``: replay any JSONL of requests through prefix caches of a given size."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ais_bench_prefix_cache.commands.argument_types import integers, positive_integer
from ais_bench_prefix_cache.commands.console import print_json, show
from ais_bench_prefix_cache.commands.quiet_start import load_quietly

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer

DESCRIPTION = (
    "Replay the requests of a JSONL file (requests.jsonl, full.jsonl, texts, token ids, or a trace with hash_ids) "
    "through the prefix caches of some ranks and count hits in tokens, as vLLM or SGLang count them. Sends nothing."
)
EXAMPLES = (
    "simulate requests.jsonl --tokenizer /models/Qwen3-8B --capacity-curve",
    "simulate conversation_trace.jsonl --blocks 20000 --ranks 2 --route prefix-aware",
)
ROUTES = ("auto", "round-robin", "group", "field", "least-loaded", "prefix-aware")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the file, the caches, the rows and the output."""
    parser.add_argument("file", type=Path, metavar="FILE", help="the requests, one JSON object a line")
    cache = parser.add_argument_group("the caches")
    cache.add_argument(
        "--engine",
        choices=("vllm", "sglang"),
        default="vllm",
        help="whose cache: vLLM's blocks or SGLang's tree, whose pages --block-size and --blocks then mean (vllm)",
    )
    cache.add_argument(
        "--block-size",
        type=integers,
        metavar="LIST",
        help="tokens of a block; several sizes are compared (16, or that of the trace)",
    )
    cache.add_argument("--blocks", type=positive_integer, metavar="N", help="usable blocks of each rank (unbounded)")
    cache.add_argument("--ranks", type=positive_integer, default=1, metavar="N", help="data-parallel ranks (1)")
    cache.add_argument(
        "--route",
        choices=ROUTES,
        default="auto",
        help="how requests find their rank; auto: by --rank-field where the first row has it, else round-robin",
    )
    cache.add_argument(
        "--concurrency", type=positive_integer, default=1, metavar="N", help="requests that run at once (1)"
    )
    cache.add_argument(
        "--capacity-curve",
        nargs="?",
        type=integers,
        const=[],
        metavar="LIST",
        help="hit rate against blocks, at these numbers or at up to 40 of its own choice, from one pass",
    )
    rows = parser.add_argument_group("the rows")
    rows.add_argument("--tokenizer", metavar="DIR", help="the server's tokenizer, for prompts that are texts")
    rows.add_argument(
        "--tokenizer-revision", metavar="REVISION", help="branch, tag or commit of a tokenizer on the hub (its default)"
    )
    rows.add_argument("--trust-remote-code", action="store_true", help="let the tokenizer run code of its own")
    rows.add_argument("--field", metavar="NAME", help="key of the prompt: a text or a list of token ids")
    rows.add_argument("--group-field", default="group_id", metavar="NAME", help="key of the group (group_id)")
    rows.add_argument("--rank-field", default="dp_rank", metavar="NAME", help="key of the rank (dp_rank)")
    rows.add_argument(
        "--image-field", default="images", metavar="NAME", help="key of the images: hash, offset, length (images)"
    )
    rows.add_argument("--output-field", metavar="NAME", help="key of the output length (max_tokens, output_length, …)")
    rows.add_argument(
        "--output-tokens", type=positive_integer, metavar="N", help="output length of every request instead"
    )
    rows.add_argument(
        "--trace-block-size", type=positive_integer, metavar="TOKENS", help="tokens of a hash_id (512 or 16)"
    )
    rows.add_argument(
        "--order",
        choices=("file", "timestamp", "random"),
        default="file",
        help="order of sending; all but file hold the whole file in memory",
    )
    rows.add_argument("--seed", type=int, default=0, metavar="N", help="seed of --order random (0)")
    rows.add_argument(
        "--manifest",
        type=Path,
        metavar="FILE",
        help="a prepared data set's manifest: its warm-up prompts are sent first and not counted",
    )
    output = parser.add_argument_group("the output")
    output.add_argument("--per-request", action="store_true", help="rank and hits of every request, in the JSON")
    output.add_argument("--export-mooncake", type=Path, metavar="FILE", help="also write the requests as such a trace")
    output.add_argument(
        "--export-block-size",
        type=positive_integer,
        default=512,
        metavar="TOKENS",
        help="tokens of a block of that trace (512)",
    )
    output.add_argument("--json", action="store_true", help="one JSON document instead of tables")


def execute(arguments: argparse.Namespace) -> int:
    """Print what the replay counted; returns the exit code."""
    # numpy and the readers of data sets, which --help needs no more than the tokenizer.
    from ais_bench_prefix_cache.calculators.simulation_run import (
        MooncakeExport,
        SimulatedCaches,
        SimulatedFile,
        simulate_file,
    )
    from ais_bench_prefix_cache.calculators.simulation_tables import simulation_tables
    from ais_bench_prefix_cache.datasets.traces.reading import TraceFields

    documents = simulate_file(
        SimulatedFile(
            arguments.file,
            tokenizer=_tokenizer(arguments),
            fields=TraceFields(
                prompt=arguments.field,
                output=arguments.output_field,
                group=arguments.group_field,
                rank=arguments.rank_field,
                images=arguments.image_field,
            ),
            trace_block_size=arguments.trace_block_size,
            output_tokens=arguments.output_tokens,
            order=arguments.order,
            seed=arguments.seed,
            manifest=arguments.manifest,
        ),
        SimulatedCaches(
            block_sizes=tuple(arguments.block_size or ()),
            num_blocks=arguments.blocks,
            ranks=arguments.ranks,
            routing=arguments.route,
            concurrency=arguments.concurrency,
            capacity_curve=None if arguments.capacity_curve is None else tuple(arguments.capacity_curve),
            per_request=arguments.per_request,
            engine=arguments.engine,
        ),
        MooncakeExport(arguments.export_mooncake, arguments.export_block_size) if arguments.export_mooncake else None,
    )
    if arguments.json:
        print_json(documents[0] if len(documents) == 1 else {"file": str(arguments.file), "results": documents})
    else:
        show("\n\n".join(simulation_tables(documents)))
    return 0


def _tokenizer(arguments: argparse.Namespace) -> PromptTokenizer | None:
    if arguments.tokenizer is None:
        return None
    from ais_bench_prefix_cache.commands.option_names import named_by_options
    from ais_bench_prefix_cache.scenario.model import TokenizerConfig

    with named_by_options():
        return load_quietly(
            TokenizerConfig(arguments.tokenizer, 1, arguments.tokenizer_revision, arguments.trust_remote_code)
        )
