"""``simulate``'s replay and vLLM's own ``KVCacheManager`` hit and evict the same, request for request.

Random JSONL files with shared prefixes, images, LoRA adapters, salts and output lengths are read as ``simulate`` reads
them and sent through finite caches of several ranks, some at once; the same rows go through one manager a rank.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.real.real_vllm import drive

from ais_bench_prefix_cache.datasets.traces.reading import read_trace
from ais_bench_prefix_cache.kvcache.trace_replay import RoutingRule, TraceReplay

pytestmark = pytest.mark.real

NUM_TRACES = int(os.environ.get("AISBENCH_PREFIX_CACHE_DIFFERENTIAL_TRACES", "2000"))
SEED = 20261130


def random_rows(randomness: random.Random, block_size: int) -> list[dict[str, Any]]:
    trunks = [[randomness.randrange(50) for _ in range(block_size * 8)] for _ in range(randomness.randint(1, 3))]
    rows = []
    for _ in range(randomness.randint(5, 40)):
        trunk = randomness.choice(trunks)
        shared = randomness.randint(0, len(trunk))
        shared -= shared % block_size * randomness.randrange(2)
        tail = [randomness.randrange(50) for _ in range(randomness.randint(0, block_size * 2))]
        row: dict[str, Any] = {
            "token_ids": (trunk[:shared] + tail) or [7],
            "output_tokens": randomness.choice((1, 1, 2, randomness.randint(1, 3 * block_size))),
            "group_id": f"g{randomness.randrange(4)}",
            "dp_rank": 0,
        }
        if randomness.random() < 0.15:
            row["lora"] = randomness.choice(({"name": "a", "path": "/a"}, {"name": "a", "path": "/b"}, "a"))
        if randomness.random() < 0.15:
            row["cache_salt"] = randomness.choice(("s", "t", ""))
        if randomness.random() < 0.4:
            places = sorted(randomness.sample(range(len(row["token_ids"]) + 1), min(4, len(row["token_ids"]) + 1)))
            pairs = zip(places[::2], places[1::2], strict=False)
            row["images"] = [
                {"hash": f"image-{randomness.randrange(2)}", "offset": first, "length": end - first}
                for first, end in pairs
            ]
            randomness.shuffle(row["images"])
        rows.append(row)
    return rows


def keys_of(row: dict[str, Any]) -> dict[str, Any]:
    """The same row in the words of the driver."""
    keys: dict[str, Any] = {}
    if row.get("cache_salt"):
        keys["salt"] = row["cache_salt"]
    if "lora" in row:
        # vLLM wants a path; ours is empty where a row has a name only.
        lora = row["lora"]
        keys["lora"] = [lora["name"], lora["path"]] if isinstance(lora, dict) else [lora, "/only-a-name"]
    images = sorted(row.get("images", ()), key=lambda image: int(image["offset"]))
    keys["multimodal"] = [[image["hash"], image["offset"], image["length"]] for image in images]
    return keys


def test_every_request_hits_and_evicts_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    randomness = random.Random(SEED)
    traces, ours = [], []
    for _ in range(NUM_TRACES):
        block_size, ranks = randomness.choice((1, 2, 4, 4, 8)), randomness.choice((1, 1, 2, 3))
        rows = random_rows(randomness, block_size)
        for row in rows:
            row["dp_rank"] = randomness.randrange(ranks)
        largest = max((len(row["token_ids"]) + row["output_tokens"] - 2) // block_size + 1 for row in rows)
        num_blocks = randomness.randint(largest, 4 * largest)
        concurrency = randomness.choice((1, 1, 2, 5))
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        replay = TraceReplay(
            block_size=block_size,
            num_blocks=num_blocks,
            ranks=ranks,
            routing=randomness.choice(get_args(RoutingRule)),
            concurrency=concurrency,
        )
        seen, sent = [], []
        for row, read in zip(rows, read_trace(path), strict=True):
            replayed = replay.send(read.request(block_size))
            free = replay._pools[replayed.rank].num_free
            seen.append([replayed.hit_tokens, free, replay.evictions[replayed.rank]])
            sent.append({**row, "rank": replayed.rank, "keys": keys_of(row)})
        ours.append(seen)
        settings = {"block_size": block_size, "num_blocks": num_blocks, "ranks": ranks, "concurrency": concurrency}
        traces.append({**settings, "requests": sent})
    theirs = drive("drive_vllm_trace", traces)
    for trace, seen, answer in zip(traces, ours, theirs, strict=True):
        assert seen == answer, trace
    requests = sum(map(len, ours))
    hits = sum(each[0] > 0 for seen in ours for each in seen)
    evictions = sum(max(each[2] for each in seen) for seen in ours)
    with capsys.disabled():
        print(f"\n{NUM_TRACES} traces: {requests} requests, {hits} with hits, at least {evictions} evictions")
    # A comparison in which nothing happens proves nothing.
    assert min(hits, evictions) > NUM_TRACES
