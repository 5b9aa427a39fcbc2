"""How much memory the KV cache of a model takes: per token, per request, per block, with and without a shared prefix.

A layer keeps one key and one value vector per KV head and token (multi-head, grouped-query and multi-query attention
differ only in the number of KV heads), or one compressed latent and one rotary key per token (multi-head latent
attention, DeepSeek-V2, arXiv:2405.04434, section 2.1). A sliding-window layer keeps the tokens of its window only.
Layers with a state of constant size (Mamba, linear attention) keep it once for each request. The indexer of sparse
attention (DeepSeek-V3.2) keeps one key per token in a type of its own.

All sizes are bytes on one tensor-parallel rank; lengths are tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ais_bench_prefix_cache.calculators.number_checks import require_at_least_one, require_not_negative
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import CalculationError

DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
"""Bytes of one number of the cache, by the name of its type."""


@dataclass(frozen=True)
class CacheLayers:
    """``count`` equal layers.

    ``numbers_per_token`` is what one of them keeps for one token on one rank, in numbers, not bytes;
    ``window`` is the sliding window in tokens, None for full attention; ``state_bytes`` is what one of them keeps for
    one request whatever its length; ``fixed_bytes_per_token`` what it keeps for one token in a type of its own.
    """

    kind: Literal["attention", "latent", "indexer", "constant_state"]
    count: int
    numbers_per_token: int
    window: int | None = None
    state_bytes: int = 0
    fixed_bytes_per_token: int = 0

    def token_bytes(self, dtype_bytes: int) -> int:
        """Bytes of one layer for one token inside its window."""
        return self.numbers_per_token * dtype_bytes + self.fixed_bytes_per_token


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
            Code.HEADS_AND_RANKS,
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


@dataclass(frozen=True)
class ModelNumbers:
    """A model told in numbers instead of by its configuration: attention layers that are alike but for a window.

    With ``latent_dim`` and ``rotary_dim`` it is latent attention, else attention with ``kv_heads`` heads of
    ``head_dim`` numbers; ``window_layers`` (all, where a ``window`` is given) of its layers have the window.
    """

    layers: int
    kv_heads: int = 0
    head_dim: int = 0
    latent_dim: int | None = None
    rotary_dim: int = 0
    window: int | None = None
    window_layers: int | None = None

    def cache_layers(self, tensor_parallel: int) -> tuple[CacheLayers, ...]:
        """The cache of each kind of layer on one rank.

        Raises:
            CalculationError: a number is impossible, or heads and ranks do not divide each other.
        """
        if self.latent_dim is not None:
            return (latent_attention_layers(self.layers, latent_dim=self.latent_dim, rotary_dim=self.rotary_dim),)
        require_at_least_one(layers=self.layers)
        windowed = 0
        if self.window is not None:
            windowed = self.layers if self.window_layers is None else self.window_layers
        if not 0 <= windowed <= self.layers:
            raise CalculationError.of(
                Code.IMPOSSIBLE_VALUE, "--window-layers", f"is {windowed}", allowed=f"0 to --layers, {self.layers}"
            )
        return tuple(
            attention_layers(
                count,
                kv_heads=self.kv_heads,
                head_dim=self.head_dim,
                window=window,
                tensor_parallel=tensor_parallel,
            )
            for count, window in ((self.layers - windowed, None), (windowed, self.window))
            if count
        )


def indexer_layers(count: int, index_dim: int) -> CacheLayers:
    """The indexers of sparse attention: a key of ``index_dim`` 8-bit numbers, and a 32-bit scale for every 128 of them.

    Every rank keeps all of it.
    """
    return CacheLayers("indexer", count, 0, fixed_bytes_per_token=index_dim + 4 * -(-index_dim // 128))


def constant_state_layers(count: int, *, state_bytes: int = 0) -> CacheLayers:
    """Layers whose state of ``state_bytes`` on this rank does not grow with the tokens."""
    return CacheLayers("constant_state", count, 0, state_bytes=state_bytes)


@dataclass(frozen=True)
class BlockGroup:
    """``count`` groups of ``layers`` layers (padding included) that keep the same tokens; a block table for each.

    ``token_bytes``: what one of the layers keeps for one token.
    """

    window: int | None
    count: int
    layers: int
    token_bytes: int

    @property
    def seen_tokens(self) -> int | None:
        """How many computed tokens the next one sees, itself not counted, but at least one; None for all."""
        return None if self.window is None else max(1, self.window - 1)

    def first_kept_block(self, length: int, block_size: int) -> int:
        """The first block that is kept once ``length`` tokens are computed."""
        return 0 if self.seen_tokens is None else max(0, length - self.seen_tokens) // block_size


@dataclass(frozen=True)
class CacheSizing:
    """The layers of one model and the type of its cached numbers."""

    layers: tuple[CacheLayers, ...]
    dtype_bytes: int

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one more token takes while it is inside every window."""
        return sum(layer.count * layer.token_bytes(self.dtype_bytes) for layer in self.layers)

    @property
    def state_bytes(self) -> int:
        """Bytes that a request keeps whatever its length."""
        return sum(layer.count * layer.state_bytes for layer in self.layers)

    def request_bytes(self, length: int) -> int:
        """Bytes that a request of ``length`` tokens really keeps: window layers at most their window; its states."""
        return self.state_bytes + sum(
            layer.count
            * layer.token_bytes(self.dtype_bytes)
            * (length if layer.window is None else min(length, layer.window))
            for layer in self.layers
        )

    def block_bytes(self, block_size: int) -> int:
        """Bytes of one block of ``block_size`` tokens over all layers."""
        require_at_least_one(block_size=block_size)
        return self.bytes_per_token * block_size

    def block_groups(self) -> tuple[BlockGroup, ...]:
        """The layers in groups of one size, each with a block table of its own, as in vLLM's hybrid cache manager.

        A group has as many layers as the rarest kind of layer, or as the most frequent one where that has less than
        half as many more (``_get_kv_cache_groups_uniform_page_size``). Where kinds differ in what a layer keeps for one
        token, each kind is one group.

        Raises:
            CalculationError: the model keeps nothing per token, so that blocks mean nothing.
        """
        layers = [layer for layer in self.layers if layer.token_bytes(self.dtype_bytes)]
        if not layers:
            raise CalculationError.of(Code.NO_CACHE, "model", "no layer of this model keeps anything per token")
        counts = [layer.count for layer in layers]
        sizes = [layer.token_bytes(self.dtype_bytes) for layer in layers]
        if len(set(sizes)) > 1:
            return tuple(
                BlockGroup(layer.window, 1, layer.count, size) for layer, size in zip(layers, sizes, strict=True)
            )
        size = max(counts) if 2 * max(counts) < 3 * min(counts) else min(counts)
        return tuple(BlockGroup(layer.window, -(-layer.count // size), size, sizes[0]) for layer in layers)

    def group_block_bytes(self, group: BlockGroup, block_size: int) -> int:
        """Bytes of one block of one group."""
        require_at_least_one(block_size=block_size)
        return block_size * group.layers * group.token_bytes

    def pool_block_bytes(self, block_size: int) -> int:
        """Bytes of a block of the pool, which any group can take; of one of each group where groups differ in size."""
        return sum({self.group_block_bytes(group, block_size) for group in self.block_groups()})

    def blocks_in(self, cache_bytes: int, block_size: int) -> int:
        """How many whole blocks of the pool fit into ``cache_bytes``.

        Raises:
            CalculationError: the model keeps nothing per token, so that a number of blocks means nothing.
        """
        return cache_bytes // self.pool_block_bytes(block_size)


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


def requests_that_fit(sizing: CacheSizing, blocks: int, *, length: int, block_size: int, prefix_tokens: int = 0) -> int:
    """How many requests of ``length`` tokens ``blocks`` usable blocks of the pool can keep at once.

    Their first ``prefix_tokens`` tokens are common to all; only whole blocks of them are shared. A window layer keeps
    what its next token sees: a request that is being computed needs more for a while. A state takes its bytes, without
    the padding to whole blocks with which an engine may keep it.

    Raises:
        CalculationError: a number is impossible, or no layer of the model keeps anything per token.
    """
    require_at_least_one(length=length, block_size=block_size)
    if not 0 <= prefix_tokens <= length:
        raise CalculationError.of(
            Code.IMPOSSIBLE_VALUE, "prefix_tokens", f"is {prefix_tokens}", allowed=f"0 to the length, {length}"
        )
    shared_bytes, own_bytes = 0, sizing.state_bytes
    prefix_blocks = prefix_tokens // block_size
    for group in sizing.block_groups():
        first = group.first_kept_block(length, block_size)
        shared_blocks = max(0, prefix_blocks - first)
        own_blocks = blocks_for(length, block_size) - first - shared_blocks
        shared_bytes += group.count * shared_blocks * sizing.group_block_bytes(group, block_size)
        own_bytes += group.count * own_blocks * sizing.group_block_bytes(group, block_size)
    if not own_bytes:
        raise CalculationError.of(
            Code.IMPOSSIBLE_VALUE,
            "prefix_tokens",
            "requests that share all their blocks fit in any number",
            allowed=f"at most {length - 1}, so that each keeps a token of its own",
        )
    return max(0, blocks * sizing.pool_block_bytes(block_size) - shared_bytes) // own_bytes


def prefixes_that_fit(sizing: CacheSizing, blocks: int, *, prefix_tokens: int, block_size: int) -> int:
    """How many different prefixes of ``prefix_tokens`` tokens ``blocks`` usable blocks of the pool can hold.

    Whole blocks of a prefix are cached; of a window layer those that cover the tokens before the one that comes next
    are enough for all of the prefix to hit; of states the one at the prefix's end.

    Raises:
        CalculationError: the prefix has no whole block, so none of it is cached; the model keeps nothing per token.
    """
    require_at_least_one(block_size=block_size)
    if prefix_tokens < block_size:
        raise CalculationError.of(
            Code.IMPOSSIBLE_VALUE, "prefix_tokens", f"is {prefix_tokens}", allowed=f"at least one block, {block_size}"
        )
    kept_bytes = sizing.state_bytes
    for group in sizing.block_groups():
        needed = prefix_tokens // block_size
        if group.seen_tokens is not None:
            needed = min(needed, blocks_for(group.seen_tokens, block_size))
        kept_bytes += group.count * needed * sizing.group_block_bytes(group, block_size)
    return blocks * sizing.pool_block_bytes(block_size) // kept_bytes
