"""The HTTP side: routes, answers and streams around the engines."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import sys
import traceback
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from time import time
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ais_bench_prefix_cache import __version__
from ais_bench_prefix_cache.foundation.names import RANK_HEADER
from ais_bench_prefix_cache.server.bodies import BodyReader, BodyWorkers
from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.engine import Engine, EngineBalancer
from ais_bench_prefix_cache.server.formats import (
    AnswerFormat,
    SglangChat,
    SglangCompletion,
    Usage,
    VllmChat,
    VllmCompletion,
)
from ais_bench_prefix_cache.server.generation import GeneratedToken, Generation
from ais_bench_prefix_cache.server.images import ImageCache, remembering_reader
from ais_bench_prefix_cache.server.protocol import (
    ApiContext,
    ApiError,
    GenerationCall,
    parse_body,
    parse_boolean_query,
    parse_chat,
    parse_completion,
    parse_detokenize,
    parse_rank,
    parse_sglang_rank,
    parse_tokenize,
)
from ais_bench_prefix_cache.server.sglang_metrics import SglangMetrics
from ais_bench_prefix_cache.server.tokenization import ServerTokenizer
from ais_bench_prefix_cache.server.vllm_metrics import CONTENT_TYPE, VllmMetrics

IMITATED_VLLM_VERSION = "0.32.0"
IMITATED_SGLANG_VERSION = "0.5.23"

FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the "
    "operation will not be performed.)\n"
)
MAX_UNFINISHED = 65_536
"""Answers that may run or wait at once."""
MAX_HELD_TOKENS = 20_000_000
"""Prompt tokens of all of them."""

Parsed = TypeVar("Parsed")
FaultHook = Callable[[Request], Awaitable[Response | None]]
"""Called before each generation request; waits to delay it, returns a response to answer in its place."""


def create_application(
    configuration: ServerConfiguration,
    tokenizer: ServerTokenizer,
    *,
    api_key: str | None = None,
    fault_hook: FaultHook | None = None,
) -> Starlette:
    """The ASGI application of one server, its engines and its counters."""
    service = _Service(configuration, tokenizer, fault_hook)
    routes = [
        Route("/health", service.health, methods=["GET"]),
        Route("/metrics", service.metrics_text, methods=["GET"]),
        Route("/v1/models", service.models, methods=["GET"]),
        Route("/v1/completions", service.completions, methods=["POST"]),
        Route("/v1/chat/completions", service.chat_completions, methods=["POST"]),
        Route("/tokenize", service.tokenize, methods=["POST"]),
        Route("/detokenize", service.detokenize, methods=["POST"]),
    ]
    if configuration.engine == "sglang":
        routes.append(Route("/health_generate", service.health, methods=["GET"]))
        routes += [Route(path, service.model_info, methods=["GET"]) for path in ("/model_info", "/get_model_info")]
        routes += [Route(path, service.server_info, methods=["GET"]) for path in ("/server_info", "/get_server_info")]
        if configuration.reset_mode != "missing":
            routes.append(Route("/flush_cache", service.flush_cache, methods=["GET", "POST"]))
    else:
        routes.append(Route("/version", service.version, methods=["GET"]))
        if configuration.reset_mode != "missing":
            routes.append(Route("/reset_prefix_cache", service.reset_prefix_cache, methods=["POST"]))
    return Starlette(
        routes=routes,
        lifespan=service.lifespan,
        middleware=[Middleware(_BearerAuthentication, api_key=api_key)] if api_key else [],
        exception_handlers={
            ApiError: service.api_error,
            ClientDisconnect: lambda _request, _error: Response(status_code=499),
            Exception: _internal_error,
            404: lambda _request, _error: JSONResponse({"detail": "Not Found"}, 404),
            405: lambda _request, error: JSONResponse({"detail": "Method Not Allowed"}, 405, headers=error.headers),
        },
    )


class _BearerAuthentication:
    """401 for ``/v1`` without the key; everything else is open, as on vLLM."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._digest = hashlib.sha256(f"bearer {api_key}".encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1") and scope["method"] != "OPTIONS":
            scheme, _, key = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
            digest = hashlib.sha256(scheme.lower() + b" " + key).digest()
            if not secrets.compare_digest(digest, self._digest):
                await JSONResponse({"error": "Unauthorized"}, 401)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _internal_error(_request: Request, error: Exception) -> Response:
    """A fault of ours: seen on stderr, and answered as vLLM answers its own."""
    traceback.print_exception(error, file=sys.stderr)
    body = ApiError(500, f"{type(error).__name__}: {error}", kind="InternalServerError").body()
    return JSONResponse(body, 500)


