"""Which kind of layer stands where: with full attention, with a window, with a state, with both, or with neither."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

from ais_bench_prefix_cache.calculators.config_reader import ConfigReader
from ais_bench_prefix_cache.calculators.state_sizes import STATE_KEYS
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import CalculationError

_WINDOWS = ("sliding_window", "attention_chunk_size", "attention_window_size", "sliding_window_size", "window_size")
_LAYER_NAMES = ("layer_types", "layers_block_type", "attention_layers", "layer_type_list")
_PATTERNS = (
    *("sliding_window_pattern", "use_sliding_window", "max_window_layers", "no_rope_layer_interval", "full_attn_idxs"),
    *("global_attn_every_n_layers", "interleaved_sliding_window", "full_attention_interval", "attn_layer_indices"),
    *("attn_layer_period", "attn_layer_offset", "attn_type_list", "layer_group_size", "attention_types", "block_types"),
    *("hybrid_layer_ids", "mamba_step", "mamba_enabled", "hybrid_override_pattern", "hybrid_layer_pattern"),
    *("local_attention", "sliding_window_layers", "global_attn_idx", "prefix_dense_sliding_window_pattern"),
)
"""Other keys that say what a list of the kinds of all layers says already."""
_FULL_NAMES = {"full_attention", "attention", "global_attention", "global", "full", "indexed_attention"}
_WINDOWED_NAMES = {
    *("sliding_attention", "chunked_attention", "local_attention", "sliding_window_attention", "local", "sliding"),
}
_STATE_NAMES = {"linear_attention", "mamba", "mamba2", "recurrent", "conv", "linear"}
_BOTH_NAMES = {"hybrid"}
_NOTHING_NAMES = {"mlp", "moe"}
_EVERY_LAYER_BOTH = frozenset({"falcon_h1", "hymba"})
_ALL_STATE_TYPES = frozenset({"mamba", "mamba2", "falcon_mamba"})
LayerKind = tuple[str, Union[int, None]]
FULL: LayerKind = ("attention", None)
STATE: LayerKind = ("state", None)
BOTH: LayerKind = ("both", None)
NOTHING: LayerKind = ("nothing", None)


class LayerKinds:
    """Kinds of the ``count`` layers of a model of ``model_type``, from whichever keys the configuration has."""

    def __init__(self, reader: ConfigReader, model_type: str, count: int) -> None:
        self.reader = reader
        self.type = model_type
        self.count = count

    def of_layers(self) -> list[LayerKind]:
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
                named = [self._named_kind(key, str(name), windowed) for name in names]
                if STATE not in named and BOTH not in named:
                    reader.mark(*STATE_KEYS)  # Granite 4.0 Micro: every layer is named, and none has a state.
                return named
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
        if self.type.startswith("llama4"):
            # Layers without RoPE see everything; old releases of transformers do not name them.
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
