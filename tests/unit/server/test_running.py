"""Starting the embedded server: where it listens, and that its answers leave at once."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest

from ais_bench_prefix_cache.server.configuration import ServerConfiguration, ServerError
from ais_bench_prefix_cache.server.running import running_server


def test_an_answer_does_not_wait_for_a_delayed_acknowledgement(qwen3_tokenizer_dir: Path) -> None:
    configuration = ServerConfiguration(
        tokenizer=qwen3_tokenizer_dir, prefill_tokens_per_second=None, decode_tokens_per_second=None
    )
    body = {"prompt": [1, 2, 3], "max_tokens": 2, "stream": True}
    with running_server(configuration) as url, httpx.Client(base_url=url, trust_env=False) as client:
        times = [client.post("/v1/completions", json=body).elapsed.total_seconds() for _ in range(20)]
    # Linux acknowledges after 40 ms; an answer whose parts wait for that can never be faster.
    assert min(times) < 0.035


def test_an_address_that_is_taken_is_named(qwen3_tokenizer_dir: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        configuration = ServerConfiguration(tokenizer=qwen3_tokenizer_dir)
        wording = f"127.0.0.1:{port}: cannot listen there"
        with pytest.raises(ServerError, match=wording), running_server(configuration, port=port):
            pass
