"""AISBench's models for a vLLM-like server: the real ones, watched request by request."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from ais_bench.benchmark.models.api_models.base_api import BaseAPIModel
from ais_bench.benchmark.models.api_models.vllm_custom_api import VLLMCustomAPI
from ais_bench.benchmark.models.api_models.vllm_custom_api_chat import VLLMCustomAPIChat

from ais_bench_prefix_cache.aisbench.adapters.observation import (
    CURRENT_REQUEST,
    AnswerError,
    RequestObservation,
    usage_numbers,
)
from ais_bench_prefix_cache.aisbench.adapters.proxies import proxy_of
from ais_bench_prefix_cache.datasets.images.messages import image_urls, messages_with_images
from ais_bench_prefix_cache.foundation.names import API_KEY_VARIABLE, RANK_HEADER
from ais_bench_prefix_cache.foundation.quoting import quoted_words, without_secret

_ERROR_CHARACTERS = 600
_ERROR_BODY_BYTES = 64 * 1024
_AISBENCH_WORDING = re.compile(r"^After \d+ retries, request failed with exception: (AnswerError: )?")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BYTES_A_TOKEN = 64 * 1024
"""No part of an answer with one token is larger; a server that goes on and on is stopped by it."""
_BYTES_A_PROMPT_ID = 16
"""Who returns token ids may return those of the prompt, too."""


class ObservedModel(BaseAPIModel):  # type: ignore[misc]
    """Sends one request as the AISBench model after it in the class does, and keeps what the server says about it.

    ``inference_urls`` are complete (``http://…/v1/completions``): one entry point, or several with ``ranks_per_url``
    data-parallel ranks each. A request of rank *r* goes to the URL of its rank; where several ranks stand behind it,
    ``X-data-parallel-rank`` carries the rank's number there. The API key comes from the environment and is in no
    config. Redirects are not followed: the key and the prompts go where the Scenario says.
    """

    def __init__(self, *, inference_urls: list[str], model: str, ranks_per_url: int = 1, **settings: Any) -> None:
        super().__init__(model=model, url=inference_urls[0], api_key=_key(), **settings)
        self.inference_urls = list(inference_urls)
        self.ranks_per_url = ranks_per_url
        self.url = self.inference_urls[0]
        # AISBench's own kind of dict takes its time to copy, which it is for every request.
        self.generation_kwargs: dict[str, Any] = dict(self.generation_kwargs or {})
        self._proxies = {url: proxy_of(url) for url in self.inference_urls}
        self._observation: RequestObservation | None = None
        self._stream_is_done = False

    async def generate(self, input_data: str, max_out_len: int, output: Any, session: Any = None, **args: Any) -> Any:
        """As AISBench's own, on a copy of this model that belongs to this request alone."""
        exchange = copy.copy(self)
        observation = CURRENT_REQUEST.get()
        if observation is None:
            try:
                return await super(ObservedModel, exchange).generate(
                    input_data, max_out_len, output, session=session, **args
                )
            finally:
                _clean(output)
        exchange._observation = observation
        exchange.url, exchange.headers = self._destination(observation)
        watched = _WatchedSession(session, exchange, observation, self._proxies[exchange.url])
        try:
            await super(ObservedModel, exchange).generate(input_data, max_out_len, output, session=watched, **args)
        finally:
            output.error_info = watched.http_error or output.error_info
            _clean(output)
            observation.time_points = tuple(output.time_points)
            observation.end(success=output.success, error=output.error_info)
        return output

    def on_the_wire(self, body: dict[str, Any], prompt: Any) -> dict[str, Any]:
        """``body``, which has a row number for a prompt, as the server gets it."""
        raise NotImplementedError

    def _destination(self, observation: RequestObservation) -> tuple[str, dict[str, str]]:
        rank = observation.dp_rank
        urls = self.inference_urls
        if rank is None:
            return urls[observation.sequence_index % len(urls)], self.headers
        position, behind = divmod(rank, self.ranks_per_url) if len(urls) > 1 else (0, rank)
        headers = self.headers
        if len(urls) == 1 or self.ranks_per_url > 1:
            headers = {**headers, RANK_HEADER: str(behind)}
        return urls[position], headers

    async def stream_infer(self, request_body: dict[str, Any], output: Any) -> None:
        self._begin_attempt(output)
        await super().stream_infer(request_body, output)
        if output.success and not self._stream_is_done:
            raise AnswerError("the stream ended without [DONE]")
        self._check_usage()

    async def text_infer(self, request_body: dict[str, Any], output: Any) -> None:
        self._begin_attempt(output)
        await super().text_infer(request_body, output)
        self._check_usage()

    def _check_usage(self) -> None:
        if self._observation is not None:
            self._observation.check_usage()

    def _begin_attempt(self, output: Any) -> None:
        self._stream_is_done = False
        # A second attempt must not go on where the broken one stopped, nor count its failure.
        output.content = output.reasoning_content = ""
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
            raise AnswerError(f"the server reported an error in the stream: {error}")
        has_token = self._brings_token(api_response)
        if not has_token and output.time_points:
            # The last chunk carries only the usage, a chat's first one only the role: they must not be timed as tokens.
            output.time_points.pop()
        characters = len(output.content) + len(output.reasoning_content)
        await super().parse_stream_response(api_response, output)
        if self._observation is not None:
            has_text = len(output.content) + len(output.reasoning_content) > characters
            self._observation.see_chunk(has_token=has_token, has_text=has_text)

    @staticmethod
    def _brings_token(chunk: dict[str, Any]) -> bool:
        return bool(chunk.get("choices"))

    async def parse_text_response(self, api_response: dict[str, Any], output: Any) -> None:
        if error := _reported_error(api_response):
            raise AnswerError(f"the server reported an error: {error}")
        await super().parse_text_response(api_response, output)

    async def _parse_usage(self, json_content: dict[str, Any], output: Any) -> None:
        usage = usage_numbers(json_content.get("usage"))
        await super()._parse_usage({**json_content, "usage": usage}, output)
        if usage and self._observation is not None:
            self._observation.usage = usage


class PrefixCacheCompletionsAPI(ObservedModel, VLLMCustomAPI):  # type: ignore[misc]
    """``/v1/completions``: text prompts."""

    def on_the_wire(self, body: dict[str, Any], prompt: Any) -> dict[str, Any]:
        return {**body, "prompt": prompt}


class ChatAPI(ObservedModel, VLLMCustomAPIChat):  # type: ignore[misc]
    """``/v1/chat/completions``."""

    @staticmethod
    def _brings_token(chunk: dict[str, Any]) -> bool:
        """A stream opens with the role alone; a token without visible text has no role."""
        return any(
            "role" not in (delta := choice.get("delta") or {}) or bool(delta.get("content"))
            for choice in chunk.get("choices") or ()
        )


class ImageChatAPI(ChatAPI):
    """``/v1/chat/completions``: messages whose images are references until they are sent.

    ``manifest_path`` names the manifest that holds the images; only the body on the wire has the data URLs.
    """

    def __init__(self, *, manifest_path: str, **settings: Any) -> None:
        super().__init__(**settings)
        manifest = json.loads(Path(manifest_path).read_text(encoding="utf-8"))
        self._image_urls = image_urls(manifest)

    def on_the_wire(self, body: dict[str, Any], prompt: Any) -> dict[str, Any]:
        return {**body, "messages": messages_with_images(prompt, self._image_urls)}


class _WatchedSession:
    """An aiohttp session for one request.

    It puts the prompt into the body when that is sent, bounds the answer in size and time, and keeps the body of a
    refusal, of which AISBench notes only the reason phrase.
    """

    def __init__(self, session: Any, model: ObservedModel, observation: RequestObservation, proxy: str | None) -> None:
        self._session = session
        self._model = model
        self._observation = observation
        self._proxy = proxy
        self.http_error: str | None = None

    @asynccontextmanager
    async def post(self, **request: Any) -> AsyncIterator[_BoundedResponse]:
        self.http_error = None
        body = self._model.on_the_wire(request.pop("json"), self._observation.prompt)
        async with self._session.post(
            **request,
            # Bytes and once: a request with images may be 14 MB.
            data=json.dumps(body, ensure_ascii=False).encode(),
            proxy=self._proxy,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=self._observation.time_limit),
        ) as response:
            if response.status != 200:
                text = await _whole_text(response)
                self.http_error = f"HTTP {response.status} {response.reason}" + (f": {text}" if text else "")
            limit = _BYTES_A_TOKEN * (1 + self._observation.max_tokens)
            if isinstance(self._observation.prompt, list):
                limit += _BYTES_A_PROMPT_ID * len(self._observation.prompt)
            yield _BoundedResponse(response, limit)


