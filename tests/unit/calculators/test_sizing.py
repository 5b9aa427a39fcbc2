"""Bytes per token of published models, from what their ``config.json`` says; the products are written out."""

from __future__ import annotations

from typing import Any

import pytest

from ais_bench_prefix_cache.calculators.model_config import sizing_of_model
from ais_bench_prefix_cache.calculators.sizing import (
    CacheSizing,
    attention_layers,
    constant_state_layers,
    prefixes_that_fit,
    requests_that_fit,
)
from ais_bench_prefix_cache.foundation.errors import CalculationError

LLAMA3_8B = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}
LLAMA2_7B = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_size": 4096,
    "torch_dtype": "float16",
}
FALCON_7B = {"num_hidden_layers": 32, "num_attention_heads": 71, "hidden_size": 4544, "multi_query": True}
FALCON_40B = {
    "num_hidden_layers": 60,
    "num_attention_heads": 128,
    "hidden_size": 8192,
    "multi_query": True,
    "new_decoder_architecture": True,
    "num_kv_heads": 8,
}
GEMMA4 = {
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_global_key_value_heads": 4,
    "sliding_window": 1024,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"],
}
MIMO = {
    "num_hidden_layers": 3,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "swa_num_key_value_heads": 8,
    "head_dim": 192,
    "v_head_dim": 128,
    "swa_head_dim": 192,
    "swa_v_head_dim": 96,
    "sliding_window": 128,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
}
CHATGLM3 = {
    "num_layers": 28,
    "num_attention_heads": 32,
    "kv_channels": 128,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "torch_dtype": "float16",
}
DEEPSEEK_V3 = {
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "hidden_size": 7168,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("config", "bytes_per_token"),
    [
        (LLAMA3_8B, 32 * 2 * 8 * 128 * 2),
        (LLAMA2_7B, 32 * 2 * 32 * 128 * 2),
        (FALCON_7B, 32 * 2 * 1 * 64 * 2),
        (CHATGLM3, 28 * 2 * 2 * 128 * 2),
        (DEEPSEEK_V3, 61 * (512 + 64) * 2),
        ({"text_config": LLAMA3_8B, "vision_config": {"hidden_size": 1}}, 131072),
        ({"thinker_config": {"text_config": LLAMA3_8B, "num_hidden_layers": 1}, "talker_config": {}}, 131072),
        ({**LLAMA3_8B, "text_config": ["not a part"], "sliding_window": 0, "full_attention_interval": 0}, 131072),
        (FALCON_40B, 60 * 2 * 8 * 64 * 2),
        ({"n_layers": 40, "n_heads": 48, "d_model": 6144, "attn_config": {"kv_n_heads": 8}}, 40 * 2 * 8 * 128 * 2),
        (GEMMA4, 2 * (5 * 2 * 8 * 256 + 2 * 4 * 512)),
        (MIMO, 2 * (2 * 4 * (192 + 128) + 8 * (192 + 96))),
    ],
    ids=[
        "grouped-query",
        "multi-head",
        "multi-query",
        "chatglm",
        "latent",
        "multimodal",
        "omni",
        "odd",
        "falcon-40b",
        "dbrx",
        "gemma4",
        "mimo",
    ],
)
def test_bytes_per_token(config: dict[str, Any], bytes_per_token: int) -> None:
    assert sizing_of_model(config).bytes_per_token == bytes_per_token


@pytest.mark.parametrize(("dtype", "size"), [("fp32", 4), ("fp16", 2), ("bf16", 2), ("fp8", 1), ("int8", 1)])
def test_the_type_of_the_cache(dtype: str, size: int) -> None:
    assert sizing_of_model(LLAMA3_8B, dtype=dtype).bytes_per_token == 65536 * size


def test_tensor_parallel_ranks_share_heads_and_copy_the_last_one() -> None:
    per_rank = [sizing_of_model(LLAMA3_8B, tensor_parallel=ranks).bytes_per_token for ranks in (1, 2, 8, 16)]
    assert per_rank == [131072, 65536, 16384, 16384]
    # The latent is one for all heads: every rank keeps it.
    assert sizing_of_model(DEEPSEEK_V3, tensor_parallel=8).bytes_per_token == 70272


