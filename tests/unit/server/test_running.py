"""Starting the embedded server: where it listens, and that its answers leave at once."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from ais_bench_prefix_cache.server.configuration import ServerConfiguration, ServerError
from ais_bench_prefix_cache.server.running import running_server
from ais_bench_prefix_cache.server.tokenization import ServerTokenizer


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


def test_a_package_that_is_missing_is_named(qwen3_tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    server = running_server(ServerConfiguration(tokenizer=qwen3_tokenizer_dir))
    with pytest.raises(ServerError, match="needs a package that is not installed: uvicorn") as caught, server:
        pass
    assert caught.value.problems[0].code == "SERVER_EXTRA_MISSING"


class NeverStarted:
    """A server that says nowhere that it listens."""

    should_exit = False

    async def serve(self, sockets: list[socket.socket]) -> None:
        while not self.should_exit:
            await asyncio.sleep(0.01)


def test_a_server_that_does_not_start_is_given_up(qwen3_tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ais_bench_prefix_cache.server.running.STARTUP_SECONDS", 0.05)
    monkeypatch.setattr("ais_bench_prefix_cache.server.running._server", lambda *_: NeverStarted())
    server = running_server(ServerConfiguration(tokenizer=qwen3_tokenizer_dir))
    with pytest.raises(ServerError, match=r"did not start within 0.05 s") as caught, server:
        pass
    assert caught.value.problems[0].code == "SERVER_NOT_STARTED"


def test_a_vocabulary_without_words_cannot_answer(tokenizer_dir: Callable[[str], Path]) -> None:
    with pytest.raises(ServerError, match="its vocabulary holds no plain word to answer") as caught:
        ServerTokenizer(tokenizer_dir("bytes only"))
    assert caught.value.problems[0].code == "TOKENIZER_WITHOUT_WORDS"