@dataclass
class _Choice:
    """What has been generated for one choice of an answer."""

    prompt_tokens: int
    token_ids: list[int] = field(default_factory=list)
    hit_tokens: int = 0


@dataclass
class _Answer:
    """A call under way: its requests in the engines and what they have produced."""

    call: GenerationCall
    generations: list[tuple[Engine, Generation]]
    choices: list[_Choice]
    output: asyncio.Queue[GeneratedToken]
    created: int
    hit_tokens_of_first_token: int | None = None

    def returned_ids(self, choice: int, token_ids: Sequence[int], *, first: bool = True) -> dict[str, list[int]]:
        """What a choice tells of ids, where the request asks for them; of the prompt only the ``first`` time."""
        if not self.call.return_token_ids:
            return {}
        prompt = {"prompt_token_ids": list(self.call.prompts[choice // self.call.n])} if first else {}
        return {**prompt, "token_ids": list(token_ids)}

    async def tokens(self) -> AsyncIterator[GeneratedToken]:
        """The tokens of all choices as they come; when the reader stops early, the rest is aborted."""
        unfinished = len(self.choices)
        try:
            while unfinished:
                token = await self.output.get()
                choice = self.choices[token.choice]
                choice.token_ids.append(token.token_id)
                choice.hit_tokens = token.hit_tokens
                if self.hit_tokens_of_first_token is None:
                    self.hit_tokens_of_first_token = token.hit_tokens
                unfinished -= token.finished
                yield token
        finally:
            for engine, generation in self.generations:
                engine.abort(generation)


class _Service:
    """The endpoints of one server."""

    def __init__(
        self, configuration: ServerConfiguration, tokenizer: ServerTokenizer, fault_hook: FaultHook | None
    ) -> None:
        self._configuration = configuration
        self._tokenizer = tokenizer
        self._fault_hook = fault_hook
        self._sglang = configuration.engine == "sglang"
        self._metrics = SglangMetrics(configuration) if self._sglang else VllmMetrics(configuration)
        self._engines = [
            Engine(configuration, tokenizer, self._metrics.engines[rank] if self._metrics.engines else None)
            for rank in range(configuration.data_parallel_size)
        ]
        self._balancer = EngineBalancer(self._engines)
        self._bodies = BodyReader(configuration.max_body_bytes)
        self._workers = BodyWorkers()
        self._context = ApiContext(
            configuration.engine,
            configuration.model,
            configuration.max_model_len,
            tokenizer,
            remembering_reader(configuration.max_model_len),
        )
        self._image_cache = ImageCache()
        self._num_calls = 0
        self._started = int(time())

    @asynccontextmanager
    async def lifespan(self, _application: Starlette) -> AsyncIterator[None]:
        loops = [asyncio.create_task(engine.run()) for engine in self._engines]
        for loop in loops:
            loop.add_done_callback(_report_dead_engine)
        try:
            yield
        finally:
            for loop in loops:
                loop.cancel()
            self._workers.stop()

    async def health(self, _request: Request) -> Response:
        return Response()

    async def version(self, _request: Request) -> Response:
        return JSONResponse({"version": IMITATED_VLLM_VERSION, "embedded_server": __version__})

    async def metrics_text(self, _request: Request) -> Response:
        for engine in self._engines:
            engine.refresh_gauges()
        return Response(self._metrics.exposition(), media_type=CONTENT_TYPE)

    async def model_info(self, _request: Request) -> Response:
        return JSONResponse(
            {
                "model_path": self._configuration.model,
                "served_model_name": self._configuration.model,
                "tokenizer_path": str(self._configuration.tokenizer),
                "is_generation": True,
                "weight_version": "default",
                "has_image_understanding": True,
                "has_audio_understanding": False,
            }
        )

    async def server_info(self, _request: Request) -> Response:
        configuration = self._configuration
        return JSONResponse(
            {
                "model_path": configuration.model,
                "served_model_name": configuration.model,
                "tokenizer_path": str(configuration.tokenizer),
                "context_length": configuration.max_model_len,
                "page_size": configuration.block_size,
                "max_total_num_tokens": configuration.num_blocks * configuration.block_size,
                "chunked_prefill_size": configuration.max_num_batched_tokens,
                "max_running_requests": configuration.max_num_seqs,
                "disable_radix_cache": not configuration.enable_prefix_caching,
                "dp_size": configuration.data_parallel_size,
                "tp_size": 1,
                "version": IMITATED_SGLANG_VERSION,
                "embedded_server": __version__,
                "internal_states": [{} for _ in self._engines],
            }
        )

    async def models(self, _request: Request) -> Response:
        model = {
            "id": self._configuration.model,
            "object": "model",
            "created": self._started,
            "owned_by": "sglang" if self._sglang else "ais-bench-prefix-cache",
            "root": self._configuration.model,
            "parent": None,
            "max_model_len": self._configuration.max_model_len,
        }
        if not self._sglang:
            model["permission"] = []
        return JSONResponse({"object": "list", "data": [model]})

    async def tokenize(self, request: Request) -> Response:
        def parse(body: dict[str, Any]) -> tuple[list[int], list[str] | None]:
            token_ids = parse_tokenize(body, self._context)
            strings = self._tokenizer.token_strings(token_ids) if body.get("return_token_strs") is True else None
            return token_ids, strings

        token_ids, strings = await self._parsed(request, parse)
        answer = {"tokens": token_ids, "count": len(token_ids), "max_model_len": self._configuration.max_model_len}
        return JSONResponse(answer if self._sglang else {**answer, "token_strs": strings})

    async def detokenize(self, request: Request) -> Response:
        def parse(body: dict[str, Any]) -> str:
            return self._tokenizer.decode(parse_detokenize(body, self._context))

        return JSONResponse({"text" if self._sglang else "prompt": await self._parsed(request, parse)})

    async def reset_prefix_cache(self, request: Request) -> Response:
        preempt = parse_boolean_query(request.query_params.get("reset_running_requests"), "reset_running_requests")
        if self._configuration.reset_mode != "ok":
            return JSONResponse({"success": self._configuration.reset_mode == "noop"})
        # Every engine is asked, whatever the others say: idle ones are reset although a busy one refuses.
        answers = [engine.reset(preempt_running=preempt) for engine in self._engines]
        return JSONResponse({"success": all(answers)})

    async def flush_cache(self, _request: Request) -> Response:
        mode = self._configuration.reset_mode
        answers = [engine.reset() for engine in self._engines] if mode == "ok" else [mode == "noop"]
        done = all(answers)
        return PlainTextResponse(FLUSHED if done else "Flush cache failed.\n", 200 if done else 400)

    async def completions(self, request: Request) -> Response:
        return await self._generate(request, parse_completion, SglangCompletion() if self._sglang else VllmCompletion())

    async def chat_completions(self, request: Request) -> Response:
        return await self._generate(request, parse_chat, SglangChat() if self._sglang else VllmChat())

    async def api_error(self, _request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return JSONResponse(error.body(self._configuration.engine), error.status, headers=error.headers)

    async def _generate(
        self, request: Request, parse: Callable[..., GenerationCall], answer_format: AnswerFormat
    ) -> Response:
        self._num_calls += 1
        if self._configuration.fail_every and self._num_calls % self._configuration.fail_every == 0:
            raise ApiError(500, "This request was made to fail.", kind="InternalServerError")
        if self._fault_hook and (response := await self._fault_hook(request)) is not None:
            return response
        call = await self._parsed(request, lambda body: parse(body, self._context))
        rank = self._rank(call, request.headers.get(RANK_HEADER))
        if self._sglang and call.n > 1:
            await self._compute_prompts(call, rank)
        answer = self._submit(call, rank)
        identity = answer_format.prefix + (request.headers.get("x-request-id") or uuid.uuid4().hex)
        envelope = {"id": identity, "created": answer.created, "model": self._configuration.model}
        if call.stream:
            return StreamingResponse(
                self._stream(answer, answer_format, envelope), media_type="text/event-stream; charset=utf-8"
            )
        if not await _collect(answer, request):
            return Response(status_code=499)
        choices = [
            answer_format.choice(index, self._text(answer, index)) | answer.returned_ids(index, choice.token_ids)
            for index, choice in enumerate(answer.choices)
        ]
        return JSONResponse(
            {
                **envelope,
                "object": answer_format.object_name,
                "choices": choices,
                **answer_format.whole(self._usage(answer)),
            }
        )

    async def _parsed(self, request: Request, parse: Callable[[dict[str, Any]], Parsed]) -> Parsed:
        """What ``parse`` makes of the JSON object in the body."""
        content_type = request.headers.get("content-type", "")
        content = await self._bodies.read(request)
        return await self._workers.work(len(content), lambda: parse(parse_body(content, content_type)))

    def _check_load(self, call: GenerationCall) -> None:
        unfinished = sum(engine.num_unfinished for engine in self._engines)
        held = sum(engine.num_held_tokens for engine in self._engines)
        tokens = call.n * sum(map(len, call.prompts))
        if unfinished + call.n * len(call.prompts) > MAX_UNFINISHED or held + tokens > MAX_HELD_TOKENS:
            raise ApiError(503, "Too many requests are waiting.", kind="ServiceUnavailable")

    def _rank(self, call: GenerationCall, header: str | None) -> int | None:
        """The rank that a call asks for."""
        if self._configuration.ignore_rank_header:
            return None
        if self._sglang:
            return parse_sglang_rank(header, call.routed_dp_rank, len(self._engines))
        return parse_rank(header, len(self._engines))

    async def _compute_prompts(self, call: GenerationCall, rank: int | None) -> None:
        """What SGLang does before several answers to a prompt: it computes the prompt, which they then hit."""
        once = replace(call, n=1, max_tokens=[1] * len(call.prompts), images=())
        async for _token in self._submit(once, rank).tokens():
            pass

    def _submit(self, call: GenerationCall, rank: int | None) -> _Answer:
        self._check_load(call)
        output: asyncio.Queue[GeneratedToken] = asyncio.Queue()
        generations: list[tuple[Engine, Generation]] = []
        choices: list[_Choice] = []
        for prompt, max_tokens in zip(call.prompts, call.max_tokens, strict=True):
            for repetition in range(call.n):
                engine = self._balancer.choose() if rank is None else self._engines[rank]
                generation = engine.submit(
                    prompt,
                    max_tokens,
                    output,
                    choice=len(choices),
                    seed=repetition,
                    stream=call.stream,
                    extra_keys=call.extra_keys,
                )
                generations.append((engine, generation))
                choices.append(_Choice(len(prompt)))
        if call.images:
            generations[0][0].count_images(len(call.images), self._image_cache.look_up(call.images))
        return _Answer(call, generations, choices, output, int(time()))

    async def _stream(
        self, answer: _Answer, answer_format: AnswerFormat, envelope: Mapping[str, Any]
    ) -> AsyncIterator[bytes]:
        call = answer.call
        envelope = {**envelope, "object": answer_format.chunk_name}

        def event(choices: list[dict[str, Any]], **more: Any) -> bytes:
            return b"data: " + _json({**envelope, "choices": choices, **more}) + b"\n\n"

        begun: set[int] = set()
        opened = False
        async for token in answer.tokens():
            if not opened:
                # As vLLM does, together with the first token: before it there is nothing to say.
                for choice in answer_format.opening(len(answer.choices)):
                    yield event([choice])
                opened = True
            text = self._tokenizer.output_text(token.token_id)
            if call.echo and token.choice not in begun:
                text = self._prompt_text(answer, token.choice) + text
            ids = answer.returned_ids(token.choice, [token.token_id], first=token.choice not in begun)
            begun.add(token.choice)
            more = answer_format.event(self._usage(answer) if call.continuous_usage else None)
            for piece in answer_format.pieces(token.choice, text, token.finished):
                yield event([piece | ids], **more)
        if call.include_usage:
            yield event([], **answer_format.last_event(self._usage(answer)))
        yield b"data: [DONE]\n\n"

    def _usage(self, answer: _Answer) -> Usage:
        call = answer.call
        cached: int | None = None
        if self._configuration.enable_prompt_tokens_details:
            if self._sglang:
                cached = sum(choice.hit_tokens for choice in answer.choices[:: call.n])
            else:
                # Of several prompts vLLM reports one: the first to answer in a stream, else the last of the list.
                first, last = answer.hit_tokens_of_first_token, answer.choices[-1].hit_tokens
                cached = first if call.stream else last
        return Usage(
            # The prompt of several choices counts once, whatever n is.
            prompt_tokens=sum(map(len, call.prompts)),
            completion_tokens=sum(len(choice.token_ids) for choice in answer.choices),
            cached_tokens=cached,
        )

    def _text(self, answer: _Answer, index: int) -> str:
        text = "".join(self._tokenizer.output_text(token_id) for token_id in answer.choices[index].token_ids)
        return self._prompt_text(answer, index) + text if answer.call.echo else text

    def _prompt_text(self, answer: _Answer, index: int) -> str:
        return self._tokenizer.decode(answer.call.prompts[index // answer.call.n])


async def _collect(answer: _Answer, request: Request) -> bool:
    """Wait for the whole answer; ``False`` where the client went away before it was there."""

    async def drain() -> None:
        async for _token in answer.tokens():
            pass

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = {asyncio.create_task(drain()), asyncio.create_task(disconnected())}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return all(generation.num_output_tokens >= generation.max_tokens for _engine, generation in answer.generations)


def _report_dead_engine(loop: asyncio.Task[None]) -> None:
    """An engine's loop ends only by being cancelled; anything else is a fault of ours and must be seen."""
    if not loop.cancelled() and (error := loop.exception()) is not None:
        traceback.print_exception(error, file=sys.stderr)


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