WINDOWED = {**LLAMA3_8B, "num_hidden_layers": 4, "sliding_window": 1024}
EIGHT = {**LLAMA3_8B, "num_hidden_layers": 8, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2}
MAMBA_STATE = 2 * 4096 * (3 + 16) * 2
"""Of its 8192 channels three inputs of the convolution and 16 numbers, in 16 bits."""


@pytest.mark.parametrize(
    ("config", "full", "windowed", "constant"),
    [
        (WINDOWED, 0, 4, 0),  # Mistral
        ({**WINDOWED, "use_sliding_window": False, "max_window_layers": 4}, 4, 0, 0),  # Qwen2 as published
        ({**WINDOWED, "use_sliding_window": True, "max_window_layers": 3}, 3, 1, 0),
        ({**WINDOWED, "model_type": "gemma2"}, 2, 2, 0),
        ({**WINDOWED, "num_hidden_layers": 6, "sliding_window_pattern": 6}, 1, 5, 0),  # Gemma 3
        ({**WINDOWED, "layer_types": ["sliding_attention", "full_attention"] * 2}, 2, 2, 0),  # gpt-oss
        ({**WINDOWED, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2}, 1, 1, 0),
        ({**EIGHT, "full_attention_interval": 4}, 2, 0, 6),  # Qwen3-Next
        ({**EIGHT, "attn_layer_period": 8, "attn_layer_offset": 4}, 1, 0, 7),  # Jamba
        ({**EIGHT, "num_hidden_layers": 4, "hybrid_override_pattern": "M-M*"}, 1, 0, 2),  # Nemotron-H
        ({**EIGHT, "num_hidden_layers": 4, "layers_block_type": ["mamba", "mlp", "moe", "attention"]}, 1, 0, 1),
        ({**EIGHT, "attn_layer_indices": [2, 5]}, 2, 0, 6),  # Bamba
        ({**EIGHT, "full_attn_idxs": [2]}, 1, 0, 7),  # LFM2
        ({**EIGHT, "attn_layer_indices": [3, 7]}, 2, 0, 6),
        ({**EIGHT, "layer_types": ["mamba", "attention"] * 4}, 4, 0, 4),
        (
            {
                **EIGHT,
                "block_types": ["recurrent", "recurrent", "attention"],
                "attention_window_size": 1024,
            },
            0,
            2,
            6,
        ),  # RecurrentGemma
    ],
)
def test_window_and_hybrid_layers(config: dict[str, Any], full: int, windowed: int, constant: int) -> None:
    sizing = sizing_of_model(config)
    one_layer = 2 * 8 * 128 * 2
    assert sizing.state_bytes == constant * MAMBA_STATE
    assert sum(layer.count for layer in sizing.layers if layer.kind == "constant_state") == constant
    assert sizing.request_bytes(5000) - constant * MAMBA_STATE == one_layer * (5000 * full + 1024 * windowed)
    assert sizing.request_bytes(500) - constant * MAMBA_STATE == one_layer * 500 * (full + windowed)


GEMMA3_27B = {
    **LLAMA3_8B,
    "num_hidden_layers": 62,
    "head_dim": 128,
    "num_key_value_heads": 16,
    "sliding_window": 1024,
    "layer_types": [*(["sliding_attention"] * 5 + ["full_attention"]) * 10, *["sliding_attention"] * 2],
}


def test_layers_fall_into_groups_of_one_size_as_in_vllm() -> None:
    def groups(config: dict[str, Any]) -> list[tuple[int | None, int, int]]:
        return [(group.window, group.count, group.layers) for group in sizing_of_model(config).block_groups()]

    assert groups(LLAMA3_8B) == [(None, 1, 32)]
    # 10 layers of full attention; 52 with a window, the last group of which is filled up.
    assert groups(GEMMA3_27B) == [(None, 1, 10), (1024, 6, 10)]
    halves = {**WINDOWED, "num_hidden_layers": 5, "layer_types": ["sliding_attention"] * 3 + ["full_attention"] * 2}
    assert groups(halves) == [(None, 1, 2), (1024, 2, 2)]
    nearly = {**WINDOWED, "num_hidden_layers": 9, "layer_types": ["sliding_attention"] * 5 + ["full_attention"] * 4}
    assert groups(nearly) == [(None, 1, 5), (1024, 1, 5)]
    # Layers without a cache take none.
    assert groups({**EIGHT, "full_attention_interval": 4}) == [(None, 1, 2)]


