"""A model's configuration that knows which of its keys were read, so that none is passed over in silence.

A key that speaks of attention, heads, windows, states or sharing may decide the size of the cache. Where one of the
file's own keys does and no rule has read it, the file is refused by the name of that key: a guess would look like an
answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import CalculationError

_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config", "language_model_config")
_OTHER_PARTS = re.compile(
    r"(vision|visual|vit|audio|image|video|speech|talker|code2wav|projector|processor|mm|vq|gen|token2wav|tts|aligner|"
    r"quantization|compression|generation|peft|lora|qformer|resampler|perceiver|mlp|router|moe|encoder|vocoder|mtp)(_|$)"
)
_MAY_DECIDE = re.compile(
    r"kv|head|attn|attention|layer_?types?|block_?(types?|configs?)|layers_block|window|sliding|swa|chunk|mamba|ssm|"
    r"state|conv|linear|recurren|lightning|hybrid|pattern|shar(e|ing)|cla_|_cla|group|interval|period|mixer|latent|"
    r"lora_rank|cross|compress|index|memory|global|local|cache|rwkv|delta|kda|mla|gqa|mqa|retention|lru|mb_per|yoco|"
    r"reuse|loop|no_op|per_layer_config"
)
_DECIDES_NOTHING = re.compile(
    # What such a word says is done with numbers that are there anyway.
    r".*(bias|dropout|dropout_prob|dropout_p|pdrop|drop|norm|layernorm|eps|activation|act|init|range|std|scale|scaling|"
    r"multipliers?|softcapping|softcap|temperature|theta|fp32|implementation|version|token_id|token_index|loss|coef|"
    r"sinks?|gate|gating|factor|backend|log_min|log_max|lower_bound)"
    r"|(rope|moe|router|expert|mlp|output|bos|eos|pad|time_step|norm|tie|id2|label2|mtp|num_nextn|scale|linear_dt)_.*"
    r"|.*(experts?|rope|theta|mtp|embed).*"
)
_DECIDE_NOTHING = frozenset(
    {
        "activation_sparsity_pattern", "adapter_rank", "add_bias_linear", "add_cross_attention",
        "attention_hidden_size", "attention_in_fp32", "attention_k_eq_v", "attention_logit_cap", "attention_method",
        "attention_type", "attn_implementation", "attn_logits_type", "attn_res", "attn_temperature_tuning",
        "attn_type", "attn_use_rope", "auto_map", "block_auto_adjust_ff_dim", "block_dim", "block_ff_dim",
        "block_ffn_dim_multiplier", "block_mlp_init_scale", "block_multiple_of", "block_norm_eps", "block_out_dim",
        "block_use_swiglu", "block_use_xavier_init", "cache_implementation", "chunk_size", "chunk_size_feed_forward",
        "clip_qkv", "conv_use_xavier_init", "decoder_sparse_step", "first_k_dense_replace", "fused_attn",
        "group_norm_size", "head_wise_attn_gate", "hidden_states", "index_n_heads", "index_topk",
        "initializer_cutoff_factor", "intermediate_size", "kda_safe_gate", "layernorm_num_groups", "linear_act",
        "linear_allow_neg_eigval", "lm_head", "mamba_chunk_size", "mamba_dt_max", "mamba_dt_min", "mamba_dt_rank",
        "mamba_norm_before_gate", "mamba_proj_bias", "mamba_rms_norm", "max_position_embeddings", "mla_scale_kv_lora",
        "mla_scale_q_lora", "mla_use_nope", "n_group", "n_shared_experts", "no_rope_layers",
        "num_attention_heads_original", "num_beam_groups", "num_gqa_groups", "num_key_value_groups",
        "num_ln_in_parallel_attn", "num_mem_blocks", "num_shared_experts", "o_groups", "o_lora_rank",
        "parallel_attention", "parallel_attn",
        "partial_rotary_factor", "post_self_attn_layernorm", "pretraining_tp", "problem_type", "q_lora_rank",
        "qk_head_dim", "qk_nope_head_dim", "query_pre_attn_scalar", "reorder_and_upcast_attn",
        "scale_attn_by_inverse_layer_idx", "seconds_per_chunk", "share_embeddings", "share_input_output_layers",
        "share_q_dim", "shared_head", "shared_intermediate_size", "ssm_cfg", "swiglu_limits_shared", "theta",
        "topk_group",
        "use_attention_gate", "use_attn_logit_softcap", "use_bidirectional_attention", "use_cache", "use_conv_bias",
        "use_dynamic_ntk", "use_flash_attention", "use_flash_attn", "use_fused_attn", "use_gqa", "use_grouped_topk",
        "use_head_wise_attn_gate", "use_logn_attn", "use_mamba_kernels", "use_mambapy", "use_mem_rope",
        "use_memory_efficient_attention", "use_mla", "use_query_pre_attn_scalar", "use_rope_layers",
        "use_shared_attention_adapter", "use_triton_kernels", "yarn_only_types",
    }
)  # fmt: skip
"""Keys of the field that match :data:`_MAY_DECIDE` and were found to have no part in the size of the cache."""


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of a multimodal model's language model, which has a part of its own (``text_config``, …).

    Keys that the part does not have are those of the whole.
    """
    for name in _TEXT_PARTS:
        part = config.get(name)
        if isinstance(part, Mapping):
            return text_part({**{key: value for key, value in config.items() if key != name}, **part})
    return config


