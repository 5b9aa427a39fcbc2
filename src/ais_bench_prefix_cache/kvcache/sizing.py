"""How much memory the KV cache of a model takes: per token, per request, per block, with and without a shared prefix.

A layer keeps one key and one value vector per KV head and token (multi-head, grouped-query and multi-query attention
differ only in the number of KV heads), or one compressed latent and one rotary key per token (multi-head latent
attention, DeepSeek-V2, arXiv:2405.04434, section 2.1). A sliding-window layer keeps the tokens of its window only.
Layers with a state of constant size (Mamba, linear attention) keep nothing per token.

All sizes are bytes on one tensor-parallel rank; lengths are tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ais_bench_prefix_cache.errors import CalculationError
from ais_bench_prefix_cache.kvcache.number_checks import require_at_least_one, require_not_negative

DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
"""Bytes of one number of the cache, by the name of its type."""


@dataclass(frozen=True)
class CacheLayers:
    """``count`` equal layers.

    ``numbers_per_token`` is what one of them keeps for one token on one rank, in numbers, not bytes;
    ``window`` is the sliding window in tokens, None for full attention.
    """

    kind: Literal["attention", "latent", "constant_state"]
    count: int
    numbers_per_token: int
    window: int | None = None


def attention_layers(
    count: int,
    *,
    kv_heads: int,
    head_dim: int,
    value_head_dim: int | None = None,
    window: int | None = None,
    tensor_parallel: int = 1,
) -> CacheLayers:
    """Layers that keep a key and a value per KV head.

    Tensor parallelism splits the KV heads over the ranks; with fewer heads than ranks each rank keeps one whole head
    (a copy), as vLLM does.

    Raises:
        CalculationError: a number is below 1, or heads and ranks do not divide each other.
    """
    require_at_least_one(layers=count, kv_heads=kv_heads, head_dim=head_dim, tensor_parallel=tensor_parallel)
    if kv_heads % tensor_parallel and tensor_parallel % kv_heads:
        raise CalculationError.of(
            "HEADS_AND_RANKS",
            "tensor_parallel",
            f"{tensor_parallel} ranks cannot share {kv_heads} KV heads",
            allowed="one is a multiple of the other",
        )
    if window is not None:
        require_at_least_one(window=window)
    heads_on_a_rank = max(1, kv_heads // tensor_parallel)
    numbers = heads_on_a_rank * (head_dim + (head_dim if value_head_dim is None else value_head_dim))
    return CacheLayers("attention", count, numbers, window)


def latent_attention_layers(count: int, *, latent_dim: int, rotary_dim: int) -> CacheLayers:
    """Layers of multi-head latent attention: ``kv_lora_rank`` and ``qk_rope_head_dim``. Every rank keeps all of it.

    Raises:
        CalculationError: a number is below 1.
    """
    require_at_least_one(layers=count, latent_dim=latent_dim, rotary_dim=rotary_dim)
    return CacheLayers("latent", count, latent_dim + rotary_dim)


def constant_state_layers(count: int) -> CacheLayers:
    """Layers whose state does not grow with the tokens."""
    return CacheLayers("constant_state", count, 0)


@dataclass(frozen=True)
class CacheSizing:
    """The layers of one model and the type of its cached numbers."""

    layers: tuple[CacheLayers, ...]
    dtype_bytes: int

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one more token takes while it is inside every window."""
        return self.dtype_bytes * sum(layer.count * layer.numbers_per_token for layer in self.layers)

    def request_bytes(self, length: int) -> int:
        """Bytes that a request of ``length`` tokens really keeps: window layers keep at most their window."""
        return self.dtype_bytes * sum(
            layer.count * layer.numbers_per_token * (length if layer.window is None else min(length, layer.window))
            for layer in self.layers
        )

    def block_bytes(self, block_size: int) -> int:
        """Bytes of one block of ``block_size`` tokens over all layers."""
        require_at_least_one(block_size=block_size)
        return self.bytes_per_token * block_size

    def blocks_in(self, cache_bytes: int, block_size: int) -> int:
        """How many whole blocks fit into ``cache_bytes``.

        Raises:
            CalculationError: the model keeps nothing per token, so that a number of blocks means nothing.
        """
        if not self.bytes_per_token:
            raise CalculationError.of("NO_CACHE", "model", "no layer of this model keeps anything per token")
        return cache_bytes // self.block_bytes(block_size)


