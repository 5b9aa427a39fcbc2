"""Lookup, allocation and counting of one engine's cache. The numbers were seen on a real vLLM 0.32."""

from __future__ import annotations

import pytest

from ais_bench_prefix_cache.kvcache.block_hash import ExtraKeys
from ais_bench_prefix_cache.kvcache.prefix_cache import CachedSequence, PrefixCache


def admit(cache: PrefixCache, token_ids: list[int], extra_keys: ExtraKeys | None = None) -> CachedSequence:
    sequence = cache.sequence(token_ids, extra_keys)
    hit_blocks = cache.lookup(sequence)
    hit_tokens = len(hit_blocks) * cache.block_size
    assert cache.allocate(sequence, len(token_ids) - hit_tokens, hit_blocks, whole_sequence_must_fit=True)
    cache.record(sequence, hit_blocks)
    sequence.num_computed_tokens = len(token_ids)
    return sequence


def send(cache: PrefixCache, token_ids: list[int], extra_keys: ExtraKeys | None = None) -> int:
    """One request from admission to its end; returns its hit tokens."""
    before = cache.hits
    cache.free(admit(cache, token_ids, extra_keys))
    return cache.hits - before


@pytest.mark.parametrize(("num_tokens", "hit_tokens"), [(31, 0), (32, 0), (33, 32), (256, 224), (257, 256)])
def test_the_last_token_of_a_repeated_prompt_is_computed_again(num_tokens: int, hit_tokens: int) -> None:
    cache = PrefixCache(32, 100)
    assert send(cache, list(range(num_tokens))) == 0
    assert send(cache, list(range(num_tokens))) == hit_tokens
    assert (cache.queries, cache.hits) == (2 * num_tokens, hit_tokens)


def test_speculative_decoding_hits_a_block_less() -> None:
    cache = PrefixCache(32, 100, drops_last_hit_block=True)
    assert [send(cache, list(range(257))) for _ in range(2)] == [0, 224]


def test_the_least_recently_used_blocks_go_first() -> None:
    # vLLM with --num-gpu-blocks-override 40: 8 prompts of 8 blocks, twice; the second pass found nothing.
    cache = PrefixCache(32, 39)
    prompts = [list(range(1000 * number, 1000 * number + 256)) for number in range(8)]
    assert [send(cache, prompt) for prompt in prompts * 2] == [0] * 16
    assert cache.pool.evictions > 0


def test_a_request_hits_what_an_unfinished_one_has_scheduled() -> None:
    cache = PrefixCache(4, 20)
    admit(cache, list(range(10)))
    assert len(cache.lookup(cache.sequence(list(range(10))))) == 2


def test_generated_tokens_are_cached_once_they_are_scheduled() -> None:
    cache = PrefixCache(4, 20)
    sequence = admit(cache, [1, 2, 3])
    cache.append(sequence, 4)
    follow_up = [1, 2, 3, 4, 5]
    assert cache.lookup(cache.sequence(follow_up)) == []
    assert cache.allocate(sequence, 1)
    assert len(cache.lookup(cache.sequence(follow_up))) == 1


def test_salts_keep_requests_apart() -> None:
    cache = PrefixCache(4, 40)
    prompt = list(range(9))
    keys = [None, ExtraKeys(cache_salt="a"), ExtraKeys(cache_salt="b")]
    assert [send(cache, prompt, key) for key in keys * 2] == [0, 0, 0, 8, 8, 8]


def test_a_refused_allocation_changes_nothing() -> None:
    cache = PrefixCache(4, 4)
    send(cache, list(range(8)))
    queue = cache.pool.free_queue()
    sequence = cache.sequence([*range(8), *range(100, 112)])
    hit_blocks = cache.lookup(sequence)
    assert len(hit_blocks) == 2
    assert not cache.allocate(sequence, 12, hit_blocks)
    assert (cache.pool.free_queue(), sequence.block_ids, sequence.num_computed_tokens) == (queue, [], 0)


def test_a_part_may_fit_where_the_whole_does_not() -> None:
    cache = PrefixCache(4, 4)
    sequence = cache.sequence(list(range(20)))
    assert not cache.allocate(sequence, 8, whole_sequence_must_fit=True)
    assert cache.allocate(sequence, 8)
    assert cache.usage == 0.5


def test_caching_off_counts_nothing() -> None:
    cache = PrefixCache(4, 20, enabled=False)
    assert [send(cache, list(range(9))) for _ in range(2)] == [0, 0]
    assert (cache.queries, cache.hits) == (0, 0)


def test_reset_is_refused_while_a_request_runs() -> None:
    cache = PrefixCache(4, 20)
    sequence = admit(cache, list(range(9)))
    assert cache.reset() is False
    cache.free(sequence)
    assert cache.reset() is True
    assert send(cache, list(range(9))) == 0
    assert (cache.queries, cache.hits) == (18, 0)


def test_a_sequence_with_blocks_cannot_start_again() -> None:
    cache = PrefixCache(4, 20)
    sequence = admit(cache, list(range(9)))
    with pytest.raises(ValueError, match=r"^only a sequence without blocks can start with cached ones$"):
        cache.allocate(sequence, 1, [0])
    with pytest.raises(ValueError, match=r"^block_size must be at least 1$"):
        PrefixCache(0, 20)
