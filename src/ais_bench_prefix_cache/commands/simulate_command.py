"""``simulate``: replay any JSONL of requests through prefix caches of a given size."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.commands.argument_types import integers, positive_integer
from ais_bench_prefix_cache.commands.quiet_start import load_quietly

if TYPE_CHECKING:
    from ais_bench_prefix_cache.datasets.traces.reading import TraceRow
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer

DESCRIPTION = (
    "Replay the requests of a JSONL file (requests.jsonl, full.jsonl, texts, token ids, or a trace with hash_ids) "
    "through the prefix caches of some ranks and count hits in tokens, as vLLM counts them. Sends nothing."
)
ROUTES = ("auto", "round-robin", "group", "field", "least-loaded", "prefix-aware")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``simulate``."""
    parser.add_argument("file", type=Path, metavar="FILE", help="the requests, one JSON object a line")
    cache = parser.add_argument_group("the caches")
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
    """Run ``simulate``; returns the exit code."""
    from itertools import chain

    from ais_bench_prefix_cache.calculators.simulation import Simulation
    from ais_bench_prefix_cache.commands.console import print_json
    from ais_bench_prefix_cache.foundation.errors import ArtifactError

    rows = _rows(arguments)
    first = next(rows, None)
    if first is None:
        raise ArtifactError.of("NO_REQUESTS", str(arguments.file), "holds no requests")
    route: Any = arguments.route
    if route == "auto":
        route = "field" if first.rank is not None and arguments.ranks > 1 else "round-robin"
    simulations = [
        Simulation(
            block_size=block_size,
            num_blocks=arguments.blocks,
            ranks=arguments.ranks,
            routing=route,
            concurrency=arguments.concurrency,
            capacity_curve=arguments.capacity_curve is not None,
            per_request=arguments.per_request,
        )
        for block_size in arguments.block_size or [first.id_tokens if first.id_tokens > 1 else 16]
    ]
    for row in _warmup_rows(arguments):
        for simulation in simulations:
            simulation.warm(row)
    with _export(arguments) as write:
        for row in chain([first], rows):
            write(row)
            for simulation in simulations:
                simulation.send(row)
    documents = [
        {"file": str(arguments.file), **simulation.document(curve_sizes=arguments.capacity_curve or None)}
        for simulation in simulations
    ]
    if arguments.json:
        print_json(documents[0] if len(documents) == 1 else {"file": str(arguments.file), "results": documents})
    else:
        print("\n\n".join(_tables(documents)))
    return 0


def _rows(arguments: argparse.Namespace) -> Iterator[TraceRow]:
    """The requests in the order in which they are sent."""
    from ais_bench_prefix_cache.datasets.traces.reading import TraceFields, read_trace

    rows = read_trace(
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
    )
    if arguments.order == "file":
        return rows
    held = list(rows)
    if arguments.order == "timestamp":
        held.sort(key=lambda row: row.timestamp_ms)
    else:
        from ais_bench_prefix_cache.foundation.random_streams import RandomStream

        order = RandomStream(arguments.seed, "simulate order").permutation(len(held))
        held = [held[index] for index in order.tolist()]
    return iter(held)


def _tokenizer(arguments: argparse.Namespace) -> PromptTokenizer | None:
    if arguments.tokenizer is None:
        return None
    from ais_bench_prefix_cache.commands.option_names import named_by_options
    from ais_bench_prefix_cache.scenario.model import TokenizerConfig

    with named_by_options():
        return load_quietly(
            TokenizerConfig(arguments.tokenizer, 1, arguments.tokenizer_revision, arguments.trust_remote_code)
        )


def _warmup_rows(arguments: argparse.Namespace) -> Iterator[TraceRow]:
    """The warm-up plan of ``--manifest``, each with its rank."""
    if arguments.manifest is None:
        return
    from ais_bench_prefix_cache.datasets.format.manifest import read_manifest
    from ais_bench_prefix_cache.datasets.traces.reading import TraceRow
    from ais_bench_prefix_cache.foundation.errors import ArtifactError

    plan = read_manifest(arguments.manifest).get("warmup", {}).get("plan", [])
    tokenizer = _tokenizer(arguments)
    if plan and tokenizer is None:
        raise ArtifactError.of(
            "TOKENIZER_NEEDED", "--manifest", "its warm-up prompts are texts", hint="Give --tokenizer."
        )
    for number, entry in enumerate(plan, start=1):
        if entry["dp_rank"] >= arguments.ranks:
            raise ArtifactError.of(
                "NO_SUCH_RANK",
                "--ranks",
                f"the warm-up plan names rank {entry['dp_rank']}",
                allowed=f"at least {entry['dp_rank'] + 1}",
            )
        assert tokenizer is not None
        ids = tokenizer.encode(entry["prompt"])
        yield TraceRow(number, ids, 1, len(ids), entry["max_tokens"], entry["group_id"], entry["dp_rank"], 0)


@contextmanager
def _export(arguments: argparse.Namespace) -> Iterator[Callable[[TraceRow], None]]:
    """A function that takes each request; the file appears when all have been written."""
    if arguments.export_mooncake is None:
        yield lambda row: None
        return
    from ais_bench_prefix_cache.datasets.format.writing import FileSet
    from ais_bench_prefix_cache.datasets.traces.mooncake import MooncakeRows

    rows = MooncakeRows(arguments.export_block_size)
    with FileSet(replace=True) as files:
        exported = files.open(arguments.export_mooncake)
        yield lambda row: exported.write(rows.line(row))
        files.commit()


def _tables(documents: list[dict[str, Any]]) -> Iterator[str]:
    from ais_bench_prefix_cache.foundation.grid_table import render_grid

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
