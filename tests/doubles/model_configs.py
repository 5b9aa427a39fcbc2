"""Public model configurations (the facts that decide a cache's size), and what each layer keeps, told by others.

``tests/data/model_configs.jsonl`` holds the configurations; ``tests/data/vllm_layers.jsonl`` what vLLM 0.32 answered
(``tests/real/test_sizing_of_models_against_vllm.py`` asks it again). What that vLLM does not build is written out here:
the kind, its window, bytes of one layer for a token (of a state: for a request), and how many layers.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.calculators.sizing import CacheSizing

DATA = Path(__file__).parents[1] / "data"

Kept = dict[tuple[str, Any, float], int]
"""``tokens`` or ``state``, window, bytes -> layers."""


def configurations() -> dict[str, dict[str, Any]]:
    lines = (DATA / "model_configs.jsonl").read_text(encoding="utf-8").splitlines()
    return {row["name"]: row["config"] for row in map(json.loads, lines)}


def multiplied_by_hand() -> dict[str, tuple[dict[str, Any], int]]:
    """Further configurations, each with the numbers that it keeps for a token.

    The file has their factors: layers, 2, heads and head size, or a latent's layers and size.
    """
    lines = (DATA / "model_configs_by_hand.jsonl").read_text(encoding="utf-8").splitlines()
    return {row["name"]: (row["config"], math.prod(row["numbers"])) for row in map(json.loads, lines)}


def told_by_vllm() -> dict[str, Kept]:
    lines = (DATA / "vllm_layers.jsonl").read_text(encoding="utf-8").splitlines()
    return {row["name"]: kept(row["layers"]) for row in map(json.loads, lines)}


def kept(layers: list[list[Any]]) -> Kept:
    return {(kind, window, size): count for kind, window, size, count in layers}


def kept_by(sizing: CacheSizing) -> Kept:
    """What our reading says, in the same form."""
    found: Counter[tuple[str, Any, float]] = Counter()
    for layer in sizing.layers:
        if layer.kind == "constant_state":
            found["state", None, layer.state_bytes] += layer.count
        else:
            found["tokens", layer.window, layer.token_bytes(sizing.dtype_bytes)] += layer.count
    return dict(found)


def _full(key_heads: int, head_dim: int, layers: int, window: int | None = None, width: int = 2) -> Kept:
    return {("tokens", window, 2 * key_heads * head_dim * width): layers}


BY_HAND: dict[str, Kept] = {
    "BLOOM-7B1": _full(32, 128, 30),
    "MPT-7B": _full(32, 128, 32),
    "Baichuan2-7B": _full(32, 128, 32),
    "Qwen-7B (1)": _full(32, 128, 32),
    "Qwen2.5-VL-7B": _full(4, 128, 28),
    "Apertus-8B": _full(8, 128, 32),
    "Falcon-40B, its first file": _full(8, 64, 60),
    "OpenELM-270M": {**_full(3, 64, 5), **_full(4, 64, 7), **_full(5, 64, 4)},
    "DeciLM-7B": {**_full(4, 128, 16), **_full(2, 128, 9), **_full(1, 128, 7)},
    # The last 15 of 35 layers read what layer 19 and 20 keep; every fifth layer has no window.
    "Gemma-3n-E4B": {**_full(2, 256, 4), **_full(2, 256, 16, 512)},
    "Step-3.5-Flash": {**_full(8, 128, 12), **_full(8, 128, 33, 512)},
    "GPT-Neo-1.3B": {**_full(16, 128, 12, width=4), **_full(16, 128, 12, 256, width=4)},
    # Sparse attention: beside the latent each layer keeps an 8-bit key of 128 numbers and its 32-bit scale.
    "DeepSeek-V3.2": {("tokens", None, (512 + 64) * 2): 61, ("tokens", None, 128 + 4): 61},
    "GLM-5": {("tokens", None, (512 + 64) * 2): 78, ("tokens", None, 128 + 4): 78},
    # Two layers share one cache.
    "Hunyuan-Large": _full(8, 128, 32),
    # Gated DeltaNet: three inputs of the convolution over 2 x 16 x 128 + 48 x 128 channels, and 48 matrices in 32 bits.
    "Qwen3.5 (text)": {**_full(4, 256, 16), ("state", None, 3 * (4096 + 6144) * 2 + 48 * 128 * 128 * 4): 48},
    # Lightning attention: a matrix of 128 x 128 for each head.
    "Ring-mini-linear-2.0": {**_full(4, 128, 4), ("state", None, 16 * 128 * 128 * 2): 16},
    "Ring-2.5 hybrid": {("tokens", None, (512 + 64) * 2): 10, ("state", None, 64 * 128 * 128 * 2): 70},
    "MiniMax-Text-01": {**_full(8, 128, 10), ("state", None, 64 * 128 * 128 * 2): 70},
    # Kimi delta attention: three inputs of three convolutions, and a matrix of 128 x 128 in 32 bits for each head. vLLM
    # knows both; where it runs latent attention on a CPU, it has no prefix cache for the states beside it.
    "Kimi-Linear-48B-A3B": {
        ("tokens", None, (512 + 64) * 2): 7,
        ("state", None, 3 * 3 * 32 * 128 * 2 + 32 * 128 * 128 * 4): 20,
    },
    "Ling 3 hybrid": {
        ("tokens", None, (512 + 64) * 2): 6,
        ("state", None, 3 * 3 * 16 * 128 * 2 + 16 * 128 * 128 * 4): 18,
    },
    # Mamba 2: three inputs over 8192 + 2 x 128 channels, and 128 matrices of 64 x 128.
    "Bamba-9B": {**_full(8, 128, 3), ("state", None, (3 * (8192 + 256) + 128 * 64 * 128) * 2): 29},
    # RG-LRU: three inputs in 16 bits and one number in 32 bits for each of 2560 channels.
    "RecurrentGemma-2B": {**_full(1, 256, 8, 2048), ("state", None, 2560 * (3 * 2 + 4)): 18},
    "OLMo-Hybrid-7B": {
        **_full(30, 128, 8),
        ("state", None, (3 * (2 * 30 * 96 + 30 * 192) + 30 * 192 * 96) * 2): 24,
    },
    "Llama-3.3-Nemotron-Super-49B (first layers)": _full(8, 128, 5),
}
