"""What ``batching`` answers: the same requests by static and by continuous batching, as a document and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ais_bench_prefix_cache.calculators.batching import (
    Admission,
    BatchRequest,
    Schedule,
    schedule,
    slot_picture,
    slot_trace,
)
from ais_bench_prefix_cache.foundation.grid_table import render_grid


def batching_document(
    output_tokens: Sequence[int],
    arrivals: Sequence[int],
    *,
    slots: int,
    admission: Admission = "arrival",
    trace: bool = False,
) -> dict[str, Any]:
    """Both policies; requests are called A, B, C … in the order given. JSON-ready.

    ``trace`` adds who holds each slot in each step.

    Raises:
        CalculationError: no slot, a negative arrival or an empty output.
    """
    requests = [
        BatchRequest(_name(number), arrival, tokens)
        for number, (arrival, tokens) in enumerate(zip(arrivals, output_tokens, strict=True))
    ]
    return {
        "slots": slots,
        "requests": [asdict(request) for request in requests],
        "admission": admission,
        "static": _as_json(schedule(requests, slots=slots, policy="static", admission=admission), trace),
        "continuous": _as_json(schedule(requests, slots=slots, policy="continuous", admission=admission), trace),
    }


def batching_tables(document: dict[str, Any]) -> str:
    """The document of :func:`batching_document` for a terminal."""
    return "\n\n".join([_table(document), *(_picture(policy, document) for policy in ("static", "continuous"))])


def _name(number: int) -> str:
    """A … Z, AA, AB … as a spreadsheet names its columns."""
    name = ""
    number += 1
    while number:
        number, letter = divmod(number - 1, 26)
        name = chr(ord("A") + letter) + name
    return name


def _as_json(plan: Schedule, trace: bool) -> dict[str, Any]:
    picture, steps = slot_picture(plan)
    return {
        "requests": {
            occupancy.request.name: {"slot": occupancy.slot, "start": occupancy.start, "finish": occupancy.finish}
            for occupancy in plan.occupancies
        },
        "start": {occupancy.request.name: occupancy.start for occupancy in plan.occupancies},
        "finish": {occupancy.request.name: occupancy.finish for occupancy in plan.occupancies},
        "makespan_steps": plan.makespan,
        "occupied_slot_steps": plan.occupied_slot_steps,
        "total_slot_steps": plan.total_slot_steps,
        "utilisation": plan.utilisation,
        "picture": picture,
        "steps_per_character": steps,
        **({"trace": _trace(plan)} if trace else {}),
    }


def _trace(plan: Schedule) -> list[dict[str, Any]]:
    return [{"step": step, "slots": slots} for step, slots in enumerate(slot_trace(plan))]


def _table(document: dict[str, Any]) -> str:
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


def _picture(policy: str, document: dict[str, Any]) -> str:
    plan = document[policy]
    steps = plan["steps_per_character"]
    scale = f", one character is {steps} steps" if steps > 1 else ""
    title = (
        f"{policy}: {plan['makespan_steps']} steps, {plan['occupied_slot_steps']} of {plan['total_slot_steps']} "
        f"slot steps used ({plan['utilisation'] * 100:.1f}%){scale}"
    )
    return "\n".join([title, *(f"  slot {number} |{line}|" for number, line in enumerate(plan["picture"]))])
