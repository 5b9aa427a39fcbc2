"""Lanes and slots without AISBench: order, concurrency, progress."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence

import pytest

from ais_bench_prefix_cache.aisbench.adapters.schedule import RequestSchedule


def _predecessors(lanes: Sequence[object]) -> list[int | None]:
    last: dict[object, int] = {}
    predecessors = []
    for index, lane in enumerate(lanes):
        predecessors.append(last.get(lane))
        last[lane] = index
    return predecessors


async def _play(
    lanes: Sequence[object],
    slots: int,
    *,
    submit_order: Iterable[int] | None = None,
    fails: frozenset[int] = frozenset(),
    passes_early: bool = True,
    seed: int = 0,
) -> list[tuple[str, int]]:
    """Send one request a lane entry; returns (event, index) in the order in which they happened."""
    schedule, events, chance = RequestSchedule(slots), [], random.Random(seed)
    predecessors = _predecessors(lanes)

    async def request(index: int) -> None:
        async with schedule.turn(index, predecessors[index]):
            events.append(("start", index))
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            if index in fails:
                events.append(("end", index))
                raise ConnectionError
            if passes_early:
                events.append(("first token", index))
                schedule.pass_lane_on(index)
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            events.append(("end", index))

    order = range(len(lanes)) if submit_order is None else submit_order
    await asyncio.wait_for(asyncio.gather(*(request(index) for index in order), return_exceptions=True), timeout=20)
    return events


@pytest.mark.parametrize("slots", [1, 2, 8, 32, 1000])
@pytest.mark.parametrize("seed", range(10))
def test_every_request_starts_after_its_predecessor_and_slots_are_never_exceeded(slots: int, seed: int) -> None:
    chance = random.Random(seed)
    lanes = [chance.randrange(6) for _ in range(200)]
    fails = frozenset(chance.sample(range(200), 30))
    events = asyncio.run(_play(lanes, slots, fails=fails, seed=seed))
    when = {event: position for position, event in enumerate(events)}
    assert sorted(index for kind, index in events if kind == "start") == list(range(200))
    for index, predecessor in enumerate(_predecessors(lanes)):
        if predecessor is not None:
            released = ("end" if predecessor in fails else "first token", predecessor)
            assert when["start", index] > when[released]
    running = 0
    for kind, _ in events:
        running += {"start": 1, "end": -1}.get(kind, 0)
        assert running <= slots


def test_without_a_first_token_a_lane_waits_for_the_end() -> None:
    events = asyncio.run(_play([0] * 20, 8, passes_early=False))
    assert events == [event for index in range(20) for event in (("start", index), ("end", index))]


def test_requests_that_wait_for_their_lane_hold_no_slot() -> None:
    """One lane fills the front of the file; with two slots the other lanes must run beside it all the same."""

    async def scenario() -> None:
        schedule, started, go_on = RequestSchedule(2), [], asyncio.Event()
        predecessors = _predecessors([0] * 50 + [1])

        async def request(index: int) -> None:
            async with schedule.turn(index, predecessors[index]):
                started.append(index)
                await go_on.wait()

        tasks = [asyncio.create_task(request(index)) for index in range(51)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert started == [0, 50]
        go_on.set()
        await asyncio.wait_for(asyncio.gather(*tasks), timeout=5)

    asyncio.run(scenario())


def test_a_free_slot_goes_to_the_earliest_request_in_the_file() -> None:
    events = asyncio.run(_play(list(range(30)), 1, submit_order=[0, *reversed(range(1, 30))]))
    assert [index for kind, index in events if kind == "start"] == list(range(30))


def test_passing_a_lane_on_twice_releases_one_successor_only() -> None:
    async def scenario() -> None:
        schedule, started = RequestSchedule(10), []

        async def request(index: int, predecessor: int | None, hold: asyncio.Event) -> None:
            async with schedule.turn(index, predecessor):
                started.append(index)
                await hold.wait()

        hold = asyncio.Event()
        tasks = [
            asyncio.create_task(request(index, predecessor, hold)) for index, predecessor in ((0, None), (1, 0), (2, 1))
        ]
        await asyncio.sleep(0)
        schedule.pass_lane_on(0)
        schedule.pass_lane_on(0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert started == [0, 1]
        hold.set()
        await asyncio.wait_for(asyncio.gather(*tasks), timeout=5)

    asyncio.run(scenario())


def test_a_cancelled_wait_gives_its_slot_to_the_next() -> None:
    async def scenario() -> None:
        schedule, release = RequestSchedule(1), asyncio.Event()

        async def request(index: int) -> None:
            async with schedule.turn(index, None):
                await release.wait()

        tasks = [asyncio.create_task(request(index)) for index in range(4)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        release.set()
        outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), timeout=5)
        assert [type(outcome) for outcome in outcomes] == [type(None), asyncio.CancelledError, type(None), type(None)]

    asyncio.run(scenario())


def test_no_slots_are_refused() -> None:
    with pytest.raises(ValueError, match="slots must be positive, not 0"):
        RequestSchedule(0)


def test_a_turn_waits_for_the_end_and_many_may_wait_for_one() -> None:
    async def scenario() -> None:
        schedule, started, go_on = RequestSchedule(10), [], asyncio.Event()

        async def request(index: int, predecessor: int | None, continues: int | None) -> None:
            async with schedule.turn(index, predecessor, continues=continues):
                started.append(index)
                await go_on.wait()

        waits = [(0, None, None), (1, None, 0), (2, 0, None), (3, 0, None), (4, None, 0), (5, 3, 0), (6, 5, 0)]
        tasks = [asyncio.create_task(request(*each)) for each in waits]
        for _ in range(5):
            await asyncio.sleep(0)
        assert started == [0]
        schedule.pass_lane_on(0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert started == [0, 2, 3]
        go_on.set()
        await asyncio.wait_for(asyncio.gather(*tasks), timeout=5)
        assert sorted(started[3:]) == [1, 4, 5, 6]
        assert started.index(5) < started.index(6)

    asyncio.run(scenario())


def test_a_conversation_keeps_its_slot_until_it_is_over() -> None:
    """Three conversations of four turns with two slots: the third begins when one of the others has ended."""

    async def scenario() -> None:
        schedule, started = RequestSchedule(2), []

        async def request(index: int) -> None:
            async with schedule.turn(index, None, continues=index - 1 if index % 4 else None):
                started.append(index)
                for _ in range(3):
                    await asyncio.sleep(0)

        await asyncio.wait_for(asyncio.gather(*map(request, range(12))), timeout=5)
        assert set(started[:8]) == set(range(8))

    asyncio.run(scenario())


def test_a_pause_holds_no_slot() -> None:
    async def scenario() -> None:
        schedule, started = RequestSchedule(1), []

        async def request(index: int, continues: int | None, pause: float) -> None:
            async with schedule.turn(index, None, continues=continues, pause=pause):
                started.append(index)

        await asyncio.gather(request(0, None, 0.0), request(1, 0, 0.05), request(2, None, 0.0), request(3, 2, 0.0))
        assert started == [0, 2, 3, 1]

    asyncio.run(scenario())
