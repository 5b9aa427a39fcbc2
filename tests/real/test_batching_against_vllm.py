"""Our batch scheduler and vLLM's own ``Scheduler`` do the same, step for step, on random traffic.

Requests arrive while others run, with shared prefixes, chunked prefills, answers of several tokens, more requests than
the cache holds (so that some wait and some are preempted), aborts and resets, also of running requests. After every
step both sides tell which request computed how many tokens, what was counted, and how many blocks are free.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from tests.real.real_vllm import drive

from ais_bench_prefix_cache.kvcache.prefix_cache import CachedSequence, PrefixCache
from ais_bench_prefix_cache.kvcache.scheduler import BatchedRequest, BatchScheduler

pytestmark = pytest.mark.real

NUM_STRETCHES = int(os.environ.get("AISBENCH_PREFIX_CACHE_DIFFERENTIAL_STRETCHES", "2000"))
SEED = 20261130


def random_traffic(randomness: random.Random) -> dict[str, Any]:
    """A few dozen steps of traffic in which every request could run alone."""
    block_size = randomness.choice((1, 2, 4, 8, 16))
    num_blocks = randomness.randint(3, 40)
    capacity = block_size * num_blocks
    trunks = [[randomness.randrange(50) for _ in range(capacity)] for _ in range(randomness.randint(1, 3))]
    events: list[dict[str, Any]] = []
    names: list[int] = []
    for _ in range(randomness.randint(5, 40)):
        event: dict[str, Any] = {"add": [], "abort": [], "reset": None}
        for _ in range(randomness.choice((0, 0, 1, 1, 2, 5))):
            max_tokens = randomness.randint(1, min(capacity - 1, 3 * block_size, 20))
            longest = min(capacity - max_tokens, 12 * block_size)
            shared = randomness.randint(0, longest)
            tail = [randomness.randrange(50) for _ in range(randomness.randint(0, longest - shared))]
            token_ids = (randomness.choice(trunks)[:shared] + tail) or [7]
            names.append(len(names))
            event["add"].append([names[-1], token_ids, max_tokens])
        if names and randomness.random() < 0.05:
            event["abort"].append(randomness.choice(names))
        if randomness.random() < 0.08:
            event["reset"] = randomness.choice(("idle", "idle", "running"))
        events.append(event)
    events += [{"add": [], "abort": [], "reset": None}] * randomness.choice((0, 60))
    return {
        "block_size": block_size,
        "num_blocks": num_blocks,
        "max_num_seqs": randomness.randint(1, 8),
        "max_num_batched_tokens": randomness.choice((block_size * 20, block_size * 4 + 1, 9)),
        "events": events,
    }


def run_ours(traffic: dict[str, Any]) -> tuple[list[list[Any]], int]:
    """What our scheduler saw in every step, and how often it preempted a request."""
    cache = PrefixCache(traffic["block_size"], traffic["num_blocks"])
    scheduler = BatchScheduler(
        cache, max_num_seqs=traffic["max_num_seqs"], max_num_batched_tokens=traffic["max_num_batched_tokens"]
    )
    requests: dict[int, BatchedRequest[CachedSequence]] = {}
    names: dict[BatchedRequest[CachedSequence], int] = {}
    observations = []
    preemptions = 0
    for event in traffic["events"]:
        for name, token_ids, max_tokens in event["add"]:
            requests[name] = BatchedRequest(cache.sequence(token_ids), max_tokens)
            names[requests[name]] = name
            scheduler.add(requests[name])
        for name in event["abort"]:
            scheduler.abort(requests[name])
        reset = scheduler.reset_cache(preempt_running=event["reset"] == "running") if event["reset"] else None
        queries, hits = cache.queries, cache.hits
        step = scheduler.schedule()
        scheduler.finish_step(step, lambda request: (names[request] * 31 + request.num_output_tokens) % 50)
        preemptions += len(step.preempted)
        observations.append(
            [
                reset,
                [[names[chunk.request], chunk.num_tokens] for chunk in step.chunks],
                cache.queries - queries,
                cache.hits - hits,
                len(scheduler.running),
                len(scheduler.waiting),
                cache.pool.num_free,
            ]
        )
    return observations, preemptions


def test_every_step_is_the_same(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    randomness = random.Random(SEED)
    stretches = [random_traffic(randomness) for _ in range(NUM_STRETCHES)]
    answers = drive("drive_vllm_scheduler", stretches, tiny_model)
    steps = requests = hits = preemptions = 0
    for number, (traffic, answer) in enumerate(zip(stretches, answers, strict=True)):
        observations, preempted = run_ours(traffic)
        for step, (observed, seen) in enumerate(zip(observations, answer, strict=True)):
            assert observed == seen, f"stretch {number}, step {step}: {json.dumps(traffic)}"
        steps += len(observations)
        requests += sum(len(event["add"]) for event in traffic["events"])
        hits += sum(observed[3] > 0 for observed in observations)
        preemptions += preempted
    with capsys.disabled():
        print(
            f"\n{NUM_STRETCHES} stretches of traffic: {requests} requests, {steps} steps, {hits} of them with hits, "
            f"{preemptions} preemptions"
        )
    assert min(hits, preemptions) > NUM_STRETCHES / 10
