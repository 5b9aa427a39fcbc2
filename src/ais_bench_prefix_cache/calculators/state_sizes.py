"""Sizes of states that do not grow with the tokens: Mamba, linear attention, short convolutions.

The shapes are those of vLLM 0.32's ``MambaStateShapeCalculator``. A state has two parts: what its convolution
remembers has the model's type, the recurrent part that of ``mamba_ssm_dtype`` or ``mamba_ssm_cache_dtype``, else the
model's, too.
"""

from __future__ import annotations

from typing import NamedTuple

from ais_bench_prefix_cache.calculators.config_reader import ConfigReader
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import CalculationError

_MAMBA_KEYS = (
    *("mamba_n_heads", "n_mamba_heads", "mamba_num_heads", "num_heads", "mamba_d_head", "mamba_headdim"),
    *("mamba_head_dim", "mamba_n_groups", "mamba_ngroups", "n_groups", "mamba_d_ssm", "mamba_expand", "expand"),
    *("conv_dimension", "mamba_dt_rank", "time_step_rank", "head_dim"),
)
STATE_KEYS = (
    *_MAMBA_KEYS,
    *("mamba_d_state", "ssm_state_size", "state_size", "mamba_d_conv", "conv_kernel", "conv_L_cache", "conv_dim"),
    *("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"),
    *("linear_conv_kernel_dim", "linear_num_heads", "linear_head_dim", "short_conv_kernel_size", "lru_width"),
)
"""Keys that only tell the sizes of states."""


class StateNumbers(NamedTuple):
    """Numbers of one layer's state on one rank; ``recurrent_dtype`` None is the model's own type."""

    convolution: int
    recurrent: int
    recurrent_dtype: str | None = None


def state_numbers(config: ConfigReader, heads: int, head_dim: int, tensor_parallel: int) -> StateNumbers:
    """The state of a layer, from whichever keys the configuration has for it.

    ``heads`` and ``head_dim`` are those of attention (0: unknown), which lightning attention has, too.

    Raises:
        CalculationError: no known keys tell it, they make no sense, or the ranks cannot share it.
    """
    state = _state_of_all_ranks(config, heads, head_dim, tensor_parallel)
    if state.convolution % tensor_parallel or state.recurrent % tensor_parallel:
        raise CalculationError.of(
            Code.HEADS_AND_RANKS, "tensor_parallel", f"{tensor_parallel} ranks cannot share the states of this model"
        )
    return state._replace(
        convolution=state.convolution // tensor_parallel, recurrent=state.recurrent // tensor_parallel
    )


def _state_of_all_ranks(config: ConfigReader, heads: int, head_dim: int, ranks: int) -> StateNumbers:
    dtypes = [config.get(name) for name in ("mamba_ssm_dtype", "mamba_ssm_cache_dtype", "ssm_dtype")]
    dtype = next((str(name).removeprefix("torch.") for name in dtypes if name), None)
    linear = config.part("linear_attn_config")
    if config.has("linear_num_value_heads"):  # Gated DeltaNet
        key_dim = config.integer("linear_key_head_dim")
        keys = config.integer("linear_num_key_heads") * key_dim
        values = config.integer("linear_num_value_heads") * config.integer("linear_value_head_dim")
        kernel = config.integer("linear_conv_kernel_dim")
        return StateNumbers((2 * keys + values) * (kernel - 1), values * key_dim, dtype)
    if linear is not None:  # Kimi Delta Attention
        config.mark("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
        return _delta_attention(
            linear.integer("num_heads"), linear.integer("head_dim"), linear.integer("short_conv_kernel_size")
        )
    if config.has("layer_group_size"):  # Ling and Ring: lightning attention, since version 3 Kimi Delta Attention
        heads = config.integer("linear_num_heads", default=heads)
        head_dim = config.integer("linear_head_dim", default=head_dim)
        names = " ".join(map(str, config.get("architectures") or ()))
        kernel = config.integer("short_conv_kernel_size", "linear_conv_kernel_dim", default=4)
        config.mark("linear_conv_kernel_dim")
        if "V3" in names or ("V2" not in names and config.has("short_conv_kernel_size")):
            return _delta_attention(heads, head_dim, kernel)
        return StateNumbers(0, heads * head_dim * head_dim)
    if config.has("linear_num_heads", "linear_head_dim"):  # Kimi Delta Attention, in the names of transformers
        kernel = config.integer("linear_conv_kernel_dim", "short_conv_kernel_size", default=4)
        return _delta_attention(config.integer("linear_num_heads"), config.integer("linear_head_dim"), kernel)
    if config.has("attn_type_list") or config.get("model_type") in ("minimax", "minimax_text_01", "minimax_m1"):
        return StateNumbers(0, heads * head_dim * head_dim)
    if config.has("conv_L_cache"):  # LFM2
        return StateNumbers((config.integer("conv_L_cache") - 1) * config.integer("conv_dim", "hidden_size"), 0)
    if config.has("lru_width"):  # RG-LRU, kept in 32 bits
        width = config.integer("lru_width")
        return StateNumbers((config.integer("conv1d_width") - 1) * width, width, "float32")
    if config.has("mamba_d_state", "ssm_state_size", "state_size"):
        return _mamba(config, dtype, ranks)
    raise CalculationError.of(
        Code.MODEL_CONFIG, "layer_types", "has layers with a state, but no known key tells how large it is"
    )


def _delta_attention(heads: int, head_dim: int, kernel: int) -> StateNumbers:
    return StateNumbers(3 * heads * head_dim * (kernel - 1), heads * head_dim * head_dim, "float32")


def _mamba(config: ConfigReader, dtype: str | None, ranks: int) -> StateNumbers:
    """Mamba where the configuration names no heads of it, Mamba 2 where it does."""
    model_type = config.get("model_type")
    state = config.integer("mamba_d_state", "ssm_state_size", "state_size")
    kernel = config.integer("mamba_d_conv", "conv_kernel")
    inner = config.integer("mamba_d_ssm", default=0, smallest=0) or (
        config.integer("mamba_expand", "expand", default=2) * config.integer("hidden_size")
    )
    head_names = ("mamba_n_heads", "n_mamba_heads", "mamba_num_heads", "num_heads")
    first = model_type in ("mamba", "falcon_mamba", "jamba", "zamba") or not config.has(*head_names)
    config.mark(*_MAMBA_KEYS)
    if first:
        if model_type in ("mamba", "falcon_mamba"):
            inner = config.integer("intermediate_size", default=inner)
        return StateNumbers(inner * (kernel - 1), inner * state, dtype)
    heads = config.integer(*head_names)
    head_dim = config.integer("mamba_head_dim", "mamba_d_head", "mamba_headdim", default=0, smallest=0)
    if model_type == "mamba2":
        head_dim = config.integer("head_dim")
    elif config.has("mamba_num_heads"):  # Nemotron-H
        inner, dtype = heads * head_dim, dtype or "float32"
    groups = config.integer("mamba_n_groups", "mamba_ngroups", "n_groups", default=1)
    if groups % ranks:
        groups += ranks - groups  # Every rank keeps the groups that its heads need.
    return StateNumbers(
        (inner + 2 * groups * state) * (kernel - 1), heads * (head_dim or inner // heads) * state, dtype
    )
