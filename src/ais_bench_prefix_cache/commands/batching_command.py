"""``batching``: static against continuous batching."""

from __future__ import annotations

import argparse

from ais_bench_prefix_cache.calculators.batching_report import batching_document, batching_tables
from ais_bench_prefix_cache.commands.argument_types import integer, integers
from ais_bench_prefix_cache.commands.console import print_json, show
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import CalculationError

DESCRIPTION = (
    "Run requests through a fixed number of slots, one output token a step, by static batching (a batch starts when "
    "the one before is finished) and by continuous batching (a slot is filled as soon as it is free). Requests are "
    "called A, B, C … in the order of the lists."
)
EXAMPLES = ("batching --slots 2 --output-tokens 2,4,2 --arrivals 0,0,1",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the slots and the requests."""
    parser.add_argument("--slots", type=integer, required=True, metavar="N", help="requests that run at the same time")
    parser.add_argument(
        "--output-tokens", type=integers, required=True, metavar="LIST", help="output length of each request"
    )
    parser.add_argument("--arrivals", type=integers, metavar="LIST", help="step in which each request arrives (0)")
    parser.add_argument(
        "--admit",
        choices=("arrival", "listed"),
        default="arrival",
        help="who of those that wait goes first: the one that arrived first (default), or the first of the list",
    )
    parser.add_argument("--trace", action="store_true", help="also who holds each slot in each step, in the JSON")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")


def execute(arguments: argparse.Namespace) -> int:
    """Print both schedules; returns the exit code."""
    outputs = arguments.output_tokens
    arrivals = arguments.arrivals or [0] * len(outputs)
    if len(arrivals) != len(outputs):
        raise CalculationError.of(
            Code.WRONG_OPTION,
            "--arrivals",
            f"has {len(arrivals)} steps for {len(outputs)} requests",
            allowed="one a request",
        )
    if arguments.trace and not arguments.json:
        raise CalculationError.of(Code.WRONG_OPTION, "--trace", "means nothing without --json")
    document = batching_document(
        outputs, arrivals, slots=arguments.slots, admission=arguments.admit, trace=arguments.trace
    )
    if arguments.json:
        print_json(document)
    else:
        show(batching_tables(document))
    return 0
