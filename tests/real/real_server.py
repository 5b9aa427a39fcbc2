"""Starts and stops a real model server on the CPU, whichever it is; and the tiny model of random weights it serves."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

PROJECT = Path(__file__).resolve().parent.parent.parent
SERVED_MODEL = "tiny"


def server_python(name: str, directory: str, variable: str) -> Path:
    """The interpreter of the virtual environment that holds a server (``make test-real-…`` makes it)."""
    named = os.environ.get(variable)
    python = Path(named) if named else PROJECT / directory / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(f"{python}: no real {name} here; run `make test-real`, or set {variable}")
    return python


def make_tiny_model(directory: Path, tokenizer_dir: Path, *, architecture: str = "qwen3") -> Path:
    """A model directory that needs no weights (``--load-format dummy``): a small config beside a real tokenizer."""
    directory.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (tokenizer_dir / name).exists():  # The template may stand in the configuration instead.
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


TOKEN_COUNTERS = (
    "prefix_cache|prompt_tokens|cached_tokens|generation_tokens|prefill_effective|request_success|num_requests_total"
)


def settled(read: Callable[[], str]) -> str:
    """A metric text once its counters stand still: servers count some things after the answer that they belong to."""

    def counters(text: str) -> list[str]:
        # Not all of them: some count the seconds of an idle server.
        return sorted(re.findall(rf"^(?:vllm|sglang):(?:{TOKEN_COUNTERS}).*$", text, re.MULTILINE))

    before, after = "", read()
    while counters(before) != counters(after):
        time.sleep(0.5)
        before, after = after, read()
    return after


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass(frozen=True)
class RealServer:
    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def metrics(self) -> str:
        """Once the counters stand still."""
        return settled(lambda: httpx.get(f"{self.url}/metrics", timeout=30, trust_env=False).text)

    def wait_until_ready(self, timeout: float = 600) -> None:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self._last_lines()}")
            try:
                if httpx.get(f"{self.url}/health", timeout=5, trust_env=False).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.5)
        raise TimeoutError(f"the server was not ready after {timeout:.0f} s:\n{self._last_lines()}")

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
def started(command: Sequence[str], environment: Mapping[str, str], port: int, log: Path) -> Iterator[RealServer]:
    """The server of ``command``, once it is ready; stopped by its own process group."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    path = f"{Path(command[0]).parent}{os.pathsep}{os.environ['PATH']}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={
                **inherited,
                "HF_HUB_OFFLINE": "1",
                "DO_NOT_TRACK": "1",
                "OMP_NUM_THREADS": "1",
                **environment,
                "PATH": path,
            },
            cwd=log.parent,
            start_new_session=True,
        )
    server = RealServer(f"http://127.0.0.1:{port}", process, log)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()
