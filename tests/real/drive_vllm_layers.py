"""What vLLM keeps for the layers of a model; needs vLLM's environment, no weights: the model is built without memory.

Reads one configuration a line (JSON) on stdin and answers each with [[kind, window, bytes, layers], …]: ``state`` with
the bytes of one layer's state, ``tokens`` with those of one token in one layer; or with the reason why it cannot.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import vllm.model_executor.models.registry as registry
from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from vllm.config import VllmConfig, get_layers_from_vllm_config, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.v1.kv_cache_interface import MambaSpec


def layers_of(config: dict[str, Any]) -> list[Any]:
    if config["model_type"] not in CONFIG_MAPPING:
        kind = type("UnknownConfig", (PretrainedConfig,), {"model_type": config["model_type"]})
        AutoConfig.register(config["model_type"], kind, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        engine = EngineArgs(
            model=folder,
            tokenizer=folder,
            skip_tokenizer_init=True,
            load_format="dummy",
            block_size=16,
            enable_prefix_caching=True,
            enforce_eager=True,
            dtype=config.get("torch_dtype", "bfloat16"),
        ).create_engine_config()
        found: Counter[tuple[str, Any, Any]] = Counter()
        with set_current_vllm_config(engine), torch.device("meta"):
            torch.set_default_dtype(engine.model_config.dtype)
            initialize_model(engine)
            torch.set_default_dtype(torch.float32)
            for layer in get_layers_from_vllm_config(engine, AttentionLayerBase).values():
                spec = layer.get_kv_cache_spec(engine)
                if spec is None or getattr(layer, "kv_sharing_target_layer_name", None):
                    continue
                if isinstance(spec, MambaSpec):
                    size = sum(
                        math.prod(shape) * dtype.itemsize for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)
                    )
                    found["state", None, size] += 1
                else:
                    window = getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None)
                    found["tokens", window, spec.page_size_bytes / spec.block_size] += 1
    return [[*key, count] for key, count in sorted(found.items(), key=str)]


def main() -> None:
    # With that instruction vLLM's backend for this processor keeps some states in another type than all others do.
    torch.cpu._is_avx512_bf16_supported = lambda: False
    # One process for each model class would take most of the time.
    registry._run_in_subprocess = lambda function: function()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as folder, set_current_vllm_config(VllmConfig()):
        init_distributed_environment(
            1, 0, distributed_init_method=f"file://{folder}/init", local_rank=0, backend="gloo"
        )
        initialize_model_parallel(1, 1)
    for line in sys.stdin:
        try:
            answer: Any = layers_of(json.loads(line))
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
