"""Routing, several requests at once, and refusals of the replay of block hashes."""

from __future__ import annotations

from typing import Any

import pytest

from ais_bench_prefix_cache.foundation.errors import CalculationError
from ais_bench_prefix_cache.kvcache.block_hash import ExtraKeys, block_hashes
from ais_bench_prefix_cache.kvcache.trace_replay import TraceReplay, TraceRequest


def request(first: int, blocks: int, *, extra_keys: ExtraKeys | None = None, **keys: Any) -> TraceRequest:
    """A prompt of ``blocks`` whole blocks of 4 tokens and one token more."""
    prompt = [*range(first, first + 4 * blocks), 9]
    return TraceRequest(block_hashes(prompt, 4, extra_keys=extra_keys), len(prompt), **keys)


def ranks(replay: TraceReplay, requests: list[TraceRequest]) -> list[int]:
    return [replay.send(each).rank for each in requests]


def test_requests_go_round_robin() -> None:
    assert ranks(TraceReplay(block_size=4, ranks=3), [request(0, 1)] * 5) == [0, 1, 2, 0, 1]


def test_groups_go_to_ranks_in_the_order_in_which_they_appear() -> None:
    sent = [request(0, 1, group=name) for name in ("b", "a", "b", "c", "a")]
    assert ranks(TraceReplay(block_size=4, ranks=2, routing="group"), sent) == [0, 1, 0, 0, 1]


def test_a_field_names_the_rank() -> None:
    replay = TraceReplay(block_size=4, ranks=2, routing="field")
    assert ranks(replay, [request(0, 1, rank=1), request(0, 1, rank=0)]) == [1, 0]
    for wrong, message in [(2, "names rank 2"), (None, "names no rank")]:
        with pytest.raises(CalculationError) as caught:
            replay.send(request(0, 1, rank=wrong))
        assert str(caught.value) == f"request 3: {message} (allowed: 0 to 1)"


@pytest.mark.parametrize("num_blocks", [None, 100])
def test_the_least_loaded_rank_holds_the_fewest_blocks(num_blocks: int | None) -> None:
    replay = TraceReplay(block_size=4, ranks=2, routing="least-loaded", concurrency=3, num_blocks=num_blocks)
    # 9 blocks on rank 0, so two of 3 on rank 1; the first ends before the fourth starts.
    assert ranks(replay, [request(0, 8), request(100, 2), request(200, 2), request(300, 2)]) == [0, 1, 1, 0]


@pytest.mark.parametrize("num_blocks", [None, 100])
def test_the_longest_cached_prefix_wins(num_blocks: int | None) -> None:
    replay = TraceReplay(block_size=4, ranks=2, routing="prefix-aware", num_blocks=num_blocks)
    sent = [request(0, 2), request(100, 2), request(100, 5), request(0, 5), request(200, 1)]
    assert ranks(replay, sent) == [0, 1, 1, 0, 0]
    assert [totals.hits for totals in replay.totals] == [8, 8]


def test_running_requests_keep_their_blocks() -> None:
    # Three prompts of 3 blocks each: one after another 6 blocks keep the first until it comes again; with two running,
    # both hold 6 blocks, and nothing is left for the third but what the first gives back.
    sent = [request(0, 2), request(100, 2), request(0, 2)]
    alone = TraceReplay(block_size=4, num_blocks=6)
    assert [alone.send(each).hit_tokens for each in sent] == [0, 0, 8]
    together = TraceReplay(block_size=4, num_blocks=6, concurrency=2)
    assert [together.send(each).hit_tokens for each in [*sent[:2], request(200, 2), sent[0]]] == [0, 0, 0, 0]


def test_a_request_without_room_waits_for_the_oldest_of_its_rank() -> None:
    replay = TraceReplay(block_size=4, num_blocks=4, concurrency=9)
    assert [replay.send(each).hit_tokens for each in [request(0, 2), request(100, 2), request(100, 2)]] == [0, 0, 8]
    # The second takes one of the first's two cached blocks; the third needs one block beside the two that it shares.
    assert replay.evictions == [2]


def test_warm_ups_fill_caches_and_are_not_counted() -> None:
    replay = TraceReplay(block_size=4, ranks=2)
    replay.send(request(0, 3), rank=1, counted=False)
    assert [replay.send(request(0, 3), rank=rank).hit_tokens for rank in (0, 1)] == [0, 12]
    assert [(totals.requests, totals.queries, totals.hits) for totals in replay.totals] == [(1, 13, 0), (1, 13, 12)]


@pytest.mark.parametrize("num_blocks", [None, 100])
@pytest.mark.parametrize(
    ("prompt", "extra_keys", "hit_tokens"),
    [
        ([101, 202, 303, 1], None, 3),
        ([101, 202, 304, 1], None, 0),  # another token
        ([5, 101, 202, 303, 1], None, 0),  # another position
        ([101, 202, 303, 1], ExtraKeys(model="model-v2"), 0),
        ([101, 202, 303, 1], ExtraKeys(model="model-v1"), 0),  # a named model is not the unnamed one
        ([101, 202, 303, 1], ExtraKeys(lora=("adapter", "/adapter")), 0),
        ([101, 202, 303, 1], ExtraKeys(cache_salt="salt"), 0),
    ],
)
def test_only_the_exact_key_hits(
    prompt: list[int], extra_keys: ExtraKeys | None, hit_tokens: int, num_blocks: int | None
) -> None:
    replay = TraceReplay(block_size=3, num_blocks=num_blocks)
    first = [101, 202, 303, 1]
    replay.send(TraceRequest(block_hashes(first, 3), 4))
    sent = TraceRequest(block_hashes(prompt, 3, extra_keys=extra_keys), len(prompt))
    assert [replay.send(sent).hit_tokens, replay.send(sent).hit_tokens] == [hit_tokens, 3]


def test_impossible_replays_are_refused() -> None:
    with pytest.raises(CalculationError) as caught:
        TraceReplay(block_size=4, num_blocks=3).send(request(0, 3, output_tokens=4))
    assert str(caught.value) == (
        "request 1: its 13 prompt and 4 output tokens need 4 blocks of 4 tokens, but a rank has 3"
    )
    with pytest.raises(CalculationError, match=r"^ranks: is 0 \(allowed: 1 or more\)$"):
        TraceReplay(block_size=4, ranks=0)
    refused: tuple[dict[str, Any], ...] = ({"num_blocks": 5}, {"concurrency": 2}, {"routing": "prefix-aware"})
    for keys in refused:
        with pytest.raises(CalculationError, match="the same for all of them"):
            TraceReplay(block_size=4, **keys).capacity_curve()
