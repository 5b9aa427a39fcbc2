"""A small OpenAI-compatible server for runs of the real AISBench: it notes every request and misbehaves on demand."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ABSENT = object()


@dataclass
class Answer:
    """How one request is answered. Delays are seconds."""

    status: int = 200
    error_body: str = '{"error": {"message": "refused for the test"}}'
    first_token_after: float = 0.0
    token_every: float = 0.0
    tokens: int | None = None
    error_chunk_after: int | None = None
    cut_after: int | None = None
    end_without_done_after: int | None = None
    events_twice: bool = False
    endless: bool = False
    location: str | None = None
    never: bool = False
    prompt_tokens_details: Any = ABSENT


@dataclass
class SeenRequest:
    """A request as it arrived; times are ``time.perf_counter()``, None for what did not happen."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    arrived: float
    first_token: float | None = None
    finished: float | None = None

    @property
    def prompt(self) -> str:
        return str(self.body["prompt"])


@dataclass
class FakeServer:
    """Answers ``/v1/completions``; ``behave`` decides how, request by request."""

    behave: Callable[[SeenRequest], Answer] = lambda _: Answer()
    seen: list[SeenRequest] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/completions"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer_one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        line = await reader.readline()
        if not line:
            return False
        path = line.split()[1].decode()
        headers: dict[str, str] = {}
        while (header := await reader.readline()) not in (b"\r\n", b""):
            name, _, value = header.decode().partition(":")
            headers[name.strip().lower()] = value.strip()
        body = json.loads(await reader.readexactly(int(headers.get("content-length", "0"))) or b"{}")
        request = SeenRequest(path, headers, body, time.perf_counter())
        self.seen.append(request)
        answer = self.behave(request)
        if answer.never:
            await asyncio.sleep(3600)
        if answer.location is not None:
            writer.write(f"HTTP/1.1 307 Temporary\r\nLocation: {answer.location}\r\nContent-Length: 0\r\n\r\n".encode())
        elif answer.status != 200:
            _write(writer, answer.status, "application/json", answer.error_body.encode())
        elif body.get("stream"):
            return await self._stream(request, answer, writer)
        else:
            tokens = _token_count(request, answer)
            await asyncio.sleep(answer.first_token_after + tokens * answer.token_every)
            document = {"choices": [{"text": " x" * tokens}], "usage": _usage(request, answer, tokens)}
            request.finished = time.perf_counter()
            _write(writer, 200, "application/json", json.dumps(document).encode())
        await writer.drain()
        return True

    async def _stream(self, request: SeenRequest, answer: Answer, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(answer.first_token_after)
        tokens = _token_count(request, answer)
        for number in range(tokens):
            if number == answer.cut_after:
                writer.transport.abort()
                return False
            if number == answer.end_without_done_after:
                writer.write(b"0\r\n\r\n")
                await writer.drain()
                return True
            if number == answer.error_chunk_after:
                _chunk(writer, json.dumps({"error": {"message": "the engine died"}}))
                _chunk(writer, "[DONE]")
                writer.write(b"0\r\n\r\n")
                await writer.drain()
                return True
            if number == 0:
                request.first_token = time.perf_counter()
            elif answer.token_every:
                await asyncio.sleep(answer.token_every)
            for _ in range(1 + answer.events_twice):
                _chunk(writer, json.dumps({"choices": [{"text": " x", "index": 0}]}))
            await writer.drain()
        while answer.endless:
            comment = b": still here\n\n" * 1000
            writer.write(f"{len(comment):x}\r\n".encode() + comment + b"\r\n")
            await writer.drain()
        _chunk(writer, json.dumps({"choices": [], "usage": _usage(request, answer, tokens)}))
        _chunk(writer, "[DONE]")
        request.finished = time.perf_counter()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


def _token_count(request: SeenRequest, answer: Answer) -> int:
    return int(request.body["max_tokens"]) if answer.tokens is None else answer.tokens


def _usage(request: SeenRequest, answer: Answer, tokens: int) -> dict[str, Any]:
    usage: dict[str, Any] = {"prompt_tokens": len(request.prompt.split()), "completion_tokens": tokens}
    if answer.prompt_tokens_details is not ABSENT:
        usage["prompt_tokens_details"] = answer.prompt_tokens_details
    return usage


def _write(writer: asyncio.StreamWriter, status: int, content_type: str, body: bytes) -> None:
    reason = {200: "OK", 400: "Bad Request", 500: "Internal Server Error"}[status]
    writer.write(
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


def _chunk(writer: asyncio.StreamWriter, data: str) -> None:
    event = f"data: {data}\n\n".encode()
    writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")


@pytest.fixture
def fake_server() -> Iterator[FakeServer]:
    server = FakeServer()
    loop = asyncio.new_event_loop()
    listener = loop.run_until_complete(asyncio.start_server(server.serve, "127.0.0.1", 0, limit=2**24))
    server.port = listener.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield server
    loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout=5)
    listener.close()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


@pytest.fixture
def make_answer() -> type[Answer]:
    return Answer


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where AISBench gets its working directory, so that its files and processes can be told by it."""
    directory = Path(tempfile.mkdtemp(prefix="scratch-", dir="/tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    yield directory
    shutil.rmtree(directory)


@dataclass
class PreparedRun:
    """A data set of hand-written rows with just enough of a manifest for a run."""

    directory: Any
    run_id: str = "hand-made_20260101_000000"

    @property
    def manifest(self) -> Any:
        return self.directory / "result" / f"{self.run_id}.manifest.json"

    @property
    def full(self) -> Any:
        return self.directory / "result" / f"{self.run_id}.full.jsonl"


@pytest.fixture
def prepare_rows(tmp_path: Any, deepseek_tokenizer_dir: Any) -> Callable[..., Any]:
    """``prepare_rows(rows, url, **aisbench.model)`` writes the files and returns the job to run them."""
    from ais_bench_prefix_cache.aisbench.config_rendering import TEMPLATES
    from ais_bench_prefix_cache.aisbench.job import AISBenchJob
    from ais_bench_prefix_cache.aisbench.request_index import RequestIndex

    def prepare(
        rows: list[dict[str, Any]], url: str | list[str], *, directory: Any = None, **changes: Any
    ) -> AISBenchJob:
        run = PreparedRun(directory or tmp_path / "data set")
        run.full.parent.mkdir(parents=True)
        with run.full.open("w", encoding="utf-8") as lines:
            for index, row in enumerate(rows):
                full = {
                    "request_id": f"request-{index:08d}",
                    "sequence_index": index,
                    "group_id": "group-0",
                    "dp_rank": None,
                    "max_tokens": 2,
                    "answer": "none",
                    **row,
                }
                lines.write(json.dumps(full, ensure_ascii=False) + "\n")
        model = {
            "abbr": None,
            "attr": "service",
            "stream": True,
            "max_out_len": 1,
            "retry": 2,
            "batch_size": 1,
            "generation_kwargs": {"temperature": 0, "ignore_eos": True},
        }
        model.update({name: changes.pop(name) for name in list(changes) if name in model})
        manifest: dict[str, Any] = {
            "run_id": run.run_id,
            "effective_config": {
                "tokenizer": {"path": str(deepseek_tokenizer_dir), "revision": None, "trust_remote_code": False},
                "service": {"inference_url": url, "model": "tiny", "dp_size": 1},
                "aisbench": {
                    "dataset": {
                        "abbr": None,
                        "input_columns": ["question", "max_out_len"],
                        "output_column": "answer",
                        "prompt_template": "{question}",
                        "pred_role": "BOT",
                    },
                    "model": model,
                },
            },
        }
        run.manifest.write_text(json.dumps(manifest), encoding="utf-8")
        return AISBenchJob(
            scenario_path=run.directory / "scenario.json",
            manifest_path=run.manifest,
            rows_path=run.full,
            index=RequestIndex.of_file(run.full, "max_tokens"),
            template_path=changes.pop("template_path", TEMPLATES / "prefix_cache_perf.py"),
            work_dir=tmp_path / "aisbench results",
            config=manifest["effective_config"],
            log_path=tmp_path / "aisbench.log",
            **changes,
        )

    return prepare
