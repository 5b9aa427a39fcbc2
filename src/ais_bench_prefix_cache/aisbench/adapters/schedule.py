"""When a formal request may start: its lane's turn first, then a free slot.

A lane is (group, dp_rank) in cold mode. Its requests must reach the server's cache one after another, or theory and
counter differ. The rule: a request may start once the one before it in its lane has its first token (then its whole
prompt is in the cache) or, without streaming, is finished - however it ended.

A request that waits for its lane holds no slot, so lanes never starve each other: the oldest unfinished request never
waits for its lane, therefore some request always can run. Free slots go to the lowest sequence index, which keeps the
file's order as far as the lanes allow.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Waits:
    """How long a request waited, in seconds: for the one before it in its lane, then for a slot."""

    lane: float
    slot: float


class RequestSchedule:
    """Slots and lanes of one event loop. ``slots`` is the number of requests in flight at most."""

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"slots must be positive, not {slots}")
        self._free = slots
        self._ready: list[tuple[int, asyncio.Future[None]]] = []
        self._blocked: dict[int, asyncio.Future[None]] = {}
        self._holding_lane: set[int] = set()
        self._passed_on: set[int] = set()

    @asynccontextmanager
    async def turn(self, index: int, predecessor: int | None) -> AsyncIterator[Waits]:
        """Wait until request ``index`` may be sent; on leaving, its lane and its slot are free.

        ``predecessor`` is the index of the request before it in its lane, which must go through :meth:`turn`, too.
        """
        self._holding_lane.add(index)
        try:
            begin = time.perf_counter()
            if predecessor is not None:
                await self._lane_is_passed_on(predecessor)
            lane_is_free = time.perf_counter()
            await self._slot(index)
            try:
                yield Waits(lane_is_free - begin, time.perf_counter() - lane_is_free)
            finally:
                self._release_slot()
        finally:
            self.pass_lane_on(index)

    def pass_lane_on(self, index: int) -> None:
        """The next request of ``index``'s lane may start. Repeating it changes nothing."""
        if index not in self._holding_lane:
            return
        self._holding_lane.remove(index)
        waiting = self._blocked.pop(index, None)
        if waiting is None:
            self._passed_on.add(index)
        elif not waiting.done():
            waiting.set_result(None)

    async def _lane_is_passed_on(self, predecessor: int) -> None:
        if predecessor in self._passed_on:
            self._passed_on.remove(predecessor)
            return
        waiting = asyncio.get_running_loop().create_future()
        self._blocked[predecessor] = waiting
        await waiting

    async def _slot(self, index: int) -> None:
        if self._free > 0:
            self._free -= 1
            return
        waiting = asyncio.get_running_loop().create_future()
        heapq.heappush(self._ready, (index, waiting))
        try:
            await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled():
                self._release_slot()
            raise

    def _release_slot(self) -> None:
        while self._ready:
            _, waiting = heapq.heappop(self._ready)
            if not waiting.done():
                waiting.set_result(None)
                return
        self._free += 1
