"""AISBench's status queue holds 5 x batch_size events and is filled without waiting: a busy moment kills its worker."""

from __future__ import annotations

import asyncio
import queue
from typing import Any

import pytest

pytestmark = pytest.mark.aisbench

REQUESTS = 60


async def _events_of_a_request(counter: Any) -> None:
    """What AISBench reports about one successful request, without giving another thread time to listen."""
    await counter.post()
    await counter.rev()
    await counter.finish()
    await counter.case_finish()


async def _burst(counter: Any) -> None:
    for _ in range(REQUESTS):
        await _events_of_a_request(counter)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_burst_overflows_aisbench_own_queue_but_not_ours(batch_size: int) -> None:
    from ais_bench.benchmark.openicl.icl_inferencer.icl_base_api_inferencer import StatusCounter

    from ais_bench_prefix_cache.aisbench.adapters.inferencer import PrefixCacheInferencer

    with pytest.raises(queue.Full):
        asyncio.run(_burst(StatusCounter(batch_size)))

    inferencer = PrefixCacheInferencer.__new__(PrefixCacheInferencer)
    inferencer.status_counter = StatusCounter(batch_size)
    counter = inferencer.status_counter
    asyncio.run(_burst(counter))
    counter.start()
    counter.stop()
    counter.join(timeout=10)
    assert (counter.post_req, counter.get_req, counter.finish_req, counter.case_finish_req) == (REQUESTS,) * 4
    assert counter.failed_req == 0
