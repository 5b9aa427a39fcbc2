"""Starts and stops a real vLLM on the CPU with a tiny Qwen3 of random weights.

Everything that this project measures is real there: prefix cache, metrics with engine labels, reset, tokenization, rank
routing. See docs/real-vllm.md.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.real.real_server import PROJECT, SERVED_MODEL, RealServer, free_port, make_tiny_model, server_python, started

PYTHON_VARIABLE = "AISBENCH_PREFIX_CACHE_VLLM_PYTHON"
CHAT_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


def vllm_python() -> Path:
    return server_python("vLLM", ".venv-vllm", PYTHON_VARIABLE)


def drive(script: str, cases: Iterable[Any], *arguments: str | Path) -> list[Any]:
    """What the module ``tests.real.<script>``, run in vLLM's environment, answers to each case (JSON values)."""
    lines = [json.dumps(case) + "\n" for case in cases]
    driven = subprocess.run(
        [vllm_python(), "-m", f"tests.real.{script}", *arguments],
        cwd=PROJECT,
        input="".join(lines),
        capture_output=True,
        text=True,
        env={
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/"),
            "HF_HUB_OFFLINE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
        },
    )
    assert driven.returncode == 0, driven.stderr[-2000:]
    answers = [json.loads(line) for line in driven.stdout.splitlines()]
    assert len(answers) == len(lines)
    return answers


def make_tiny_idefics3(directory: Path, tokenizer_dir: Path) -> Path:
    """An Idefics3 that sees every image as 56x56 pixels, 4 tokens and 3 around them, beside a real tokenizer.

    Its image processor has a variant that needs only Pillow; those of most other models need torchvision, which the
    package index has only for CUDA: beside a CPU build of torch it cannot be imported.
    """
    make_tiny_model(directory, tokenizer_dir)
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    free_id = 1 + max([*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"])])
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    contents = ("<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>")
    tokenizer["added_tokens"] += [
        {"id": free_id + number, "content": content, "special": True, **flags}
        for number, content in enumerate(contents)
    ]
    path.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    settings_path = directory / "tokenizer_config.json"
    settings = json.loads(settings_path.read_text(encoding="utf-8"))
    settings["chat_template"] = CHAT_TEMPLATE
    settings_path.write_text(json.dumps(settings, ensure_ascii=False), encoding="utf-8")

    text = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    text |= {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": -(-(free_id + len(contents)) // 64) * 64,
    }
    vision = {
        "model_type": "idefics3_vision",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 56,
        "patch_size": 14,
    }
    config = {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "model_type": "idefics3",
        "image_token_id": free_id,
        "pad_token_id": 0,
        "scale_factor": 2,
        "tie_word_embeddings": True,
        "text_config": text,
        "vision_config": vision,
        "torch_dtype": "bfloat16",
    }
    processor = {"processor_class": "Idefics3Processor", "image_seq_len": 4}
    pixels = {
        "image_processor_type": "Idefics3ImageProcessor",
        "size": {"longest_edge": 56},
        "max_image_size": {"longest_edge": 56},
        "do_image_splitting": False,
        "processor_class": "Idefics3Processor",
    }
    files = {"config.json": config, "processor_config.json": processor, "preprocessor_config.json": pixels}
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
    return directory


@contextmanager
def real_vllm(
    model: Path,
    log: Path,
    *,
    block_size: int = 32,
    engines: int = 1,
    options: Sequence[str] = (),
    developer_mode: bool = True,
    tells_cached_tokens: bool = True,
) -> Iterator[RealServer]:
    """A ready server on a free loopback port; stopped by its own process group.

    Without ``developer_mode`` it offers no reset, without ``tells_cached_tokens`` responses hold no ``cached_tokens``.
    """
    port = free_port()
    command = [
        *(str(vllm_python()), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model), "--served-model-name", SERVED_MODEL, "--load-format", "dummy", "--enforce-eager"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--block-size", str(block_size), "--max-model-len", "8192", "--data-parallel-size", str(engines)),
        *(["--enable-prompt-tokens-details"] if tells_cached_tokens else []),
        *options,
    ]
    environment = {
        "VLLM_SERVER_DEV_MODE": "1" if developer_mode else "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    with started(command, environment, port, log) as server:
        yield server
