"""Static and continuous batching on a fixed number of slots, one output token a step.

Static batching admits requests only into an empty batch and waits for its longest member; continuous batching
(Orca, OSDI 2022) fills a slot as soon as it is free. Steps are integers from 0; ``finish`` is the step after the
last token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal

from ais_bench_prefix_cache.calculators.number_checks import require_at_least_one, require_not_negative
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import CalculationError

Policy = Literal["static", "continuous"]

MOST_SLOTS = 65536


@dataclass(frozen=True)
class BatchRequest:
    """A request of a drawn batch; ``arrival`` is the number of a step."""

    name: str
    arrival: int
    output_tokens: int


@dataclass(frozen=True)
class Occupancy:
    """A request that held one slot from step ``start`` up to, not including, step ``finish``."""

    request: BatchRequest
    slot: int
    start: int
    finish: int


@dataclass(frozen=True)
class Schedule:
    """What a policy made of the requests; ``occupancies`` in the order of admission."""

    policy: Policy
    slots: int
    occupancies: tuple[Occupancy, ...]

    @property
    def makespan(self) -> int:
        """Steps from 0 until the last request has finished."""
        return max((occupancy.finish for occupancy in self.occupancies), default=0)

    @property
    def occupied_slot_steps(self) -> int:
        return sum(occupancy.finish - occupancy.start for occupancy in self.occupancies)

    @property
    def total_slot_steps(self) -> int:
        return self.makespan * self.slots

    @property
    def utilisation(self) -> float:
        """Occupied share of all slot steps."""
        return self.occupied_slot_steps / self.total_slot_steps if self.total_slot_steps else 0.0


def schedule(requests: Sequence[BatchRequest], *, slots: int, policy: Policy) -> Schedule:
    """Run ``requests`` through ``slots`` slots, first come, first served (ties: the order given).

    Works from event to event, so long outputs cost nothing extra.

    Raises:
        CalculationError: no slot, a negative arrival, an empty output, or a name that occurs twice.
    """
    _check(requests, slots)
    in_order = sorted(requests, key=lambda request: request.arrival)
    run = _continuous if policy == "continuous" else _static
    return Schedule(policy, slots, tuple(run(in_order, min(slots, len(in_order)))))


def _continuous(requests: Sequence[BatchRequest], slots: int) -> Iterator[Occupancy]:
    """Each request takes the lowest slot that is free when it arrives, or the first that becomes so."""
    idle, busy = list(range(slots)), list[tuple[int, int]]()
    for request in requests:
        while busy and (busy[0][0] <= request.arrival or not idle):
            until, slot = heappop(busy)
            if until > request.arrival:
                yield (occupancy := Occupancy(request, slot, until, until + request.output_tokens))
                break
            heappush(idle, slot)
        else:
            slot = heappop(idle)
            yield (occupancy := Occupancy(request, slot, request.arrival, request.arrival + request.output_tokens))
        heappush(busy, (occupancy.finish, occupancy.slot))


def _static(requests: Sequence[BatchRequest], slots: int) -> Iterator[Occupancy]:
    """Whoever is there when the batch before is finished, up to the number of slots."""
    first = free_from = 0
    while first < len(requests):
        start = max(free_from, requests[first].arrival)
        batch = [request for request in requests[first : first + slots] if request.arrival <= start]
        for slot, request in enumerate(batch):
            yield Occupancy(request, slot, start, start + request.output_tokens)
        free_from = start + max(request.output_tokens for request in batch)
        first += len(batch)


def _check(requests: Sequence[BatchRequest], slots: int) -> None:
    require_at_least_one(slots=slots)
    if slots > MOST_SLOTS:
        raise CalculationError.of(Code.IMPOSSIBLE_VALUE, "slots", f"is {slots}", allowed=f"1 to {MOST_SLOTS}")
    seen: set[str] = set()
    for request in requests:
        if request.name in seen:
            raise CalculationError.of(
                Code.NAME_TWICE, f"request {request.name}", "every request needs a name of its own"
            )
        seen.add(request.name)
        require_not_negative(**{f"request {request.name}: arrival": request.arrival})
        require_at_least_one(**{f"request {request.name}: output_tokens": request.output_tokens})


def slot_picture(plan: Schedule, *, columns: int = 100) -> tuple[list[str], int]:
    """One line a slot: the first letter of a request's name while it runs, ``.`` where the slot is empty.

    Returns the lines, of at most ``columns`` characters, and how many steps one character stands for; it shows who
    holds the slot in the first of them.
    """
    steps = max(1, -(-plan.makespan // columns))
    lines = [["."] * -(-plan.makespan // steps) for _ in range(plan.slots)]
    for occupancy in plan.occupancies:
        for cell in range(-(-occupancy.start // steps), -(-occupancy.finish // steps)):
            lines[occupancy.slot][cell] = occupancy.request.name[0]
    return ["".join(line) for line in lines], steps