class _BoundedResponse:
    """As much of an aiohttp response as AISBench reads, at most ``limit`` bytes long."""

    def __init__(self, response: Any, limit: int) -> None:
        self.status: int = response.status
        self.reason: str = response.reason
        self.content = self._chunks(response, limit)

    async def _chunks(self, response: Any, limit: int) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in response.content.iter_any():
            size += len(chunk)
            if size > limit:
                raise AnswerError(f"the answer is longer than {limit} bytes")
            yield chunk

    async def text(self) -> str:
        # All of an answer that is no stream may end in AISBench's files.
        return without_secret(b"".join([chunk async for chunk in self.content]).decode("utf-8"), _key())


async def _whole_text(response: Any) -> str:
    """The body of a refusal; none of one that is too long: where a text is cut, half of the key could be left."""
    body = b""
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _ERROR_BODY_BYTES:
            return f"a body of more than {_ERROR_BODY_BYTES} bytes"
    return body.decode("utf-8", errors="replace").strip()


def _key() -> str:
    return os.environ.get(API_KEY_VARIABLE, "")


def _clean(output: Any) -> None:
    """Take out of what AISBench keeps and writes what must not be shown, above all the key: a server may echo it.

    An error loses AISBench's wording around it, too.
    """
    if not output.success:
        error = _AISBENCH_WORDING.sub("", _COLOURS.sub("", str(output.error_info or "")))
        output.error_info = quoted_words(error, _key(), _ERROR_CHARACTERS)
    for name in ("content", "reasoning_content"):
        words = getattr(output, name)
        if isinstance(words, str):
            # Half of a surrogate pair could not be written into a file.
            setattr(output, name, without_secret(words.encode("utf-8", "replace").decode("utf-8"), _key()))


def _reported_error(response: dict[str, Any]) -> str | None:
    """The message of ``{"error": …}``, or of the bare error object that older vLLM versions send."""
    error = response if response.get("object") == "error" else response.get("error")
    if not error:
        return None
    message = error.get("message") if isinstance(error, dict) else error
    return str(message)
