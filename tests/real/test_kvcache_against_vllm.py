"""Our cache and vLLM's own ``KVCacheManager`` do the same, operation for operation, on random request sequences.

A sequence mixes concurrent requests with shared prefixes, chunked prefills, generated tokens, failed allocations,
preemptions (free and start again), resets, LoRA names, cache salts and images, on pools from 1 to 80 blocks. After
every operation both sides tell what they saw: hit tokens, success, counters, free blocks.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from tests.real.real_vllm import drive

from ais_bench_prefix_cache.kvcache.block_hash import ExtraKeys, MultimodalItem
from ais_bench_prefix_cache.kvcache.prefix_cache import CachedSequence, PrefixCache

pytestmark = pytest.mark.real

NUM_SEQUENCES = int(os.environ.get("AISBENCH_PREFIX_CACHE_DIFFERENTIAL_SEQUENCES", "10000"))
BATCH = 2500
SEED = 20261129


def random_sequence(randomness: random.Random) -> dict[str, Any]:
    """A sequence of operations that a scheduler could ask for."""
    block_size = randomness.choice((1, 2, 4, 4, 8, 16))
    num_blocks = randomness.choice((randomness.randint(1, 12), randomness.randint(12, 80)))
    trunks = [[randomness.randrange(50) for _ in range(block_size * 12)] for _ in range(randomness.randint(1, 3))]
    keys: list[dict[str, Any] | None] = [None, None, None, {"salt": "s"}, {"lora": ["a", "/a"]}, {"lora": ["a", "/b"]}]
    live: list[int] = []
    idle: list[int] = []
    operations: list[list[Any]] = []
    for number in range(randomness.randint(5, 40)):
        choice = randomness.random()
        if choice < 0.4 or not live:
            trunk = randomness.choice(trunks)
            shared = randomness.randint(0, len(trunk))
            if randomness.random() < 0.5:
                shared -= shared % block_size
            tail = [randomness.randrange(50) for _ in range(randomness.randint(0, block_size * 4))]
            token_ids = (trunk[:shared] + tail) or [7]
            key = randomness.choice(keys)
            if randomness.random() < 0.15:
                offset = randomness.randrange(len(token_ids))
                length = randomness.randint(1, len(token_ids) - offset)
                key = {"multimodal": [[f"image-{randomness.randrange(2)}", offset, length]]}
            budget = randomness.choice((10**6, 10**6, randomness.randint(1, block_size * 6)))
            operations.append(["admit", number, token_ids, budget, randomness.random() < 0.7, key])
            live.append(number)
        elif choice < 0.48:
            operations.append(["proceed", randomness.choice(live), randomness.choice((10**6, block_size))])
        elif choice < 0.58:
            name = randomness.choice(live)
            tokens = [randomness.randrange(50) for _ in range(randomness.randint(1, block_size + 1))]
            for token_id in tokens:
                operations += [["append", name, [token_id]], ["proceed", name, 10**6]]
        elif choice < 0.93:
            name = live.pop(randomness.randrange(len(live)))
            operations.append(["free", name])
            idle.append(name)
        elif choice < 0.97 and idle:
            name = idle.pop(randomness.randrange(len(idle)))
            operations.append(["start", name, 10**6, True])
            live.append(name)
        else:
            if randomness.random() < 0.5:
                operations += [["free", name] for name in live]
                live.clear()
            operations.append(["reset"])
    return {
        "block_size": block_size,
        "num_blocks": num_blocks,
        "drops_last_hit_block": randomness.random() < 0.1,
        "operations": operations,
    }


class OurCache:
    """The same operations as ``drive_vllm_kv_cache_manager.Driver``, on our cache."""

    def __init__(self, block_size: int, num_blocks: int, drops_last_hit_block: bool) -> None:
        self.cache = PrefixCache(block_size, num_blocks, drops_last_hit_block=drops_last_hit_block)
        self.sequences: dict[int, CachedSequence] = {}

    def run(self, operation: list[Any]) -> list[Any]:
        name, *arguments = operation
        return [*getattr(self, name)(*arguments), self.cache.pool.num_free]

    def admit(
        self, name: int, token_ids: list[int], budget: int, whole: bool, keys: dict[str, Any] | None
    ) -> list[Any]:
        keys = keys or {}
        extra_keys = ExtraKeys(
            lora=tuple(keys["lora"]) if "lora" in keys else None,
            cache_salt=keys.get("salt"),
            multimodal_items=tuple(MultimodalItem(*item) for item in keys.get("multimodal", ())),
        )
        self.sequences[name] = self.cache.sequence(token_ids, extra_keys if keys else None)
        return self.start(name, budget, whole)

    def start(self, name: int, budget: int, whole: bool) -> list[Any]:
        sequence = self.sequences[name]
        hit_blocks = self.cache.lookup(sequence)
        hit_tokens = len(hit_blocks) * self.cache.block_size
        num_new_tokens = min(sequence.num_tokens - hit_tokens, budget)
        before = self.cache.queries, self.cache.hits
        allocated = self.cache.allocate(sequence, num_new_tokens, hit_blocks, whole_sequence_must_fit=whole)
        if allocated:
            self.cache.record(sequence, hit_blocks)
            sequence.num_computed_tokens = hit_tokens + num_new_tokens
        return [hit_tokens, allocated, self.cache.queries - before[0], self.cache.hits - before[1]]

    def proceed(self, name: int, budget: int) -> list[Any]:
        sequence = self.sequences[name]
        num_new_tokens = min(sequence.num_tokens - sequence.num_computed_tokens, budget)
        if num_new_tokens == 0:
            return [None]
        allocated = self.cache.allocate(sequence, num_new_tokens)
        if allocated:
            sequence.num_computed_tokens += num_new_tokens
        return [allocated]

    def append(self, name: int, token_ids: list[int]) -> list[Any]:
        for token_id in token_ids:
            self.cache.append(self.sequences[name], token_id)
        return []

    def free(self, name: int) -> list[Any]:
        self.cache.free(self.sequences[name])
        return []

    def reset(self) -> list[Any]:
        return [self.cache.reset()]


def test_every_sequence_sees_the_same_hits(capsys: pytest.CaptureFixture[str]) -> None:
    randomness = random.Random(SEED)
    admissions = hits = failures = evictions = resets = 0
    for start in range(0, NUM_SEQUENCES, BATCH):
        sequences = [random_sequence(randomness) for _ in range(min(BATCH, NUM_SEQUENCES - start))]
        answers = drive("drive_vllm_kv_cache_manager", sequences)
        for number, (sequence, answer) in enumerate(zip(sequences, answers, strict=True), start):
            operations = sequence.pop("operations")
            ours = OurCache(**sequence)
            for step, (operation, seen) in enumerate(zip(operations, answer, strict=True)):
                observed = ours.run(operation)
                assert observed == seen, f"sequence {number} {sequence}, step {step}: {operations[: step + 1]}"
                if operation[0] in ("admit", "start"):
                    admissions += 1
                    hits += observed[0] > 0
                    failures += not observed[1]
                resets += operation[0] == "reset" and observed[0]
            evictions += ours.cache.pool.evictions
    with capsys.disabled():
        print(
            f"\n{NUM_SEQUENCES} sequences: {admissions} admissions, {hits} with hits, {failures} refused for lack of "
            f"blocks, {evictions} evictions, {resets} resets"
        )
    # A comparison in which nothing happens proves nothing.
    assert min(hits, failures, evictions, resets) > NUM_SEQUENCES / 10
