"""The sizes that ``kv`` reads, judged by transformers' own caches: each model runs on meta tensors, without numbers."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ais_bench_prefix_cache.calculators.model_config import sizing_of_model

TOKENS = 8
PLAIN = """
    apertus arcee biogpt bitnet bloom codegen cohere ctrl diffllama emu3 ernie4_5 exaone4 falcon fuyu gemma glm glm4
    gpt2 gpt_bigcode gpt_neo gpt_neox_japanese gptj granite granitemoe granitemoeshared helium internlm3 llama mistral
    mixtral modernbert-decoder mpt nanochat olmo olmo2 olmoe opt persimmon phi phi3 qwen2 qwen2_moe qwen3 qwen3_moe
    seed_oss smollm3 solar_open stablelm starcoder2 xglm
"""
"""Keys and values of every head, of groups of heads, or of one head for all."""
WINDOWS = "cohere2 gemma2 gemma3_text gpt_oss granitemoe_swa llama4_text mimo_v2_flash olmo3 vaultgemma"
STATES = "falcon_h1 jamba lfm2 minimax nemotron_h qwen3_5_text qwen3_next zamba2"
LATENT = "deepseek_v3 glm4_moe_lite youtu"


TYPES = f"{PLAIN} {WINDOWS} {STATES} {LATENT}".split()


def test_only_a_few_types_are_newer_than_this_release_of_transformers() -> None:
    assert len(set(TYPES) - set(CONFIG_MAPPING)) <= 5


@pytest.mark.parametrize("model_type", [each for each in TYPES if each in CONFIG_MAPPING])
def test_a_token_takes_what_the_models_own_cache_keeps(model_type: str) -> None:
    config = AutoConfig.for_model(model_type)
    sizing = sizing_of_model(config.to_dict(), dtype="bf16")
    with torch.device("meta"), torch.no_grad():
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.bfloat16)
        cache = model(torch.zeros((1, TOKENS), dtype=torch.long), use_cache=True).past_key_values
    kept = [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in cache.layers]
    numbers = sum(math.prod(tensor.shape) for pair in kept for tensor in pair if tensor is not None)
    assert numbers > 0
    assert sizing.bytes_per_token == 2 * numbers / TOKENS