@dataclass(frozen=True)
class SharedPrefixMemory:
    """Bytes of requests that share a prefix, when each keeps its own copy and when they share one."""

    separate_bytes: int
    shared_bytes: int

    @property
    def saved_bytes(self) -> int:
        return self.separate_bytes - self.shared_bytes


def shared_prefix_memory(
    sizing: CacheSizing, *, prefix_tokens: int, suffix_tokens: int, requests: int
) -> SharedPrefixMemory:
    """Memory of ``requests`` requests with one common prefix, counted in tokens (no rounding to blocks).

    Of a window layer each request keeps the last tokens of its window, and only those of them that lie in the prefix
    can be shared.
    """
    require_not_negative(prefix_tokens=prefix_tokens, suffix_tokens=suffix_tokens)
    require_at_least_one(requests=requests)
    separate = requests * sizing.request_bytes(prefix_tokens + suffix_tokens)
    own = sizing.request_bytes(suffix_tokens)
    common = sizing.request_bytes(prefix_tokens + suffix_tokens) - own
    return SharedPrefixMemory(separate, common + requests * own)


@dataclass(frozen=True)
class Fragmentation:
    """What one block size makes of some lengths. ``wasted_tokens`` are the free positions in the tail blocks."""

    block_size: int
    tokens: int
    blocks: int

    @property
    def allocated_tokens(self) -> int:
        return self.blocks * self.block_size

    @property
    def wasted_tokens(self) -> int:
        return self.allocated_tokens - self.tokens


def fragmentation(lengths: Iterable[int], block_size: int) -> Fragmentation:
    """Blocks and tail waste of requests of these lengths."""
    require_at_least_one(block_size=block_size)
    lengths = list(lengths)
    return Fragmentation(block_size, sum(lengths), sum(blocks_for(length, block_size) for length in lengths))


def blocks_for(length: int, block_size: int) -> int:
    """Blocks that ``length`` tokens need."""
    return -(-length // block_size)


def requests_that_fit(blocks: int, *, length: int, block_size: int, prefix_tokens: int = 0) -> int:
    """How many requests of ``length`` tokens fit into ``blocks`` blocks at once.

    Their first ``prefix_tokens`` tokens are common to all; only whole blocks of them are shared.
    """
    require_at_least_one(length=length, block_size=block_size)
    if not 0 <= prefix_tokens <= length:
        raise CalculationError.of(
            "IMPOSSIBLE_VALUE", "prefix_tokens", f"is {prefix_tokens}", allowed=f"0 to the length, {length}"
        )
    shared_blocks = prefix_tokens // block_size
    own_blocks = blocks_for(length, block_size) - shared_blocks
    if blocks < shared_blocks + own_blocks:
        return 0
    if not own_blocks:
        raise CalculationError.of(
            "IMPOSSIBLE_VALUE",
            "prefix_tokens",
            "requests that share all their blocks fit in any number",
            allowed=f"at most {length - 1}, so that each keeps a token of its own",
        )
    return (blocks - shared_blocks) // own_blocks


def prefixes_that_fit(blocks: int, *, prefix_tokens: int, block_size: int) -> int:
    """How many different prefixes of ``prefix_tokens`` tokens, of which whole blocks are cached, ``blocks`` can hold.

    Raises:
        CalculationError: the prefix has no whole block, so none of it is ever cached.
    """
    require_at_least_one(block_size=block_size)
    if prefix_tokens < block_size:
        raise CalculationError.of(
            "IMPOSSIBLE_VALUE", "prefix_tokens", f"is {prefix_tokens}", allowed=f"at least one block, {block_size}"
        )
    return blocks // (prefix_tokens // block_size)
