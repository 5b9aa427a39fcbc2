"""What a model's ``config.json`` (Hugging Face) says about the size of its KV cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

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
_FULL = {"full_attention", "attention", "global_attention", "hybrid"}
_WINDOWED = {"sliding_attention", "chunked_attention", "local_attention"}
_CONSTANT = {"linear_attention", "mamba", "mamba2", "recurrent", "conv"}


def sizing_of_model(config: Mapping[str, Any], *, dtype: str | None = None, tensor_parallel: int = 1) -> CacheSizing:
    """Read the layers of a model from its parsed ``config.json``.

    ``dtype`` is a name of :data:`~ais_bench_prefix_cache.kvcache.sizing.DTYPE_BYTES`; without it the cache has the
    model's own type, as vLLM's ``--kv-cache-dtype auto``. The text part of a multimodal model counts (``text_config``).

    Raises:
        CalculationError: a key that is needed is missing or makes no sense.
    """
    text = config.get("text_config")
    if isinstance(text, Mapping):
        config = {**config, **text}
    layer_count = _integer(config, "num_hidden_layers", "n_layer", "num_layers")
    return CacheSizing(_layers(config, layer_count, tensor_parallel), DTYPE_BYTES[dtype or _model_dtype(config)])


def _layers(config: Mapping[str, Any], layer_count: int, tensor_parallel: int) -> tuple[CacheLayers, ...]:
    if config.get("kv_lora_rank"):
        return (
            latent_attention_layers(
                layer_count,
                latent_dim=_integer(config, "kv_lora_rank"),
                rotary_dim=_integer(config, "qk_rope_head_dim"),
            ),
        )
    heads = _integer(config, "num_attention_heads", "n_head")
    kv_heads = (
        1 if config.get("multi_query") else _integer(config, "num_key_value_heads", "num_kv_heads", default=heads)
    )
    head_dim = (
        _integer(config, "head_dim")
        if config.get("head_dim") is not None
        else _integer(config, "hidden_size", "n_embd") // heads
    )
    layers: list[CacheLayers] = []
    for (kind, window), count in sorted(
        Counter(_layer_kinds(config, layer_count)).items(), key=lambda item: (item[0][0], item[0][1] or 0)
    ):
        if kind == "constant_state":
            layers.append(constant_state_layers(count))
        else:
            layers.append(
                attention_layers(
                    count,
                    kv_heads=kv_heads,
                    head_dim=head_dim,
                    value_head_dim=config.get("v_head_dim"),
                    window=window,
                    tensor_parallel=tensor_parallel,
                )
            )
    return tuple(layers)


def _layer_kinds(config: Mapping[str, Any], layer_count: int) -> list[tuple[str, int | None]]:
    """Kind and window of every layer, from whichever of the known keys the configuration has."""
    window = config.get("sliding_window") or config.get("attention_chunk_size")
    windowed = ("attention", int(window)) if window else ("attention", None)
    full = ("attention", None)
    names = config.get("layer_types") or config.get("layers_block_type")
    if names:
        if len(names) != layer_count:
            raise CalculationError.of(
                "MODEL_CONFIG", "layer_types", f"names {len(names)} layers", allowed=f"num_hidden_layers, {layer_count}"
            )
        return [_named_kind(str(name), windowed, full) for name in names]
    interval = config.get("full_attention_interval") or config.get("attn_layer_period")
    if interval:
        offset = int(config.get("attn_layer_offset", int(interval) - 1))
        return [full if i % int(interval) == offset else ("constant_state", None) for i in range(layer_count)]
    pattern = config.get("sliding_window_pattern")
    if window and pattern:
        return [full if (i + 1) % int(pattern) == 0 else windowed for i in range(layer_count)]
    if not window or config.get("use_sliding_window") is False:
        return [full] * layer_count
    # Qwen2: the first max_window_layers layers use full attention.
    first_windowed = int(config["max_window_layers"]) if config.get("use_sliding_window") else 0
    return [full if i < first_windowed else windowed for i in range(layer_count)]


def _named_kind(name: str, windowed: tuple[str, int | None], full: tuple[str, int | None]) -> tuple[str, int | None]:
    if name in _CONSTANT:
        return ("constant_state", None)
    if name in _WINDOWED:
        return windowed
    if name in _FULL:
        return full
    raise CalculationError.of(
        "MODEL_CONFIG",
        "layer_types",
        f"has a layer of unknown type {name!r}",
        allowed=", ".join(sorted(_FULL | _WINDOWED | _CONSTANT)),
    )


def _model_dtype(config: Mapping[str, Any]) -> str:
    name = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    if name not in _TORCH_DTYPES:
        raise CalculationError.of(
            "MODEL_CONFIG", "torch_dtype", f"is {name!r}", allowed=", ".join(_TORCH_DTYPES), hint="Give --dtype."
        )
    return _TORCH_DTYPES[name]


def _integer(config: Mapping[str, Any], *names: str, default: int | None = None) -> int:
    """The first of ``names`` that the configuration has, as a positive integer."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CalculationError.of("MODEL_CONFIG", name, f"is {value!r}", allowed="an integer of 1 or more")
        return value
    if default is None:
        raise CalculationError.of("MODEL_CONFIG", names[0], "is missing from the model's configuration")
    return default
