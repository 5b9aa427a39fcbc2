"""Sends traces through vLLM's own ``KVCacheManager``, one a rank; needs vLLM's virtual environment, no model.

Reads one trace a line (JSON) on stdin and answers each with hit tokens, free blocks and evictions after every request.
A request computes its prompt and all of its output but the last token, at once, and holds its blocks until it is ended:
the oldest of all when ``concurrency`` are running, the oldest of a rank where that has no room.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from tests.real.drive_vllm_kv_cache_manager import Driver
from tests.real.driving import answer_each_line
from vllm.distributed.kv_events import BlockRemoved
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.request import Request


def run(trace: dict[str, Any]) -> list[list[int]]:
    ranks = [Driver(trace["block_size"], trace["num_blocks"], False, events=True) for _ in range(trace["ranks"])]
    evictions = [0] * len(ranks)
    running: list[tuple[int, Request]] = []
    generated = count(1_000_000)
    seen = []
    for number, sent in enumerate(trace["requests"]):
        if len(running) == trace["concurrency"]:
            end(ranks, running, 0)
        rank, outputs = sent["rank"], sent["output_tokens"]
        manager = ranks[rank].manager
        request = ranks[rank].request(str(number), sent["token_ids"], sent["keys"])
        while True:
            blocks, hit_tokens, _ = manager.get_computed_blocks(request)
            new = request.num_tokens - hit_tokens
            if manager.allocate_slots(request, new, hit_tokens, blocks, num_lookahead_tokens=outputs - 1) is not None:
                break
            end(ranks, running, next(index for index, (other, _) in enumerate(running) if other == rank))
        request.num_computed_tokens = request.num_tokens
        for _ in range(outputs - 1):
            request.append_output_token_ids([next(generated)])
            assert manager.allocate_slots(request, 1) is not None
            request.num_computed_tokens += 1
        running.append((rank, request))
        evictions[rank] += sum(isinstance(event, BlockRemoved) for event in manager.take_events())
        seen.append([hit_tokens, manager.block_pool.get_num_free_blocks(), evictions[rank]])
    return seen


def end(ranks: list[Driver], running: list[tuple[int, Request]], index: int) -> None:
    rank, request = running.pop(index)
    ranks[rank].manager.free(request)


def main() -> None:
    init_none_hash(sha256)
    answer_each_line(run)


if __name__ == "__main__":
    main()
