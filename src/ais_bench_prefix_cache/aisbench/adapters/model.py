"""AISBench's models for a vLLM-like server: the real ones, watched request by request."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ais_bench.benchmark.models.api_models.base_api import BaseAPIModel
from ais_bench.benchmark.models.api_models.vllm_custom_api import VLLMCustomAPI
from ais_bench.benchmark.models.api_models.vllm_custom_api_chat import VLLMCustomAPIChat

from ais_bench_prefix_cache.aisbench.adapters.observation import CURRENT_REQUEST, RequestObservation
from ais_bench_prefix_cache.datasets.images.messages import image_urls, messages_with_images
from ais_bench_prefix_cache.foundation.names import API_KEY_VARIABLE, RANK_HEADER

_ERROR_BODY_CHARACTERS = 500


class StreamError(RuntimeError):
    """The server broke its answer off: an error in the middle of a stream, or no end."""


class ObservedModel(BaseAPIModel):  # type: ignore[misc]
    """Sends one request as the AISBench model after it in the class does, and keeps what the server says about it.

    ``inference_urls`` are complete (``http://…/v1/completions``): one entry point, or one for each data-parallel rank.
    With one entry point a request of rank *r* carries ``X-data-parallel-rank: r``; with one URL a rank it goes to the
    *r*-th. The API key comes from the environment and is in no config.
    """

    def __init__(self, *, inference_urls: list[str], model: str, **settings: Any) -> None:
        super().__init__(model=model, url=inference_urls[0], api_key=os.environ.get(API_KEY_VARIABLE, ""), **settings)
        self.inference_urls = list(inference_urls)
        self.url = self.inference_urls[0]
        self._observation: RequestObservation | None = None
        self._stream_is_done = False

    async def generate(self, input_data: str, max_out_len: int, output: Any, session: Any = None, **args: Any) -> Any:
        """As AISBench's own, on a copy of this model that belongs to this request alone."""
        exchange = copy.copy(self)
        observation = CURRENT_REQUEST.get()
        if observation is None:
            return await super(ObservedModel, exchange).generate(
                input_data, max_out_len, output, session=session, **args
            )
        exchange._observation = observation
        exchange.url, exchange.headers = self._destination(observation)
        watched = None if session is None else self._watched(session)
        try:
            await super(ObservedModel, exchange).generate(input_data, max_out_len, output, session=watched, **args)
        finally:
            if not output.success and watched is not None and watched.http_error is not None:
                output.error_info = watched.http_error
            observation.end(success=output.success, error=output.error_info)
        return output

    def _watched(self, session: Any) -> WatchedSession:
        return WatchedSession(session, self.headers.get("Authorization", ""))

    def _destination(self, observation: RequestObservation) -> tuple[str, dict[str, str]]:
        rank = observation.dp_rank
        if len(self.inference_urls) > 1:
            position = observation.sequence_index if rank is None else rank
            return self.inference_urls[position % len(self.inference_urls)], self.headers
        if rank is None:
            return self.url, self.headers
        return self.url, {**self.headers, RANK_HEADER: str(rank)}

    async def stream_infer(self, request_body: dict[str, Any], output: Any) -> None:
        self._begin_attempt(output)
        await super().stream_infer(request_body, output)
        if output.success and not self._stream_is_done:
            raise StreamError("the stream ended without [DONE]")

    async def text_infer(self, request_body: dict[str, Any], output: Any) -> None:
        self._begin_attempt(output)
        await super().text_infer(request_body, output)

    def _begin_attempt(self, output: Any) -> None:
        self._stream_is_done = False
        # A second attempt must not go on where the broken one stopped, nor count its failure.
        output.content = ""
        output.success = False
        if self._observation is not None:
            self._observation.begin_attempt()

    async def iter_lines(self, stream: Any) -> AsyncIterator[bytes]:
        async for line in super().iter_lines(stream):
            if line.strip().removeprefix(b"data:").strip() == b"[DONE]":
                self._stream_is_done = True
            yield line

    async def parse_stream_response(self, api_response: dict[str, Any], output: Any) -> None:
        if error := _reported_error(api_response):
            raise StreamError(f"the server reported an error in the stream: {error}")
        has_token = self._brings_token(api_response)
        if self._observation is not None:
            self._observation.see_chunk(has_token=has_token)
        if not has_token and output.time_points:
            # The last chunk carries only the usage, a chat's first one only the role: they must not be timed as tokens.
            output.time_points.pop()
        await super().parse_stream_response(api_response, output)

    @staticmethod
    def _brings_token(chunk: dict[str, Any]) -> bool:
        return bool(chunk.get("choices"))

    async def parse_text_response(self, api_response: dict[str, Any], output: Any) -> None:
        if error := _reported_error(api_response):
            raise StreamError(f"the server reported an error: {error}")
        await super().parse_text_response(api_response, output)

    async def _parse_usage(self, json_content: dict[str, Any], output: Any) -> None:
        await super()._parse_usage(json_content, output)
        usage = json_content.get("usage")
        if usage and self._observation is not None:
            self._observation.usage = usage


class PrefixCacheCompletionsAPI(ObservedModel, VLLMCustomAPI):  # type: ignore[misc]
    """``/v1/completions``: text prompts."""


class ImageChatAPI(ObservedModel, VLLMCustomAPIChat):  # type: ignore[misc]
    """``/v1/chat/completions``: messages whose images are references until they are sent.

    ``manifest_path`` names the manifest that holds the images. Requests in memory, AISBench's records and its log have
    the references; only the body on the wire has the data URLs.
    """

    def __init__(self, *, manifest_path: str, **settings: Any) -> None:
        super().__init__(**settings)
        manifest = json.loads(Path(manifest_path).read_text(encoding="utf-8"))
        self._image_urls = image_urls(manifest)

    async def get_request_body(self, input_data: Any, max_out_len: int, output: Any, **args: Any) -> Any:
        messages = [{"role": message["role"], "prompt": message["content"]} for message in input_data]
        return await super().get_request_body(messages, max_out_len, output, **args)

    def _watched(self, session: Any) -> WatchedSession:
        return ImageSession(session, self.headers.get("Authorization", ""), self._image_urls)

    @staticmethod
    def _brings_token(chunk: dict[str, Any]) -> bool:
        """A stream opens with the role alone; a token without visible text has no role."""
        return any(
            "role" not in (delta := choice.get("delta") or {}) or bool(delta.get("content"))
            for choice in chunk.get("choices") or ()
        )


class WatchedSession:
    """An aiohttp session that keeps the body of a refusal, of which AISBench notes only the reason phrase."""

    def __init__(self, session: Any, secret: str) -> None:
        self._session = session
        self._secret = secret.removeprefix("Bearer ")
        self.http_error: str | None = None

    @asynccontextmanager
    async def post(self, **request: Any) -> AsyncIterator[Any]:
        self.http_error = None
        async with self._session.post(**self._on_the_wire(request)) as response:
            if response.status != 200:
                body = (await response.text(errors="replace")).strip()[:_ERROR_BODY_CHARACTERS]
                if self._secret:
                    body = body.replace(self._secret, "***")
                self.http_error = f"HTTP {response.status} {response.reason}" + (f": {body}" if body else "")
            yield response

    def _on_the_wire(self, request: dict[str, Any]) -> dict[str, Any]:
        return request


class ImageSession(WatchedSession):
    """Puts the images into a body when it is sent, as bytes and once: a request may be 14 MB."""

    def __init__(self, session: Any, secret: str, urls: Mapping[str, str]) -> None:
        super().__init__(session, secret)
        self._urls = urls

    def _on_the_wire(self, request: dict[str, Any]) -> dict[str, Any]:
        body = request.pop("json")
        body = {**body, "messages": messages_with_images(body["messages"], self._urls)}
        return {**request, "data": json.dumps(body, ensure_ascii=False).encode()}


def _reported_error(response: dict[str, Any]) -> str | None:
    """The message of ``{"error": …}``, or of the bare error object that older vLLM versions send."""
    error = response if response.get("object") == "error" else response.get("error")
    if not error:
        return None
    message = error.get("message") if isinstance(error, dict) else error
    return str(message)[:_ERROR_BODY_CHARACTERS]