class ConfigReader:
    """The keys of one configuration, completed by the model's class where that is known."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self.known = known
        self._read: set[str] = set()

    def get(self, name: str) -> Any:
        """The value of a key, None where it has none."""
        self._read.add(name)
        return self.known.get(name)

    def has(self, *names: str) -> bool:
        """Whether one of the keys says something: 0, false and empty lists switch a thing off."""
        self.mark(*names)
        return any(self.known.get(name) for name in names)

    def integer(self, *names: str, smallest: int = 1, default: int | None = None) -> int:
        """The first of ``names`` that has a value, as an integer of at least ``smallest``.

        Raises:
            CalculationError: it is another value, or there is none and no default.
        """
        for name in names:
            value = self.get(name)
            if value is None:
                continue
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
                raise CalculationError.of(
                    Code.MODEL_CONFIG, name, f"is {value!r}", allowed=f"an integer of {smallest} or more"
                )
            return value
        if default is None:
            raise CalculationError.of(Code.MODEL_CONFIG, names[0], "is missing from the model's configuration")
        return default

    def per_layer(self, name: str, layers: int) -> list[Any] | None:
        """A list with an entry for each layer, None where the key is absent or empty.

        Raises:
            CalculationError: it is no list, or has another length.
        """
        values = self.get(name)
        if not values:
            return None
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise CalculationError.of(Code.MODEL_CONFIG, name, f"is {values!r}", allowed="the kind of every layer")
        if len(values) != layers:
            raise CalculationError.of(
                Code.MODEL_CONFIG, name, f"names {len(values)} layers", allowed=f"num_hidden_layers, {layers}"
            )
        return list(values)

    def part(self, name: str) -> ConfigReader | None:
        """A part with keys of its own, None where it is absent."""
        value = self.get(name)
        return ConfigReader(value) if isinstance(value, Mapping) and value else None

    def of_layer(self, index: int) -> ConfigReader:
        """The configuration of one layer, where ``per_layer_config`` says what differs there (Gemma 4)."""
        layers = self.get("per_layer_config")
        if not isinstance(layers, Mapping):
            return self
        different: Mapping[str, Any] = next(
            (value for name, value in layers.items() if str(name).isdigit() and int(name) == index), {}
        )
        layer = ConfigReader({**self.known, **different})
        layer._read = self._read
        layer.refuse_unread_keys(different)
        return layer

    def mark(self, *names: str) -> None:
        """Keys that say what another key has said already."""
        self._read.update(names)

    def _may_decide(self, name: str) -> bool:
        lower = name.lower()
        return bool(
            name not in self._read
            and not name.startswith("_")
            and _MAY_DECIDE.search(lower)
            and not _OTHER_PARTS.match(lower)
            and not _DECIDES_NOTHING.fullmatch(lower)
            and lower not in _DECIDE_NOTHING
        )

    def refuse_unread_keys(self, names: Iterable[str] | None = None) -> None:
        """End where a key that matters was not read: of ``names``, or of all.

        Raises:
            CalculationError: keys that may decide the size of the cache were read by no rule.
        """
        names = self.known if names is None else names
        unread = [name for name in names if self.known[name] and self._may_decide(name)]
        if unread:
            raise CalculationError.of(
                Code.MODEL_CONFIG,
                ", ".join(unread),
                "is not understood, and by its name it may decide the size of the cache",
                hint="Size the model by numbers: --layers, --kv-heads, --head-dim, or --latent-dim, --rotary-dim.",
            )
