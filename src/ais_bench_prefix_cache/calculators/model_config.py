"""What a model's ``config.json`` (Hugging Face) says about the size of its KV cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Union

from ais_bench_prefix_cache.calculators.sizing import (
    DTYPE_BYTES,
    CacheLayers,
    CacheSizing,
    attention_layers,
    constant_state_layers,
    latent_attention_layers,
)
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import CalculationError

_TORCH_DTYPES = {
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "int8": "int8",
}
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
_FULL_NAMES = {"full_attention", "attention", "global_attention", "hybrid"}
_WINDOWED_NAMES = {"sliding_attention", "chunked_attention", "local_attention", "sliding_window_attention"}
_CONSTANT_NAMES = {"linear_attention", "mamba", "mamba2", "recurrent", "conv", "mlp", "moe"}
MOST_LAYERS = 10_000

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "multi_query", "multi_query_group_num", "attn_config")
_WINDOWS = ("sliding_window", "attention_chunk_size", "attention_window_size")
_PATTERNS = (
    "layer_types",
    "layers_block_type",
    "block_types",
    "hybrid_override_pattern",
    "sliding_window_pattern",
    "use_sliding_window",
)

LayerKind = tuple[str, Union[int, None]]
FULL: LayerKind = ("attention", None)
CONSTANT: LayerKind = ("constant_state", None)


def sizing_of_model(config: Mapping[str, Any], *, dtype: str | None = None, tensor_parallel: int = 1) -> CacheSizing:
    """Read the layers of a model from its parsed ``config.json``.

    ``dtype`` is a name of :data:`~ais_bench_prefix_cache.calculators.sizing.DTYPE_BYTES`; without it the cache has the
    model's own type, as vLLM's ``--kv-cache-dtype auto``. The text part of a multimodal model counts (``text_config``).
    Not counted: scales of quantized caches, the indexer of sparse attention, constant states. What a configuration
    leaves to the defaults of its class is not known here (:func:`lacks_defaults`).

    Raises:
        CalculationError: a key that is needed is missing or makes no sense.
    """
    config = text_part(config)
    if config.get("block_configs"):
        raise CalculationError.of(
            Code.MODEL_CONFIG,
            "block_configs",
            "gives every layer heads of its own",
            hint="Give --layers, --kv-heads and --head-dim for layers that are alike, and add up.",
        )
    layer_count = _integer(config, *_LAYERS)
    if layer_count > MOST_LAYERS:
        raise CalculationError.of(Code.MODEL_CONFIG, _LAYERS[0], f"is {layer_count}", allowed=f"1 to {MOST_LAYERS}")
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
    """The model's own type as a name of :data:`~ais_bench_prefix_cache.calculators.sizing.DTYPE_BYTES`.

    Raises:
        CalculationError: it is a type that no cache has.
    """
    config = text_part(config)
    name = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    if name not in _TORCH_DTYPES:
        raise CalculationError.of(
            Code.MODEL_CONFIG, "torch_dtype", f"is {name!r}", allowed=", ".join(_TORCH_DTYPES), hint="Give --dtype."
        )
    return _TORCH_DTYPES[name]


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of a multimodal model's language model, which has a part of its own (``text_config``, …).

    Keys that the part does not have are those of the whole.
    """
    for name in _TEXT_PARTS:
        part = config.get(name)
        if isinstance(part, Mapping):
            return text_part({**{key: value for key, value in config.items() if key != name}, **part})
    return config


def lacks_defaults(config: Mapping[str, Any]) -> bool:
    """Whether a configuration leaves something to its class that decides the size of the cache.

    Published files of Gemma 3 name neither heads nor the pattern of windows, for instance.
    """
    config = text_part(config)

    def given(*names: str) -> bool:
        return any(config.get(name) is not None for name in names)

    windows_of_unknown_layers = given(*_WINDOWS) and not given(*_PATTERNS)
    heads = config.get("kv_lora_rank") is not None or (given(*_HEADS) and given(*_KV_HEADS))
    return not (heads and given(*_LAYERS)) or windows_of_unknown_layers


