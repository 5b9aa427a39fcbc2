"""``batching``: static against continuous batching."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.commands.argument_types import integer, integers
from ais_bench_prefix_cache.foundation.codes import Code

if TYPE_CHECKING:
    from ais_bench_prefix_cache.calculators.batching import Schedule

DESCRIPTION = (
    "Run requests through a fixed number of slots, one output token a step, by static batching (a batch starts when "
    "the one before is finished) and by continuous batching (a slot is filled as soon as it is free). Requests are "
    "called A, B, C … in the order of the lists."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``batching``."""
    parser.add_argument("--slots", type=integer, required=True, metavar="N", help="requests that run at the same time")
    parser.add_argument(
        "--output-tokens", type=integers, required=True, metavar="LIST", help="output length of each request"
    )
    parser.add_argument("--arrivals", type=integers, metavar="LIST", help="step in which each request arrives (0)")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")


def execute(arguments: argparse.Namespace) -> int:
    """Run ``batching``; returns the exit code."""
    from ais_bench_prefix_cache.calculators.batching import BatchRequest, schedule
    from ais_bench_prefix_cache.commands.console import print_json
    from ais_bench_prefix_cache.foundation.errors import CalculationError

    outputs = arguments.output_tokens
    arrivals = arguments.arrivals or [0] * len(outputs)
    if len(arrivals) != len(outputs):
        raise CalculationError.of(
            Code.WRONG_OPTION,
            "--arrivals",
            f"has {len(arrivals)} steps for {len(outputs)} requests",
            allowed="one a request",
        )
    requests = [
        BatchRequest(_name(number), arrival, tokens)
        for number, (arrival, tokens) in enumerate(zip(arrivals, outputs, strict=True))
    ]
    static = schedule(requests, slots=arguments.slots, policy="static")
    continuous = schedule(requests, slots=arguments.slots, policy="continuous")
    document: dict[str, Any] = {
        "slots": arguments.slots,
        "requests": [
            {"name": request.name, "arrival": request.arrival, "output_tokens": request.output_tokens}
            for request in requests
        ],
        "static": _as_json(static),
        "continuous": _as_json(continuous),
    }
    if arguments.json:
        print_json(document)
    else:
        print("\n\n".join([_table(document), _picture(static), _picture(continuous)]))
    return 0


def _name(number: int) -> str:
    """A … Z, AA, AB … as a spreadsheet names its columns."""
    name = ""
    number += 1
    while number:
        number, letter = divmod(number - 1, 26)
        name = chr(ord("A") + letter) + name
    return name


def _as_json(plan: Schedule) -> dict[str, Any]:
    from ais_bench_prefix_cache.calculators.batching import slot_picture

    picture, steps = slot_picture(plan)
    return {
        "requests": {
            occupancy.request.name: {"slot": occupancy.slot, "start": occupancy.start, "finish": occupancy.finish}
            for occupancy in plan.occupancies
        },
        "makespan": plan.makespan,
        "occupied_slot_steps": plan.occupied_slot_steps,
        "total_slot_steps": plan.total_slot_steps,
        "utilisation": plan.utilisation,
        "picture": picture,
        "steps_per_character": steps,
    }


def _table(document: dict[str, Any]) -> str:
    from ais_bench_prefix_cache.foundation.grid_table import render_grid

    static, continuous = document["static"], document["continuous"]
    rows = [
        tuple(
            str(value)
            for value in (
                request["name"],
                request["arrival"],
                request["output_tokens"],
                *(
                    plan["requests"][request["name"]][key]
                    for plan in (static, continuous)
                    for key in ("start", "finish")
                ),
            )
        )
        for request in document["requests"]
    ]
    header = ("Request", "Arrival", "Output", "Static start", "finish", "Continuous start", "finish")
    return render_grid(header, rows)


def _picture(plan: Schedule) -> str:
    from ais_bench_prefix_cache.calculators.batching import slot_picture

    lines, steps = slot_picture(plan)
    scale = f", one character is {steps} steps" if steps > 1 else ""
    title = (
        f"{plan.policy}: {plan.makespan} steps, {plan.occupied_slot_steps} of {plan.total_slot_steps} slot steps used "
        f"({plan.utilisation * 100:.1f}%){scale}"
    )
    return "\n".join([title, *(f"  slot {number} |{line}|" for number, line in enumerate(lines))])
