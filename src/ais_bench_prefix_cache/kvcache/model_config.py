"""What a model's ``config.json`` (Hugging Face) says about the size of its KV cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Union

from ais_bench_prefix_cache.errors import CalculationError
from ais_bench_prefix_cache.kvcache.sizing import (
    DTYPE_BYTES,
    CacheLayers,
    CacheSizing,
    attention_layers,
    constant_state_layers,
    latent_attention_layers,
)

_TORCH_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8", "int8": "int8"}
_FULL_NAMES = {"full_attention", "attention", "global_attention", "hybrid"}
_WINDOWED_NAMES = {"sliding_attention", "chunked_attention", "local_attention"}
_CONSTANT_NAMES = {"linear_attention", "mamba", "mamba2", "recurrent", "conv"}

LayerKind = tuple[str, Union[int, None]]
FULL: LayerKind = ("attention", None)
CONSTANT: LayerKind = ("constant_state", None)


def sizing_of_model(config: Mapping[str, Any], *, dtype: str | None = None, tensor_parallel: int = 1) -> CacheSizing:
    """Read the layers of a model from its parsed ``config.json``.

    ``dtype`` is a name of :data:`~ais_bench_prefix_cache.kvcache.sizing.DTYPE_BYTES`; without it the cache has the
    model's own type, as vLLM's ``--kv-cache-dtype auto``. The text part of a multimodal model counts (``text_config``).
    Not counted: scales of quantized caches, the indexer of sparse attention, constant states.

    Raises:
        CalculationError: a key that is needed is missing or makes no sense.
    """
    config = _text_part(config)
    layer_count = _integer(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    dtype_bytes = DTYPE_BYTES[dtype or model_dtype(config)]
    layers = [
        constant_state_layers(count)
        if kind == "constant_state"
        else _attention(config, count, window=window, tensor_parallel=tensor_parallel)
        for (kind, window), count in sorted(
            Counter(_layer_kinds(config, layer_count)).items(), key=lambda item: (item[0][0], item[0][1] or 0)
        )
    ]
    return CacheSizing(tuple(layers), dtype_bytes)


def model_dtype(config: Mapping[str, Any]) -> str:
    """The model's own type as a name of :data:`~ais_bench_prefix_cache.kvcache.sizing.DTYPE_BYTES`.

    Raises:
        CalculationError: it is a type that no cache has.
    """
    config = _text_part(config)
    name = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    if name not in _TORCH_DTYPES:
        raise CalculationError.of(
            "MODEL_CONFIG", "torch_dtype", f"is {name!r}", allowed=", ".join(_TORCH_DTYPES), hint="Give --dtype."
        )
    return _TORCH_DTYPES[name]


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A multimodal model keeps the keys of its language model in ``text_config``."""
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, Mapping) else config


def _attention(config: Mapping[str, Any], count: int, *, window: int | None, tensor_parallel: int) -> CacheLayers:
    if config.get("kv_lora_rank"):
        return latent_attention_layers(
            count, latent_dim=_integer(config, "kv_lora_rank"), rotary_dim=_integer(config, "qk_rope_head_dim")
        )
    heads = _integer(config, "num_attention_heads", "n_head", "n_heads")
    if config.get("head_dim") is not None or config.get("kv_channels") is not None:
        head_dim = _integer(config, "head_dim", "kv_channels")
    else:
        head_dim = _integer(config, "hidden_size", "n_embd", "d_model") // heads
    return attention_layers(
        count,
        kv_heads=_kv_heads(config, heads),
        head_dim=head_dim,
        value_head_dim=_integer(config, "v_head_dim", default=head_dim),
        window=window,
        tensor_parallel=tensor_parallel,
    )


def _kv_heads(config: Mapping[str, Any], heads: int) -> int:
    if config.get("multi_query"):
        return 1
    if config.get("multi_query_attention"):
        return _integer(config, "multi_query_group_num")
    return _integer(config, "num_key_value_heads", "num_kv_heads", default=heads)


def _layer_kinds(config: Mapping[str, Any], layer_count: int) -> list[LayerKind]:
    """Kind and window of every layer that keeps a cache of its own, from whichever keys the configuration has."""
    # Gemma 3n: the last layers read the cache of earlier ones.
    own = layer_count - _integer(config, "num_kv_shared_layers", smallest=0, default=0)
    return _all_layer_kinds(config, layer_count)[:own]


def _all_layer_kinds(config: Mapping[str, Any], layer_count: int) -> list[LayerKind]:
    window = _integer(config, "sliding_window", "attention_chunk_size", default=0)
    windowed: LayerKind = ("attention", window) if window else FULL
    names = config.get("layer_types") or config.get("layers_block_type")
    if names:
        if len(names) != layer_count:
            raise CalculationError.of(
                "MODEL_CONFIG", "layer_types", f"names {len(names)} layers", allowed=f"num_hidden_layers, {layer_count}"
            )
        return [_named_kind(str(name), windowed) for name in names]
    letters = config.get("hybrid_override_pattern")
    if letters:
        # Nemotron-H: M is Mamba, * attention, - a layer without either.
        return [FULL if letter == "*" else CONSTANT for letter in str(letters)]
    if config.get("full_attention_interval") or config.get("attn_layer_period"):
        interval = _integer(config, "full_attention_interval", "attn_layer_period")
        offset = _integer(config, "attn_layer_offset", smallest=0, default=interval - 1)
        return [FULL if index % interval == offset else CONSTANT for index in range(layer_count)]
    if not window or config.get("use_sliding_window") is False:
        return [FULL] * layer_count
    pattern = _integer(config, "sliding_window_pattern", default=2 if config.get("model_type") == "gemma2" else 0)
    if pattern:
        return [FULL if (index + 1) % pattern == 0 else windowed for index in range(layer_count)]
    # Qwen2: the first max_window_layers layers use full attention.
    full_layers = _integer(config, "max_window_layers", smallest=0) if config.get("use_sliding_window") else 0
    return [FULL if index < full_layers else windowed for index in range(layer_count)]


def _named_kind(name: str, windowed: LayerKind) -> LayerKind:
    if name in _CONSTANT_NAMES:
        return CONSTANT
    if name in _WINDOWED_NAMES:
        return windowed
    if name in _FULL_NAMES:
        return FULL
    raise CalculationError.of(
        "MODEL_CONFIG",
        "layer_types",
        f"has a layer of unknown type {name!r}",
        allowed=", ".join(sorted(_FULL_NAMES | _WINDOWED_NAMES | _CONSTANT_NAMES)),
    )


def _integer(config: Mapping[str, Any], *names: str, smallest: int = 1, default: int | None = None) -> int:
    """The first of ``names`` that the configuration has, as an integer of at least ``smallest``."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
            raise CalculationError.of(
                "MODEL_CONFIG", name, f"is {value!r}", allowed=f"an integer of {smallest} or more"
            )
        return value
    if default is None:
        raise CalculationError.of("MODEL_CONFIG", names[0], "is missing from the model's configuration")
    return default
