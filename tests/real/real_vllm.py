"""Starts and stops a real vLLM on the CPU with a tiny Qwen3 of random weights.

Everything that this project measures is real there: prefix cache, metrics with engine labels, reset, tokenization, rank
routing. See docs/real-vllm.md.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

PROJECT = Path(__file__).resolve().parent.parent.parent
PYTHON_VARIABLE = "AISBENCH_PREFIX_CACHE_VLLM_PYTHON"
SERVED_MODEL = "tiny"
CHAT_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


def vllm_python() -> Path:
    """The interpreter of the virtual environment that holds vLLM (``make test-real`` makes it)."""
    named = os.environ.get(PYTHON_VARIABLE)
    python = Path(named) if named else PROJECT / ".venv-vllm" / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(f"{python}: no real vLLM here; run `make test-real`, or set {PYTHON_VARIABLE}")
    return python


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


def make_tiny_model(directory: Path, tokenizer_dir: Path, *, architecture: str = "qwen3") -> Path:
    """A model directory that needs no weights (``--load-format dummy``): a small config beside a real tokenizer."""
    directory.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer_dir / name, directory / name)
    tokenizer = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    ids = [*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer.get("added_tokens", []))]
    vocabulary = -(-(max(ids) + 1) // 64) * 64
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "vocab_size": vocabulary,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    if architecture == "gemma3":
        config |= {
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "sliding_window": 64,
            "layer_types": ["sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 32,
            "hidden_activation": "gelu_pytorch_tanh",
        }
    (directory / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    return directory


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


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass(frozen=True)
class RealVLLM:
    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def metrics(self) -> str:
        return httpx.get(f"{self.url}/metrics", timeout=30, trust_env=False).text

    def wait_until_ready(self, timeout: float = 300) -> None:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"vLLM ended with {self.process.returncode}:\n{self._last_lines()}")
            try:
                if httpx.get(f"{self.url}/health", timeout=5, trust_env=False).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.5)
        raise TimeoutError(f"vLLM was not ready after {timeout:.0f} s:\n{self._last_lines()}")

    def stop(self) -> None:
        for sign, patience in ((signal.SIGTERM, 15), (signal.SIGKILL, 10)):
            try:
                os.killpg(self.process.pid, sign)
            except ProcessLookupError:
                break
            deadline = time.monotonic() + patience
            while time.monotonic() < deadline:
                self.process.poll()
                try:
                    os.killpg(self.process.pid, 0)
                except ProcessLookupError:
                    return
                time.sleep(0.1)

    def _last_lines(self) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-40:])


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
) -> Iterator[RealVLLM]:
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
    environment = os.environ | {
        "VLLM_SERVER_DEV_MODE": "1" if developer_mode else "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{vllm_python().parent}{os.pathsep}{os.environ['PATH']}",
    }
    environment.pop("PYTHONPATH", None)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=log.parent,
            start_new_session=True,
        )
    server = RealVLLM(f"http://127.0.0.1:{port}", process, log)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()
