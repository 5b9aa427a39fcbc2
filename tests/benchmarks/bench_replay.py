"""A replay of 10 million block references and its capacity curve, beside a plain dictionary loop over the same hashes.

    python -m tests.benchmarks.bench_replay [--references 10000000]

Prints one JSON document; the ratios are what to compare between machines. ``growth`` is the time of the whole against
ten times that of a tenth: about 1 for work that grows with the references.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable

from ais_bench_prefix_cache.kvcache.trace_replay import TraceReplay, TraceRequest

BLOCK_SIZE = 16
BLOCKS_OF_A_REQUEST = 250
REQUESTS_OF_A_CONVERSATION = 100
REFERENCES_OF_A_CACHE_BLOCK = 250


def requests(references: int) -> list[TraceRequest]:
    """Requests of 250 blocks whose first 0 … 249 blocks are the beginning of a conversation.

    More requests are more conversations, as more traffic is, and the cache grows with them.
    """
    numbers = random.Random(42)
    count = references // BLOCKS_OF_A_REQUEST
    trees = max(1, count // REQUESTS_OF_A_CONVERSATION)
    trunks = [
        [tree.to_bytes(8, "little") + block.to_bytes(8, "little") for block in range(BLOCKS_OF_A_REQUEST)]
        for tree in range(trees)
    ]
    made = []
    for number in range(count):
        shared = numbers.randrange(BLOCKS_OF_A_REQUEST)
        own = [
            (trees + number).to_bytes(8, "little") + block.to_bytes(8, "little")
            for block in range(shared, BLOCKS_OF_A_REQUEST)
        ]
        hashes = numbers.choice(trunks)[:shared] + own
        made.append(TraceRequest(hashes, BLOCK_SIZE * BLOCKS_OF_A_REQUEST + 5))
    return made


def dictionary_loop(sent: list[TraceRequest]) -> None:
    """The least that any replay must do: look at every hash once."""
    seen: dict[bytes, int] = {}
    for request in sent:
        for block_hash in request.block_hashes:
            seen[block_hash] = seen.get(block_hash, 0) + 1


def replay(sent: list[TraceRequest]) -> None:
    bounded = TraceReplay(
        block_size=BLOCK_SIZE, num_blocks=max(300, len(sent) * BLOCKS_OF_A_REQUEST // REFERENCES_OF_A_CACHE_BLOCK)
    )
    for request in sent:
        bounded.send(request)


def curve(sent: list[TraceRequest]) -> None:
    unbounded = TraceReplay(block_size=BLOCK_SIZE)
    for request in sent:
        unbounded.send(request)
    unbounded.capacity_curve()


def seconds(work: Callable[[list[TraceRequest]], None], sent: list[TraceRequest]) -> float:
    """CPU seconds of this process: other processes on the machine do not count."""
    start = time.process_time()
    work(sent)
    return time.process_time() - start


def measure(references: int) -> dict[str, object]:
    """Times of all three, their ratios to the dictionary loop and their growth."""
    sent = requests(references)
    tenth = requests(references // 10)
    loop = seconds(dictionary_loop, sent)
    result: dict[str, object] = {"references": references, "dictionary_loop_s": round(loop, 2)}
    for work in (replay, curve):
        small = seconds(work, tenth)
        whole = seconds(work, sent)
        result[f"{work.__name__}_s"] = round(whole, 2)
        result[f"{work.__name__}_to_dictionary_loop"] = round(whole / loop, 2)
        result[f"{work.__name__}_growth"] = round(whole / (10 * small), 2)
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--references", type=int, default=10_000_000, help="of blocks (default: %(default)s)")
    print(json.dumps(measure(parser.parse_args().references), indent=2))
