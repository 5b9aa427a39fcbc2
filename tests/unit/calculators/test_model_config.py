"""Public configurations are read as vLLM builds them, or as their papers say; what is not understood is refused."""

from __future__ import annotations

from typing import Any

import pytest
from tests.doubles.model_configs import BY_HAND, configurations, kept_by, multiplied_by_hand, told_by_vllm
from transformers import AutoConfig

from ais_bench_prefix_cache.calculators.model_config import sizing_of_model
from ais_bench_prefix_cache.calculators.model_file import with_defaults
from ais_bench_prefix_cache.foundation.errors import CalculationError

CONFIGURATIONS = configurations()
MULTIPLIED = multiplied_by_hand()
TOLD = {**BY_HAND, **told_by_vllm()}
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 64,
}


def test_each_configuration_is_judged_by_somebody_else() -> None:
    assert set(CONFIGURATIONS) == set(TOLD)
    assert len(CONFIGURATIONS) >= 90
    assert len(told_by_vllm()) >= 70


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_public_model(name: str) -> None:
    assert kept_by(sizing_of_model(with_defaults(CONFIGURATIONS[name]))) == TOLD[name]


@pytest.mark.parametrize("name", MULTIPLIED)
def test_a_model_that_was_kept_aside(name: str) -> None:
    config, numbers = MULTIPLIED[name]
    sizing = sizing_of_model(with_defaults(config))
    assert sum(layers.count * layers.numbers_per_token for layers in sizing.layers) == numbers


@pytest.mark.parametrize(
    ("model_type", "kept"),
    [
        # A latent of kv_lora_rank + qk_rope_head_dim numbers; 128 + 4 bytes a layer that has an indexer of its own.
        ("axk2", {("latent", 48, 128 + 32, 0), ("indexer", 48, 0, 132)}),
        ("hy_v4", {("latent", 34, 512 + 64, 0), ("indexer", 10, 0, 132)}),
    ],
)
def test_a_class_that_names_everything_itself(model_type: str, kept: set[tuple[str, int, int, int]]) -> None:
    try:
        AutoConfig.for_model(model_type)
    except ValueError:  # transformers before these classes: refused by name
        with pytest.raises(CalculationError):
            sizing_of_model(with_defaults({"model_type": model_type}))
        return
    sizing = sizing_of_model(with_defaults({"model_type": model_type}))
    found = {(each.kind, each.count, each.numbers_per_token, each.fixed_bytes_per_token) for each in sizing.layers}
    assert found == kept


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kv_reuse_groups": [[0, 1]]}, "kv_reuse_groups: is not understood"),
        ({"mb_per_layer": 2, "mamba_d_state": 16}, "mb_per_layer, mamba_d_state: is not understood"),
        ({"model_type": "new", "num_key_value_heads": None}, "num_key_value_heads: is missing, and nothing says"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder: is set: an encoder-decoder keeps"),
        ({"cross_attention_layers": [1]}, "cross_attention_layers: is set: layers with cross attention"),
        ({"model_type": "bert"}, "model_type: is 'bert': an encoder keeps no cache"),
        ({"layer_types": ["full_attention", "quantum"] * 2}, "layer_types: has a layer of unknown type 'quantum'"),
        ({"layer_types": ["linear_attention"] * 4}, "layer_types: has layers with a state, but no known key"),
        ({"compress_ratios": [4] * 4}, "compress_ratios: is set: layers that keep compressed blocks"),
        ({"attn_type_list": [0, 1, 2, 1]}, "attn_type_list: has a layer of unknown type 2"),
        ({"sliding_window_pattern": "LXLG", "sliding_window": 8}, "sliding_window_pattern: has a layer of unknown"),
        ({"attn_layer_indices": [1, 9]}, "attn_layer_indices: names layer 9 (allowed: 0 to 3)"),
        ({"hybrid_layer_pattern": [1]}, "hybrid_layer_pattern: names 1 layers"),
        ({"indexer_types": ["full", "full", "some", "full"], "kv_lora_rank": 8, "qk_rope_head_dim": 4,
          "index_head_dim": 8}, "indexer_types[2]: is 'some'"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_named(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(CalculationError) as caught:
        sizing_of_model({**LLAMA, **keys})
    assert str(caught.value).startswith(message)


def test_what_switches_a_thing_off_is_understood() -> None:
    plain = sizing_of_model(LLAMA)
    off: dict[str, Any] = {
        "use_cla": False,
        "cla_share_factor": 2,
        "sliding_window": None,
        "kv_reuse_groups": [],
        "mb_per_layer": 0,
    }
    assert sizing_of_model({**LLAMA, **off}) == plain


def test_leftover_keys_of_states_mean_nothing_where_every_layer_is_named() -> None:
    leftover = {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_n_heads": 8}
    assert sizing_of_model({**LLAMA, **leftover, "layer_types": ["attention"] * 4}) == sizing_of_model(LLAMA)


def test_a_layer_may_differ_from_the_others() -> None:
    sizing = sizing_of_model({**LLAMA, "head_dim": 8, "per_layer_config": {"01": {"head_dim": 16}}})
    assert sizing.bytes_per_token == 2 * 2 * 2 * (3 * 8 + 16)
    with pytest.raises(CalculationError, match=r"^kv_reuse_layer: is not understood"):
        sizing_of_model({**LLAMA, "per_layer_config": {"1": {"kv_reuse_layer": 1}}})


@pytest.mark.parametrize(
    ("name", "ranks", "layers"),
    [
        # Shared heads and channels: half of each; the group of Mamba 2 that both need is kept by both.
        ("Granite-4.0-H-Small", 2, {("tokens", None, 2 * 4 * 128 * 2): 4,
                                    ("state", None, (3 * (8192 + 2 * 2 * 128) // 2 + 64 * 64 * 128) * 2): 36}),
        ("DeepSeek-V3", 8, {("tokens", None, (512 + 64) * 2): 61}),
    ],
)  # fmt: skip
def test_ranks_share_states_but_not_latents(name: str, ranks: int, layers: dict[Any, int]) -> None:
    sizing = sizing_of_model(with_defaults(CONFIGURATIONS[name]), tensor_parallel=ranks)
    assert kept_by(sizing) == layers


def test_the_states_of_a_request_are_counted_once() -> None:
    sizing = sizing_of_model(with_defaults(CONFIGURATIONS["Mamba-2.8B"]))
    assert sizing.request_bytes(1) == sizing.request_bytes(100_000) == 64 * 5120 * (3 + 16) * 4
