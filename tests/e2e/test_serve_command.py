"""``serve`` as a process: what it prints, how it ends, and what it says when it cannot start."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ais_bench_prefix_cache", "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )


@pytest.mark.parametrize(
    ("sign", "exit_code", "last_words"),
    [(signal.SIGTERM, 143, "terminated\n"), (signal.SIGINT, 130, "interrupted\n")],
)
def test_it_announces_itself_and_ends_when_told(
    deepseek_tokenizer_dir: Path, sign: signal.Signals, exit_code: int, last_words: str
) -> None:
    process = start("--tokenizer", str(deepseek_tokenizer_dir), "--api-key-env", "SERVE_KEY", SERVE_KEY="s3cret")
    try:
        assert process.stdout is not None
        announced = json.loads(process.stdout.readline())
        assert announced["pid"] == process.pid
        url = announced["url"]
        assert httpx.get(f"{url}/v1/models", trust_env=False).status_code == 401
        headers = {"Authorization": "Bearer s3cret"}
        body = {"prompt": [1, 2, 3], "max_tokens": 30000, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, headers=headers, trust_env=False) as stream:
            lines = stream.iter_lines()
            next(lines)
            # Even an answer under way does not hold it up.
            process.send_signal(sign)
            stdout, stderr = process.communicate(timeout=15)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, stdout, stderr) == (exit_code, "", last_words)


def test_it_says_why_it_cannot_start(deepseek_tokenizer_dir: Path, tmp_path: Path) -> None:
    missing = start("--tokenizer", str(tmp_path / "none"))
    stdout, stderr = missing.communicate(timeout=60)
    assert (missing.returncode, stdout, stderr) == (
        2,
        "",
        f"error [TOKENIZER_NOT_FOUND] {tmp_path / 'none'}: is not a directory with tokenizer files\n",
    )
    no_key = start("--tokenizer", str(deepseek_tokenizer_dir), "--api-key-env", "NO_SUCH_VARIABLE")
    stdout, stderr = no_key.communicate(timeout=60)
    assert (no_key.returncode, stdout, stderr) == (
        2,
        "",
        "error [API_KEY_NOT_SET] --api-key-env: the environment variable NO_SUCH_VARIABLE is not set\n",
    )


def test_a_taken_port_is_named(deepseek_tokenizer_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = start("--tokenizer", str(deepseek_tokenizer_dir), "--port", str(port))
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (2, "")
    assert stderr.startswith(f"error [ADDRESS_NOT_AVAILABLE] 127.0.0.1:{port}: cannot listen there: ")
    assert stderr.endswith("    Port 0 takes a free one.\n")
