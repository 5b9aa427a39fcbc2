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
Admission = Literal["arrival", "listed"]

MOST_SLOTS = 65536
MOST_TRACED_STEPS = 10_000


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


def schedule(
    requests: Sequence[BatchRequest], *, slots: int, policy: Policy, admission: Admission = "arrival"
) -> Schedule:
    """Run ``requests`` through ``slots`` slots.

    Of those that wait the one that ``arrived`` first is admitted first (ties: the order given), or the one ``listed``
    first, whenever it arrived. Works from event to event, so long outputs cost nothing extra.

    Raises:
        CalculationError: no slot, a negative arrival, an empty output, or a name that occurs twice.
    """
    _check(requests, slots)
    arriving = sorted(enumerate(requests), key=lambda entry: entry[1].arrival)
    queue = [(place if admission == "arrival" else listed, request) for place, (listed, request) in enumerate(arriving)]
    return Schedule(policy, slots, tuple(_occupancies(queue, min(slots, len(queue)), policy == "continuous")))


def _occupancies(queue: Sequence[tuple[int, BatchRequest]], slots: int, continuous: bool) -> Iterator[Occupancy]:
    """``queue``: the requests in order of arrival, each with its rank among those that wait.

    A request takes the lowest slot that is free: in continuous batching as soon as there is one, in static batching
    once all are.
    """
    idle, busy = list(range(slots)), list[tuple[int, int]]()
    waiting = list[tuple[int, BatchRequest]]()
    arrived = 0
    while arrived < len(queue) or waiting:
        # The next moment at which something can start: nobody waits before the next arrival.
        moment = queue[arrived][1].arrival if not waiting else 0
        if busy and (not idle or not continuous):
            until = busy[0][0] if continuous else max(busy)[0]
            moment = max(moment, until)
        while arrived < len(queue) and queue[arrived][1].arrival <= moment:
            heappush(waiting, queue[arrived])
            arrived += 1
        while busy and busy[0][0] <= moment:
            heappush(idle, heappop(busy)[1])
        while idle and waiting:
            _, request = heappop(waiting)
            slot = heappop(idle)
            yield Occupancy(request, slot, moment, moment + request.output_tokens)
            heappush(busy, (moment + request.output_tokens, slot))


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


def slot_trace(plan: Schedule) -> list[list[str | None]]:
    """For each step the name of the request in each slot, None where it is empty.

    Raises:
        CalculationError: the schedule has more than :data:`MOST_TRACED_STEPS` steps.
    """
    if plan.makespan > MOST_TRACED_STEPS:
        raise CalculationError.of(
            Code.IMPOSSIBLE_VALUE, "--trace", f"the schedule has {plan.makespan} steps", allowed=f"{MOST_TRACED_STEPS}"
        )
    steps: list[list[str | None]] = [[None] * plan.slots for _ in range(plan.makespan)]
    for occupancy in plan.occupancies:
        for step in range(occupancy.start, occupancy.finish):
            steps[step][occupancy.slot] = occupancy.request.name
    return steps