def test_what_fits_is_what_windows_keep() -> None:
    sizing = sizing_of_model(GEMMA3_27B)
    assert sizing.pool_block_bytes(16) == 10 * 16 * 2 * 16 * 128 * 2
    # 131,072 tokens: 8,192 blocks of full attention; of each window group the blocks of the last 1,023 tokens.
    assert requests_that_fit(sizing, 8192 + 6 * 64, length=131072, block_size=16) == 1
    assert requests_that_fit(sizing, 8192 + 6 * 64 - 1, length=131072, block_size=16) == 0
    # Token 131,073 begins a block; the 1,023 tokens before the next one begin with the second of a block: 64 and 1.
    assert requests_that_fit(sizing, 8193 + 6 * 65, length=131073, block_size=16) == 1
    assert requests_that_fit(sizing, 8193 + 6 * 65 - 1, length=131073, block_size=16) == 0
    # 100,000 of them in common: 6,250 blocks of full attention, none of a window.
    assert (
        requests_that_fit(sizing, 6250 + 3 * (1942 + 6 * 64), length=131072, block_size=16, prefix_tokens=100000) == 3
    )
    assert prefixes_that_fit(sizing, 4 * (6250 + 6 * 64) + 9, prefix_tokens=100000, block_size=16) == 4
    # Short requests keep everything in every group.
    assert requests_that_fit(sizing, 7 * 32 * 5, length=512, block_size=16) == 5


def test_kinds_of_different_size_share_blocks_of_both() -> None:
    layers = (attention_layers(2, kv_heads=4, head_dim=8), attention_layers(6, kv_heads=1, head_dim=8, window=33))
    sizing = CacheSizing(layers, 2)
    assert sizing.pool_block_bytes(16) == 2 * 16 * (2 * 64 + 6 * 16)
    # Of 64 tokens 4 blocks of 4,096 bytes and 2 of 3,072; 224 × 16 × 2 = 7,168 bytes a block.
    assert requests_that_fit(sizing, 10, length=64, block_size=16) == 71680 // (4 * 4096 + 2 * 3072)


def test_a_model_without_a_growing_cache_has_no_blocks() -> None:
    sizing = CacheSizing((constant_state_layers(4),), 2)
    for ask in (
        lambda: requests_that_fit(sizing, 10, length=64, block_size=16),
        lambda: prefixes_that_fit(sizing, 10, prefix_tokens=64, block_size=16),
        lambda: sizing.blocks_in(2**30, 16),
    ):
        with pytest.raises(CalculationError, match=r"^model: no layer of this model keeps anything per token$"):
            ask()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers: is missing from the model's configuration"),
        ({"num_key_value_heads": 0}, "num_key_value_heads: is 0 (allowed: an integer of 1 or more)"),
        ({"head_dim": 12.5}, "head_dim: is 12.5 (allowed: an integer of 1 or more)"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers: is 1000000000000 (allowed: 1 to 10000)"),
        ({"num_key_value_heads": 33}, "num_key_value_heads: is 33 (allowed: 1 to num_attention_heads, 32)"),
        ({"hidden_size": 4095}, "head_dim: is missing, and 32 heads do not divide hidden_size 4095"),
        ({"layer_types": 5}, "layer_types: is 5 (allowed: the kind of every layer)"),
        ({"hybrid_override_pattern": "M*"}, "hybrid_override_pattern: names 2 layers (allowed: num_hidden_layers, 32)"),
        ({"block_configs": [{}]}, "block_configs: names 1 layers (allowed: num_hidden_layers, 32)"),
        ({"block_configs": [{}] * 32}, "block_configs[0]: says nothing of its attention"),
        ({"layer_types": ["full_attention"]}, "layer_types: names 1 layers (allowed: num_hidden_layers, 32)"),
        (
            {"torch_dtype": "auto"},
            "torch_dtype: is 'auto' (allowed: float32, float, float16, half, bfloat16, float8_e4m3fn, float8_e5m2, "
            "int8)\n    Give --dtype.",
        ),
    ],
)
def test_configurations_that_make_no_sense(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CalculationError) as caught:
        sizing_of_model({**LLAMA3_8B, **change})
    assert str(caught.value) == message


def test_an_unknown_layer_type_is_named() -> None:
    with pytest.raises(CalculationError, match="has a layer of unknown type 'quantum'"):
        sizing_of_model({**LLAMA3_8B, "num_hidden_layers": 1, "layer_types": ["quantum"]})
