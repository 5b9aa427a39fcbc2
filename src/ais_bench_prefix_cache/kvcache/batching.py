"""Static and continuous batching on a fixed number of slots, one output token a step.

Static batching admits requests only into an empty batch and waits for its longest member; continuous batching
(Orca, OSDI 2022) fills a slot as soon as it is free. Steps are integers from 0; ``finish`` is the step after the
last token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ais_bench_prefix_cache.errors import CalculationError
from ais_bench_prefix_cache.kvcache.number_checks import require_at_least_one, require_not_negative

Policy = Literal["static", "continuous"]


@dataclass(frozen=True)
class BatchRequest:
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
    waiting = deque(sorted(requests, key=lambda request: request.arrival))
    free_from = [0] * slots
    occupancies: list[Occupancy] = []
    while waiting:
        if policy == "continuous":
            slot = min(range(slots), key=lambda index: (max(free_from[index], waiting[0].arrival), index))
            batch = [(slot, max(free_from[slot], waiting[0].arrival))]
        else:
            start = max(max(free_from), waiting[0].arrival)
            admitted = sum(request.arrival <= start for request in list(waiting)[:slots])
            batch = [(slot, start) for slot in range(admitted)]
        for slot, start in batch:
            request = waiting.popleft()
            free_from[slot] = start + request.output_tokens
            occupancies.append(Occupancy(request, slot, start, free_from[slot]))
    return Schedule(policy, slots, tuple(occupancies))


def _check(requests: Sequence[BatchRequest], slots: int) -> None:
    require_at_least_one(slots=slots)
    seen: set[str] = set()
    for request in requests:
        if request.name in seen:
            raise CalculationError.of("NAME_TWICE", f"request {request.name}", "every request needs a name of its own")
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
