"""One request after another through SGLang's cache as its scheduler would send them, token by token."""

from __future__ import annotations

from ais_bench_prefix_cache.kvcache.radix_cache import RadixCache


def run_alone(cache: RadixCache, prompt: list[int], output: list[int], *, chunk: int = 4096) -> int:
    """Send one request on an otherwise idle server; returns its hit tokens."""
    sequence = cache.sequence(prompt)
    hits = cache.admit(sequence)
    reserve = cache.page_size if cache.page_size > 1 else 0
    while (left := len(prompt) - sequence.num_computed_tokens) > 0:
        cache.make_room(min(left, chunk) + reserve)
        assert cache.compute(sequence, min(left, chunk))
        cache.insert(sequence)
    for token_id in output[:-1]:
        sequence.token_ids.append(token_id)
        cache.make_room(cache.page_size)
        assert cache.compute(sequence, 1)
    cache.insert(sequence)
    cache.release(sequence)
    return hits
