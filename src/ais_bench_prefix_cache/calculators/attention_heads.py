"""How many KV heads a layer has, and how large they are, in the names that configurations have for it."""

from __future__ import annotations

from typing import Any

from ais_bench_prefix_cache.calculators.config_reader import ConfigReader
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import CalculationError

HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
KV_HEADS = (
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",
    "n_kv_heads",
    "num_attention_groups",
    "num_query_groups",
)
HEAD_DIMS = ("head_dim", "attention_head_dim", "hidden_size_per_head", "kv_channels", "head_size", "d_head")
HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed", "model_dim", "dim")
_MULTI_HEAD_TYPES = frozenset(
    {
        "aquila", "baichuan", "biogpt", "bloom", "codegen", "ctrl", "fuyu", "gpt-sw3", "gpt2", "gpt_bigcode",
        "gpt_neo", "gpt_neox", "gpt_neox_japanese", "gptj", "internlm", "llama", "modernbert-decoder", "mpt",
        "nemotron", "openai-gpt", "opt", "orion", "persimmon", "phi", "qwen", "skywork", "stablelm", "telechat",
        "xglm", "xverse",
    }
)  # fmt: skip
"""Types whose older files name no KV heads because every head has its own."""
_WINDOW_HEADS = {"mimo_v2_flash": 2}
"""So many times the KV heads of full attention have layers with a window, where the class and no key says it."""


def heads_of_layer(reader: ConfigReader, layers: int, index: int, window: int | None) -> tuple[int, int, int]:
    """KV heads of layer ``index`` of ``layers``, and the numbers of a key and of a value of one head.

    Raises:
        CalculationError: a key is missing or makes no sense.
    """
    reader = reader.of_layer(index)
    if (listed := reader.get("num_kv_heads")) is not None and isinstance(listed, list):  # OpenELM
        kv_heads = _entry("num_kv_heads", reader.per_layer("num_kv_heads", layers), index)
        reader.mark("num_query_heads", *HEADS)
        head_dim = reader.integer(*HEAD_DIMS)
        return kv_heads, head_dim, head_dim
    heads = query_heads(reader)
    head_dim = head_dim_of(reader, heads)
    kv_heads_of_layers = reader.per_layer("num_key_value_heads_per_layer", layers)
    kv_heads = _kv_heads(reader, heads) if kv_heads_of_layers is None else _entry(
        "num_key_value_heads_per_layer", kv_heads_of_layers, index
    )  # fmt: skip
    value_head_dim = reader.integer("v_head_dim", default=head_dim)
    # Layers of full attention (Gemma 4) or with a window (MiMo, Step 3.5) may have heads of their own.
    other = reader.part("attention_other_setting")
    if window is None:
        kv_heads = reader.integer("num_global_key_value_heads", default=kv_heads)
        if reader.has("global_head_dim"):
            value_head_dim = head_dim = reader.integer("global_head_dim")
    else:
        kv_heads = reader.integer(
            "swa_num_key_value_heads", default=_WINDOW_HEADS.get(str(reader.get("model_type")), 1) * kv_heads
        )
        head_dim = reader.integer("swa_head_dim", default=head_dim)
        value_head_dim = reader.integer(
            "swa_v_head_dim", default=value_head_dim if reader.has("v_head_dim") else head_dim
        )
        if other is not None:
            kv_heads = other.integer("num_attention_groups", default=kv_heads)
            head_dim = value_head_dim = other.integer("head_dim", default=head_dim)
    reader.mark(
        *("swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim", "swa_num_attention_heads"),
        *("num_global_key_value_heads", "global_head_dim", "num_sliding_attention_heads"),
        *("num_attention_heads_per_layer",),
    )
    return kv_heads, head_dim, value_head_dim


def query_heads(reader: ConfigReader) -> int:
    """Query heads, where the configuration names them: two names for the same may stand side by side."""
    heads = reader.integer(*HEADS)
    reader.mark(*HEADS)
    return heads


def head_dim_of(reader: ConfigReader, heads: int) -> int:
    """Numbers of one head: as the configuration says, else an equal part of the hidden size."""
    reader.mark(*HEAD_DIMS)
    if any(reader.get(name) for name in HEAD_DIMS):
        return reader.integer(*(name for name in HEAD_DIMS if reader.get(name)))
    hidden_size = reader.integer(*HIDDEN)
    head_dim, rest = divmod(hidden_size, heads)
    if rest:
        raise CalculationError.of(
            Code.MODEL_CONFIG, "head_dim", f"is missing, and {heads} heads do not divide hidden_size {hidden_size}"
        )
    return head_dim


def _kv_heads(reader: ConfigReader, heads: int) -> int:
    model_type = reader.get("model_type")
    known = reader.has(*KV_HEADS)
    reader.mark(*KV_HEADS, "multi_query", "new_decoder_architecture", "multi_query_group_num")
    attention = reader.part("attn_config")  # DBRX, MPT
    if attention is not None:
        if attention.has("kv_n_heads"):
            return attention.integer("kv_n_heads")
        if attention.get("attn_type") == "multiquery_attention":
            return 1
    if reader.get("multi_query") and not reader.get("new_decoder_architecture"):
        return 1
    if reader.get("multi_query_attention"):
        return reader.integer("multi_query_group_num")
    if not known and model_type is not None and model_type not in _MULTI_HEAD_TYPES and attention is None:
        raise CalculationError.of(
            Code.MODEL_CONFIG,
            KV_HEADS[0],
            f"is missing, and nothing says how many a model of type {model_type!r} has",
        )
    kv_heads = reader.integer(*KV_HEADS, default=heads)
    if kv_heads > heads:
        raise CalculationError.of(
            Code.MODEL_CONFIG, "num_key_value_heads", f"is {kv_heads}", allowed=f"1 to num_attention_heads, {heads}"
        )
    return kv_heads


def _entry(key: str, values: list[Any] | None, index: int) -> int:
    value = None if values is None else values[index]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CalculationError.of(
            Code.MODEL_CONFIG, f"{key}[{index}]", f"is {value!r}", allowed="an integer of 1 or more"
        )
    return value
