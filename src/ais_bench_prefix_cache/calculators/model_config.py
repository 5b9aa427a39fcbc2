"""What a model's ``config.json`` (Hugging Face) says about the size of its KV cache.

Which layers keep what is read from the keys of the configuration, in the names that the field has for them; only what
no key says is known by ``model_type``. Nothing is guessed: see
:mod:`~ais_bench_prefix_cache.calculators.config_reader`. ``docs/kv-cache.md`` lists the families and how each
was judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Union

from ais_bench_prefix_cache.calculators.config_reader import ConfigReader, text_part
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
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEADS = (
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",
    "n_kv_heads",
    "num_attention_groups",
    "num_query_groups",
)
_HEAD_DIMS = ("head_dim", "attention_head_dim", "hidden_size_per_head", "kv_channels", "head_size", "d_head")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed", "model_dim", "dim")
_WINDOWS = ("sliding_window", "attention_chunk_size", "attention_window_size", "sliding_window_size", "window_size")
_LAYER_NAMES = ("layer_types", "layers_block_type", "attention_layers", "layer_type_list")
_PATTERNS = (
    *("sliding_window_pattern", "use_sliding_window", "max_window_layers", "no_rope_layer_interval", "full_attn_idxs"),
    *("global_attn_every_n_layers", "interleaved_sliding_window", "full_attention_interval", "attn_layer_indices"),
    *("attn_layer_period", "attn_layer_offset", "attn_type_list", "layer_group_size", "attention_types", "block_types"),
    *("hybrid_layer_ids", "mamba_step", "mamba_enabled", "hybrid_override_pattern", "hybrid_layer_pattern"),
    *("local_attention", "sliding_window_layers", "global_attn_idx"),
)
"""Other keys that say what a list of the kinds of all layers says already."""

_FULL_NAMES = {"full_attention", "attention", "global_attention", "global", "full", "indexed_attention"}
_WINDOWED_NAMES = {
    *("sliding_attention", "chunked_attention", "local_attention", "sliding_window_attention", "local", "sliding"),
}
_STATE_NAMES = {"linear_attention", "mamba", "mamba2", "recurrent", "conv", "linear"}
_BOTH_NAMES = {"hybrid"}
_NOTHING_NAMES = {"mlp", "moe"}

_MULTI_HEAD_TYPES = frozenset(
    {
        "aquila", "baichuan", "bloom", "codegen", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_neox_japanese",
        "gptj", "internlm", "llama", "mpt", "opt", "orion", "persimmon", "phi", "qwen", "skywork", "stablelm",
        "telechat", "xverse",
    }
)  # fmt: skip
"""Types whose older files name no KV heads because every head has its own."""
_NO_CACHE_TYPES = frozenset(
    {
        "bert", "deberta", "deberta-v2", "distilbert", "electra", "modernbert", "nomic_bert", "roberta", "xlm-roberta",
    }
)  # fmt: skip
_EXPANDED_LATENT_TYPES = frozenset({"minicpm3"})
"""Types with the keys of latent attention that engines run as plain attention with keys and values of every head."""
_ATTENTIONS_A_LAYER = {"longcat_flash": 2, "longcat_flash_ngram": 2, "longcat": 2}
_EVERY_LAYER_BOTH = frozenset({"falcon_h1", "hymba"})
_ALL_STATE_TYPES = frozenset({"mamba", "mamba2", "falcon_mamba"})
_DELIBERATELY_REFUSED = {
    "is_encoder_decoder": "an encoder-decoder keeps keys and values of its input, too",
    "cross_attention_layers": "layers with cross attention keep keys and values of images, not of tokens",
    "compress_ratios": "layers that keep compressed blocks of tokens are not counted here",
    "compress_rates": "layers that keep compressed blocks of tokens are not counted here",
}

LayerKind = tuple[str, Union[int, None]]
FULL: LayerKind = ("attention", None)
STATE: LayerKind = ("state", None)
BOTH: LayerKind = ("both", None)
NOTHING: LayerKind = ("nothing", None)


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
        self.count = reader.integer(*_LAYERS)
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
        for index, (kind, window) in enumerate(self._kinds()[: self.count - self._shared_layers()]):
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
        kv_heads, head_dim, value_head_dim = self._heads(index, window)
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
        self.reader.mark("v_head_dim", *_HEADS, *_KV_HEADS, *_HEAD_DIMS)
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
        self.reader.mark("kv_lora_rank", *_KV_HEADS, "v_head_dim", *_HEAD_DIMS)
        head_dim = self.reader.integer("qk_nope_head_dim") + self.reader.integer("qk_rope_head_dim")
        heads = self.reader.integer(*_HEADS)
        return attention_layers(1, kv_heads=heads, head_dim=head_dim, tensor_parallel=self.tensor_parallel)

    def _state(self) -> CacheLayers:
        heads = self.reader.integer(*_HEADS, default=0, smallest=0)
        self.reader.mark(*_HEADS, *_KV_HEADS, *_HEAD_DIMS)
        head_dim = self.reader.integer("head_dim", default=0, smallest=0)
        if not head_dim and heads:
            head_dim = self.reader.integer(*_HIDDEN, default=0, smallest=0) // heads
        convolution, recurrent, dtype = state_numbers(self.reader, heads, head_dim, self.tensor_parallel)
        recurrent_dtype = self.dtype if dtype is None else _TORCH_DTYPES[dtype]
        size = convolution * DTYPE_BYTES[self.dtype] + recurrent * DTYPE_BYTES[recurrent_dtype]
        return constant_state_layers(1, state_bytes=size)

    def _layers_of_blocks(self, blocks: list[Any]) -> list[CacheLayers]:
        """Nemotron-NAS: every layer says how many query heads read one KV head, or that it has no attention."""
        heads = self.reader.integer(*_HEADS)
        self.reader.mark(*_KV_HEADS)
        head_dim = self._head_dim(heads)
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

    def _heads(self, index: int, window: int | None) -> tuple[int, int, int]:
        """KV heads, and the numbers of a key and of a value of one head."""
        reader = self.reader
        if (listed := reader.get("num_kv_heads")) is not None and isinstance(listed, list):  # OpenELM
            kv_heads = _entry("num_kv_heads", reader.per_layer("num_kv_heads", self.count), index)
            reader.mark("num_query_heads", *_HEADS)
            head_dim = reader.integer(*_HEAD_DIMS)
            return kv_heads, head_dim, head_dim
        heads = self._query_heads()
        head_dim = self._head_dim(heads)
        kv_heads_of_layers = reader.per_layer("num_key_value_heads_per_layer", self.count)
        kv_heads = self._kv_heads(heads) if kv_heads_of_layers is None else _entry(
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
            kv_heads = reader.integer("swa_num_key_value_heads", default=kv_heads)
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

    def _query_heads(self) -> int:
        """Query heads, where the configuration names them: two names for the same may stand side by side."""
        heads = self.reader.integer(*_HEADS)
        self.reader.mark(*_HEADS)
        return heads

    def _head_dim(self, heads: int) -> int:
        self.reader.mark(*_HEAD_DIMS)
        if any(self.reader.get(name) for name in _HEAD_DIMS):
            return self.reader.integer(*(name for name in _HEAD_DIMS if self.reader.get(name)))
        hidden_size = self.reader.integer(*_HIDDEN)
        head_dim, rest = divmod(hidden_size, heads)
        if rest:
            raise CalculationError.of(
                Code.MODEL_CONFIG, "head_dim", f"is missing, and {heads} heads do not divide hidden_size {hidden_size}"
            )
        return head_dim

    def _kv_heads(self, heads: int) -> int:
        reader = self.reader
        known = reader.has(*_KV_HEADS)
        reader.mark(*_KV_HEADS, "multi_query", "new_decoder_architecture", "multi_query_group_num")
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
        if not known and self.type != "None" and self.type not in _MULTI_HEAD_TYPES and attention is None:
            raise CalculationError.of(
                Code.MODEL_CONFIG,
                _KV_HEADS[0],
                f"is missing, and transformers does not know the model_type {self.type!r}",
            )
        kv_heads = reader.integer(*_KV_HEADS, default=heads)
        if kv_heads > heads:
            raise CalculationError.of(
                Code.MODEL_CONFIG, "num_key_value_heads", f"is {kv_heads}", allowed=f"1 to num_attention_heads, {heads}"
            )
        return kv_heads

    # Which kind of layer stands where

    def _kinds(self) -> list[LayerKind]:
        """Kind and window of every layer, from whichever keys the configuration has."""
        reader, count = self.reader, self.count
        if self.type in _ALL_STATE_TYPES:
            return [STATE] * count
        if self.type in _EVERY_LAYER_BOTH:
            return [BOTH] * count
        window = self._window()
        windowed: LayerKind = ("attention", window) if window else FULL
        for key in _LAYER_NAMES:
            names = reader.per_layer(key, count)
            if names is not None:
                reader.mark(*_PATTERNS, *_LAYER_NAMES)
                return [self._named_kind(key, str(name), windowed) for name in names]
        for of_pattern in (self._by_letters, self._by_positions, self._by_period):
            kinds = of_pattern(windowed)
            if kinds is not None:
                reader.mark(*_PATTERNS)
                return kinds
        windows = reader.get("interleaved_sliding_window")
        if isinstance(windows, Sequence) and not isinstance(windows, str) and windows:
            cycle = [("attention", size or None) for size in windows]
            return [cycle[index % len(cycle)] for index in range(count)]
        return self._by_windows(windowed, window)

    def _window(self) -> int | None:
        reader = self.reader
        if self.type.startswith("mimo"):
            reader.mark("attention_chunk_size")  # set, but without effect: vLLM strips it, too
            size = reader.integer("sliding_window", "sliding_window_size", smallest=0, default=0)
        else:
            size = reader.integer(*_WINDOWS, smallest=0, default=0)
        reader.mark(*_WINDOWS)
        # Cohere's window does not count the token itself.
        return (size + 1 if self.type.startswith("cohere2") else size) if size else None

    def _by_letters(self, windowed: LayerKind) -> list[LayerKind] | None:
        """Patterns of letters: Nemotron-H (M Mamba, * attention, - and E neither), EXAONE 4 (L local, G global)."""
        letters = self.reader.get("hybrid_override_pattern")
        if letters:
            if not isinstance(letters, str):
                raise CalculationError.of(
                    Code.MODEL_CONFIG, "hybrid_override_pattern", f"is {letters!r}", allowed="the kind of every layer"
                )
            if len(letters) != self.count:
                raise CalculationError.of(
                    Code.MODEL_CONFIG,
                    "hybrid_override_pattern",
                    f"names {len(letters)} layers",
                    allowed=f"num_hidden_layers, {self.count}",
                )
            kinds = {"*": FULL, "M": STATE, "-": NOTHING, "E": NOTHING}
            return [self._kind_of(letter, kinds, "hybrid_override_pattern") for letter in letters]
        cycle = self.reader.get("sliding_window_pattern")
        if isinstance(cycle, str) and cycle:
            kinds = {"L": windowed, "G": FULL}
            return [
                self._kind_of(cycle[index % len(cycle)], kinds, "sliding_window_pattern") for index in range(self.count)
            ]
        return None

    def _by_positions(self, windowed: LayerKind) -> list[LayerKind] | None:
        """Lists of numbers: of the layers with attention, or of a kind for each layer."""
        reader, count = self.reader, self.count
        linear = reader.part("linear_attn_config")
        for name, listed, first in (
            ("attn_layer_indices", reader.get("attn_layer_indices"), 0),  # Bamba
            ("full_attn_idxs", reader.get("full_attn_idxs"), 0),  # LFM2
            ("full_attn_layers", None if linear is None else linear.get("full_attn_layers"), 1),  # Kimi Linear
        ):
            if isinstance(listed, list):
                wrong = [index for index in listed if not isinstance(index, int) or not 0 <= index - first < count]
                if wrong:
                    raise CalculationError.of(
                        Code.MODEL_CONFIG, name, f"names layer {wrong[0]!r}", allowed=f"{first} to {count + first - 1}"
                    )
                full = {index - first for index in listed}
                return [FULL if index in full else STATE for index in range(count)]
        hybrid = reader.get("hybrid_layer_ids")  # Zamba2: there attention follows a Mamba layer
        if isinstance(hybrid, list):
            return [BOTH if index in hybrid else STATE for index in range(count)]
        # MiMo: 1 is a window, 0 is full attention. MiniMax: 1 is attention, 0 is linear.
        for name, zero, one in (("hybrid_layer_pattern", FULL, windowed), ("attn_type_list", STATE, FULL)):
            numbers = reader.per_layer(name, count)
            if numbers is not None:
                return [self._kind_of(number, {0: zero, 1: one}, name) for number in numbers]
        cycle = reader.get("block_types")
        if isinstance(cycle, list) and cycle:  # RecurrentGemma: its attention has a window
            kinds = {"attention": windowed, "recurrent": STATE}
            return [self._kind_of(cycle[index % len(cycle)], kinds, "block_types") for index in range(count)]
        return None

    def _by_period(self, windowed: LayerKind) -> list[LayerKind] | None:
        """Every so many layers there is full attention: after states, or after layers with a window."""
        reader, count = self.reader, self.count
        if reader.has("layer_group_size") and reader.integer("layer_group_size") > 1:  # Ling/Ring linear
            size = reader.integer("layer_group_size")
            whole = count // size * size
            return [FULL if (index + 1) % size == 0 or index >= whole else STATE for index in range(count)]
        if reader.has("full_attention_interval", "attn_layer_period"):
            interval = reader.integer("full_attention_interval", "attn_layer_period")
            offset = reader.integer("attn_layer_offset", smallest=0, default=interval - 1)
            return [FULL if index % interval == offset else STATE for index in range(count)]
        if windowed is not FULL and reader.has("global_attn_every_n_layers"):
            interval = reader.integer("global_attn_every_n_layers")
            return [FULL if (index + 1) % interval == 0 else windowed for index in range(count)]
        return None

    def _by_windows(self, windowed: LayerKind, window: int | None) -> list[LayerKind]:
        reader, count = self.reader, self.count
        if not window or reader.get("use_sliding_window") is False:
            reader.mark("sliding_window_pattern", "max_window_layers", "no_rope_layer_interval")
            return [FULL] * count
        if self.type.startswith(
            "llama4"
        ):  # layers without RoPE see everything; old releases of transformers do not name them
            interval = reader.integer("no_rope_layer_interval", default=4)
            rope = reader.get("no_rope_layers") or [int((index + 1) % interval != 0) for index in range(count)]
            return [windowed if each else FULL for each in rope]
        pattern = reader.integer("sliding_window_pattern", default=2 if self.type in ("gemma2", "gpt_oss") else 0)
        if pattern:
            return [FULL if (index + 1) % pattern == 0 else windowed for index in range(count)]
        # Qwen2: the first max_window_layers layers use full attention.
        full_layers = reader.integer("max_window_layers", smallest=0) if reader.get("use_sliding_window") else 0
        return [FULL if index < full_layers else windowed for index in range(count)]

    def _named_kind(self, key: str, name: str, windowed: LayerKind) -> LayerKind:
        kinds = (
            (_STATE_NAMES, STATE), (_WINDOWED_NAMES, windowed), (_FULL_NAMES, FULL),
            (_BOTH_NAMES, BOTH), (_NOTHING_NAMES, NOTHING),
        )  # fmt: skip
        for names, kind in kinds:
            if name in names:
                return kind
        raise CalculationError.of(
            Code.MODEL_CONFIG,
            key,
            f"has a layer of unknown type {name!r}",
            allowed=", ".join(sorted(_FULL_NAMES | _WINDOWED_NAMES | _STATE_NAMES | _BOTH_NAMES | _NOTHING_NAMES)),
        )

    @staticmethod
    def _kind_of(value: Any, kinds: Mapping[Any, LayerKind], key: str) -> LayerKind:
        if value not in kinds:
            raise CalculationError.of(
                Code.MODEL_CONFIG,
                key,
                f"has a layer of unknown type {value!r}",
                allowed=", ".join(str(known) for known in kinds),
            )
        return kinds[value]


def _entry(key: str, values: list[Any] | None, index: int) -> int:
    value = None if values is None else values[index]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CalculationError.of(
            Code.MODEL_CONFIG, f"{key}[{index}]", f"is {value!r}", allowed="an integer of 1 or more"
        )
    return value
