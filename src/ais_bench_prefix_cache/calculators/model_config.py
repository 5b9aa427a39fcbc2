"""What a model's ``config.json`` (Hugging Face) says about the size of its KV cache.

Which layers keep what is read from the keys of the configuration, in the names that the field has for them; only what
no key says is known by ``model_type``. Nothing is guessed: see
:mod:`~ais_bench_prefix_cache.calculators.config_reader`. ``docs/kv-cache.md`` lists the families and how each
was judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ais_bench_prefix_cache.calculators.attention_heads import (
    HEAD_DIMS,
    HEADS,
    HIDDEN,
    KV_HEADS,
    head_dim_of,
    heads_of_layer,
)
from ais_bench_prefix_cache.calculators.config_reader import ConfigReader, text_part
from ais_bench_prefix_cache.calculators.layer_kinds import LayerKinds
from ais_bench_prefix_cache.calculators.sizing import (
    DTYPE_BYTES,
    CacheLayers,
    CacheSizing,
    attention_layers,
    constant_state_layers,
    indexer_layers,
    latent_attention_layers,
)
from ais_bench_prefix_cache.calculators.state_sizes import state_numbers
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import CalculationError

MOST_LAYERS = 10_000

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
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers")


_NO_CACHE_TYPES = frozenset(
    {
        "bert", "deberta", "deberta-v2", "distilbert", "electra", "modernbert", "nomic_bert", "roberta", "xlm-roberta",
    }
)  # fmt: skip
_EXPANDED_LATENT_TYPES = frozenset({"minicpm3"})
"""Types with the keys of latent attention that engines run as plain attention with keys and values of every head."""
_ATTENTIONS_A_LAYER = {"longcat_flash": 2, "longcat_flash_ngram": 2, "longcat": 2}
_DELIBERATELY_REFUSED = {
    "is_encoder_decoder": "an encoder-decoder keeps keys and values of its input, too",
    "cross_attention_layers": "layers with cross attention keep keys and values of images, not of tokens",
    "compress_ratios": "layers that keep compressed blocks of tokens are not counted here",
    "compress_rates": "layers that keep compressed blocks of tokens are not counted here",
}


def sizing_of_model(config: Mapping[str, Any], *, dtype: str | None = None, tensor_parallel: int = 1) -> CacheSizing:
    """Read the layers of a model from its parsed ``config.json``.

    ``dtype`` is a name of :data:`~ais_bench_prefix_cache.calculators.sizing.DTYPE_BYTES`; without it the cache has the
    model's own type, as vLLM's ``--kv-cache-dtype auto``. The text part of a multimodal model counts (``text_config``).
    Not counted: scales of quantized caches, draft layers of speculative decoding. What a configuration leaves to the
    defaults of its class is not known here (:mod:`~ais_bench_prefix_cache.calculators.model_file`).

    Raises:
        CalculationError: a key that is needed is missing or makes no sense, or a key that may decide the size of the
            cache is not understood.
    """
    reader = ConfigReader(text_part(config))
    _refuse_other_models(reader)
    model = _Model(reader, model_dtype(config), tensor_parallel)
    layers = model.layers()
    reader.refuse_unread_keys()
    merged = [
        replace(layer, count=count)
        for layer, count in sorted(Counter(layers).items(), key=lambda item: (item[0].kind, item[0].window or 0))
    ]
    return CacheSizing(tuple(merged), DTYPE_BYTES[dtype or model_dtype(config)])


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


def _refuse_other_models(reader: ConfigReader) -> None:
    for key, reason in _DELIBERATELY_REFUSED.items():
        if reader.get(key):
            raise CalculationError.of(Code.MODEL_CONFIG, key, f"is set: {reason}")
    if reader.get("model_type") in _NO_CACHE_TYPES:
        raise CalculationError.of(
            Code.MODEL_CONFIG, "model_type", f"is {reader.get('model_type')!r}: an encoder keeps no cache"
        )


class _Model:
    """The layers of one configuration, each on one rank."""

    def __init__(self, reader: ConfigReader, dtype: str, tensor_parallel: int) -> None:
        self.reader = reader
        self.dtype = dtype
        self.tensor_parallel = tensor_parallel
        self.type = str(reader.get("model_type"))
        blocks = reader.get("layers_block_type")  # Nemotron-H as its class writes it: the list is the number, too.
        self.count = reader.integer(*_LAYERS, default=len(blocks) if isinstance(blocks, list) and blocks else None)
        if self.count > MOST_LAYERS:
            raise CalculationError.of(Code.MODEL_CONFIG, _LAYERS[0], f"is {self.count}", allowed=f"1 to {MOST_LAYERS}")
        reader.mark(*_LAYERS)

    def layers(self) -> list[CacheLayers]:
        """What every layer keeps, from the first to the last; a layer may keep several things, or nothing."""
        if (blocks := self.reader.per_layer("block_configs", self.count)) is not None:
            return self._layers_of_blocks(blocks)
        if self.reader.has("kv_lora_rank") and self.type in _EXPANDED_LATENT_TYPES:
            return [self._expanded_latent()] * self.count
        attentions = _ATTENTIONS_A_LAYER.get(self.type, 1)
        kept: list[CacheLayers] = []
        for index, (kind, window) in enumerate(
            LayerKinds(self.reader, self.type, self.count).of_layers()[: self.count - self._shared_layers()]
        ):
            if kind in ("attention", "both"):
                kept += self._attention(index, window) * attentions
            if kind in ("state", "both"):
                kept.append(self._state())
        factor = self._sharing_factor()
        return kept[::factor]

    def _shared_layers(self) -> int:
        """The last layers that read the cache of earlier ones (Gemma 3n)."""
        return self.reader.integer("num_kv_shared_layers", smallest=0, default=0)

    def _sharing_factor(self) -> int:
        """How many neighbouring layers read one cache (cross-layer attention, Hunyuan-Large)."""
        factor = self.reader.integer("cla_share_factor", default=1)
        return factor if self.reader.get("use_cla") else 1

    # What a layer keeps

    def _attention(self, index: int, window: int | None) -> list[CacheLayers]:
        if self.reader.has("kv_lora_rank"):
            return self._latent(index)
        kv_heads, head_dim, value_head_dim = heads_of_layer(self.reader, self.count, index, window)
        return [
            attention_layers(
                1,
                kv_heads=kv_heads,
                head_dim=head_dim,
                value_head_dim=value_head_dim,
                window=window,
                tensor_parallel=self.tensor_parallel,
            )
        ]

    def _latent(self, index: int) -> list[CacheLayers]:
        self.reader.mark("v_head_dim", *HEADS, *KV_HEADS, *HEAD_DIMS)
        latent = latent_attention_layers(
            1,
            latent_dim=self.reader.integer("kv_lora_rank"),
            rotary_dim=self.reader.integer("qk_rope_head_dim", smallest=0),
        )
        index_dim = self.reader.integer("index_head_dim", smallest=0, default=0)
        return [latent, indexer_layers(1, index_dim)] if index_dim and self._has_indexer(index) else [latent]

    def _has_indexer(self, index: int) -> bool:
        """Whether a layer of sparse attention chooses its tokens itself, or takes those of the layer before."""
        reader = self.reader
        period = reader.integer("index_topk_freq", default=1)
        offset = reader.integer("index_skip_topk_offset", smallest=0, default=2)
        letters = reader.get("index_topk_pattern")
        kinds = reader.per_layer("indexer_types", self.count)
        if letters:
            return not (index < len(letters) and letters[index] == "S")
        if period > 1:
            return max(index - offset + 1, 0) % period == 0
        if kinds is not None and kinds[index] not in ("full", "shared"):
            raise CalculationError.of(
                Code.MODEL_CONFIG, f"indexer_types[{index}]", f"is {kinds[index]!r}", allowed="full, shared"
            )
        return kinds is None or kinds[index] == "full"

    def _expanded_latent(self) -> CacheLayers:
        self.reader.mark("kv_lora_rank", *KV_HEADS, "v_head_dim", *HEAD_DIMS)
        head_dim = self.reader.integer("qk_nope_head_dim") + self.reader.integer("qk_rope_head_dim")
        heads = self.reader.integer(*HEADS)
        return attention_layers(1, kv_heads=heads, head_dim=head_dim, tensor_parallel=self.tensor_parallel)

    def _state(self) -> CacheLayers:
        heads = self.reader.integer(*HEADS, default=0, smallest=0)
        self.reader.mark(*HEADS, *KV_HEADS, *HEAD_DIMS)
        head_dim = self.reader.integer("head_dim", default=0, smallest=0)
        if not head_dim and heads:
            head_dim = self.reader.integer(*HIDDEN, default=0, smallest=0) // heads
        convolution, recurrent, dtype = state_numbers(self.reader, heads, head_dim, self.tensor_parallel)
        recurrent_dtype = self.dtype if dtype is None else _TORCH_DTYPES[dtype]
        size = convolution * DTYPE_BYTES[self.dtype] + recurrent * DTYPE_BYTES[recurrent_dtype]
        return constant_state_layers(1, state_bytes=size)

    def _layers_of_blocks(self, blocks: list[Any]) -> list[CacheLayers]:
        """Nemotron-NAS: every layer says how many query heads read one KV head, or that it has no attention."""
        heads = self.reader.integer(*HEADS)
        self.reader.mark(*KV_HEADS)
        head_dim = head_dim_of(self.reader, heads)
        layers = []
        for index, block in enumerate(blocks):
            attention = block.get("attention") if isinstance(block, Mapping) else None
            if not isinstance(attention, Mapping):
                raise CalculationError.of(Code.MODEL_CONFIG, f"block_configs[{index}]", "says nothing of its attention")
            if attention.get("no_op"):
                continue
            unknown = [
                key for key, value in attention.items()
                if value and key not in ("n_heads_in_group", "no_op", "num_sink_tokens", "window_length", "sparsify")
            ]  # fmt: skip
            part = ConfigReader(attention)
            kv_heads = part.integer("n_heads_in_group", "num_key_value_heads")
            if "num_key_value_heads" in unknown:
                unknown.remove("num_key_value_heads")
            elif kv_heads:
                kv_heads = heads // kv_heads
            if unknown:
                raise CalculationError.of(
                    Code.MODEL_CONFIG, f"block_configs[{index}].attention.{unknown[0]}", "is not understood"
                )
            window = part.integer("window_length", default=0, smallest=0) or None
            layers.append(
                attention_layers(
                    1, kv_heads=kv_heads, head_dim=head_dim, window=window, tensor_parallel=self.tensor_parallel
                )
            )
        return layers