def _attention(config: Mapping[str, Any], count: int, *, window: int | None, tensor_parallel: int) -> CacheLayers:
    if config.get("kv_lora_rank"):
        return latent_attention_layers(
            count, latent_dim=_integer(config, "kv_lora_rank"), rotary_dim=_integer(config, "qk_rope_head_dim")
        )
    heads = _integer(config, *_HEADS)
    if config.get("head_dim") is not None or config.get("kv_channels") is not None:
        head_dim = _integer(config, "head_dim", "kv_channels")
    else:
        hidden_size = _integer(config, "hidden_size", "n_embd", "d_model")
        head_dim, rest = divmod(hidden_size, heads)
        if rest:
            raise CalculationError.of(
                Code.MODEL_CONFIG, "head_dim", f"is missing, and {heads} heads do not divide hidden_size {hidden_size}"
            )
    kv_heads = _kv_heads(config, heads)
    value_head_dim = None
    # Layers of full attention (Gemma 4) or with a window (MiMo) may have heads of their own.
    if window is None:
        kv_heads = _integer(config, "num_global_key_value_heads", default=kv_heads)
        if config.get("global_head_dim") is not None:
            value_head_dim = head_dim = _integer(config, "global_head_dim")
    else:
        kv_heads = _integer(config, "swa_num_key_value_heads", default=kv_heads)
        head_dim = _integer(config, "swa_head_dim", default=head_dim)
        value_head_dim = _integer(config, "swa_v_head_dim", "v_head_dim", default=head_dim)
    return attention_layers(
        count,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_head_dim=_integer(config, "v_head_dim", default=head_dim) if value_head_dim is None else value_head_dim,
        window=window,
        tensor_parallel=tensor_parallel,
    )


def _kv_heads(config: Mapping[str, Any], heads: int) -> int:
    attention = config.get("attn_config")
    if isinstance(attention, Mapping) and attention.get("kv_n_heads") is not None:
        return _integer(attention, "kv_n_heads")
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        return 1
    if config.get("multi_query_attention"):
        return _integer(config, "multi_query_group_num")
    kv_heads = _integer(config, "num_key_value_heads", "num_kv_heads", default=heads)
    if kv_heads > heads:
        raise CalculationError.of(
            Code.MODEL_CONFIG, "num_key_value_heads", f"is {kv_heads}", allowed=f"1 to num_attention_heads, {heads}"
        )
    return kv_heads


def _layer_kinds(config: Mapping[str, Any], layer_count: int) -> list[LayerKind]:
    """Kind and window of every layer that keeps a cache of its own, from whichever keys the configuration has."""
    # Gemma 3n: the last layers read the cache of earlier ones.
    own = layer_count - _integer(config, "num_kv_shared_layers", smallest=0, default=0)
    return _all_layer_kinds(config, layer_count)[:own]


def _all_layer_kinds(config: Mapping[str, Any], layer_count: int) -> list[LayerKind]:
    window = _integer(config, *_WINDOWS, smallest=0, default=0)
    windowed: LayerKind = ("attention", window) if window else FULL
    for key in ("layer_types", "layers_block_type", "hybrid_override_pattern"):
        names = config.get(key)
        if not names:
            continue
        if not isinstance(names, str if key == "hybrid_override_pattern" else list):
            raise CalculationError.of(Code.MODEL_CONFIG, key, f"is {names!r}", allowed="the kind of every layer")
        if len(names) != layer_count:
            raise CalculationError.of(
                Code.MODEL_CONFIG, key, f"names {len(names)} layers", allowed=f"num_hidden_layers, {layer_count}"
            )
        if key == "hybrid_override_pattern":
            # Nemotron-H: M is Mamba, * attention, - and E layers without either.
            return [FULL if letter == "*" else CONSTANT for letter in names]
        return [_named_kind(str(name), windowed) for name in names]
    cycle = config.get("block_types")
    if cycle and isinstance(cycle, list):
        # RecurrentGemma: its attention has a window.
        return [windowed if cycle[index % len(cycle)] == "attention" else CONSTANT for index in range(layer_count)]
    indices = _attention_layers_of(config)
    if indices is not None:
        return [FULL if index in indices else CONSTANT for index in range(layer_count)]
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


def _attention_layers_of(config: Mapping[str, Any]) -> set[int] | None:
    """Where a hybrid model lists them: the numbers of its layers with attention, from 0."""
    linear = config.get("linear_attn_config")
    for listed, first in (
        (config.get("attn_layer_indices"), 0),  # Bamba
        (config.get("full_attn_idxs"), 0),  # LFM2
        (linear.get("full_attn_layers") if isinstance(linear, Mapping) else None, 1),  # Kimi Linear
    ):
        if isinstance(listed, list):
            return {index - first for index in listed if isinstance(index, int)}
    kinds = config.get("attn_type_list")  # MiniMax: 1 is attention, 0 is linear.
    return {index for index, kind in enumerate(kinds) if kind == 1} if isinstance(kinds, list) else None


def _named_kind(name: str, windowed: LayerKind) -> LayerKind:
    if name in _CONSTANT_NAMES:
        return CONSTANT
    if name in _WINDOWED_NAMES:
        return windowed
    if name in _FULL_NAMES:
        return FULL
    raise CalculationError.of(
        Code.MODEL_CONFIG,
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
                Code.MODEL_CONFIG, name, f"is {value!r}", allowed=f"an integer of {smallest} or more"
            )
        return value
    if default is None:
        raise CalculationError.of(Code.MODEL_CONFIG, names[0], "is missing from the model's configuration")
    return default
