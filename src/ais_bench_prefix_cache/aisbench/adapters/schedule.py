"""When a formal request may start: its predecessor first, then a free slot.

A lane is (group, dp_rank) in cold mode. Its requests must reach the server's cache one after another, or theory and
counter differ. The rule: a request may start once the one before it in its lane has its first token (then its whole
prompt is in the cache) or, without streaming, is finished - however it ended. A turn of a conversation needs the answer
to the turn before it, so it waits for that one's end, and may wait for another one's first token besides.

A request that waits for its predecessor holds no slot, so lanes never starve each other: the oldest unfinished request
never waits for another, therefore some request always can run. Free slots go to the lowest sequence index, which keeps
the file's order as far as the lanes allow; a conversation that goes on keeps its slot before a later one begins.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Waits:
    """How long a request waited, in seconds: for its predecessor, then for a slot."""

    lane: float
    slot: float


@dataclass
class _Unfinished:
    """A request under way, and who waits for its first token or its end."""

    has_token: bool = False
    after_token: list[asyncio.Future[None]] = field(default_factory=list)
    after_end: list[asyncio.Future[None]] = field(default_factory=list)


class RequestSchedule:
    """Slots and lanes of one event loop. ``slots`` is the number of requests in flight at most."""

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"slots must be positive, not {slots}")
        self._free = slots
        self._ready: list[tuple[int, asyncio.Future[None]]] = []
        self._unfinished: dict[int, _Unfinished] = {}

    @asynccontextmanager
    async def turn(
        self, index: int, predecessor: int | None, *, continues: int | None = None, pause: float = 0.0
    ) -> AsyncIterator[Waits]:
        """Wait until request ``index`` may be sent; on leaving, its slot is free and all that waits for it may go on.

        Both others are requests that entered :meth:`turn` before. The end of ``continues`` is waited for, then for
        ``pause`` seconds, then for the first token of ``predecessor``, all without a slot.
        """
        self._unfinished[index] = _Unfinished()
        try:
            begin = time.perf_counter()
            if continues is not None:
                await self._lets_go(continues, after_end=True)
            if pause:
                await asyncio.sleep(pause)
            if predecessor is not None:
                await self._lets_go(predecessor, after_end=False)
            lane_is_free = time.perf_counter()
            await self._slot(index)
            try:
                yield Waits(lane_is_free - begin, time.perf_counter() - lane_is_free)
            finally:
                self._end(index)
                # Not at once: who waited for this request's end asks for the slot first.
                asyncio.get_running_loop().call_soon(self._release_slot)
        finally:
            self._end(index)

    def pass_lane_on(self, index: int) -> None:
        """Those that wait for the first token of ``index`` may start. Repeating it changes nothing."""
        request = self._unfinished.get(index)
        if request is not None:
            request.has_token = True
            _let_go(request.after_token)

    def _end(self, index: int) -> None:
        self.pass_lane_on(index)
        request = self._unfinished.pop(index, None)
        if request is not None:
            _let_go(request.after_end)

    async def _lets_go(self, earlier: int, *, after_end: bool) -> None:
        request = self._unfinished.get(earlier)
        if request is None or (request.has_token and not after_end):
            return
        waiting = asyncio.get_running_loop().create_future()
        (request.after_end if after_end else request.after_token).append(waiting)
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


def _let_go(waiting: list[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)
    waiting.clear()
