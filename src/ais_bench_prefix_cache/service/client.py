"""What a run asks of a service: completions on a chosen rank, models, tokens, metrics, resets."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import httpx

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem, ServiceError
from ais_bench_prefix_cache.foundation.names import RANK_HEADER
from ais_bench_prefix_cache.foundation.quoting import without_secret
from ais_bench_prefix_cache.scenario.model import ServiceConfig
from ais_bench_prefix_cache.service.transport import Reply, Transport, shown_url

FIELDS_THAT_CHANGE_THE_CACHE_KEY = ("cache_salt", "add_special_tokens", "truncate_prompt_tokens")
"""Request fields that change which blocks a prompt hits: probes and warm-up must carry what the formal requests do."""

_ENDPOINT = re.compile(r"/v1/(chat/)?completions/?$")
_NOT_OFFERED = frozenset({403, 404, 405, 501})
"""How gateways answer to paths that they do not hand on."""
_MOST_TOKENS = 1 << 53
"""No count of tokens is larger; JSON of other makers is exact so far."""

EMBEDDED_SERVER = "embedded server"
"""Stands in the version of the server that imitates vLLM: its latencies are not those of a model."""


@dataclass(frozen=True)
class Completion:
    """What a completion's ``usage`` says. None: the server did not say it."""

    prompt_tokens: int | None
    cached_tokens: int | None


@dataclass(frozen=True)
class ServedModel:
    """One entry of ``/v1/models``."""

    name: str
    max_model_len: int | None


@dataclass(frozen=True)
class ResetReply:
    """What a reset endpoint answered. ``success`` is None where the body does not say (vLLM before 0.26, SGLang)."""

    url: str
    status: int
    success: bool | None
    text: str


class ServiceClient:
    """Talks to the service of one Scenario; safe to use from several threads.

    ``generation_kwargs`` are those of the formal requests: what in them changes the cache's keys
    (:data:`FIELDS_THAT_CHANGE_THE_CACHE_KEY`) is sent with every completion here, too. ``transport`` replaces the
    network in tests.
    """

    def __init__(
        self,
        config: ServiceConfig,
        *,
        generation_kwargs: Mapping[str, Any] | None = None,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.base_urls = tuple(base_url(url) for url in config.inference_urls)
        self.generation_kwargs = dict(generation_kwargs or {})
        self._request_fields = {
            name: self.generation_kwargs[name]
            for name in FIELDS_THAT_CHANGE_THE_CACHE_KEY
            if name in self.generation_kwargs
        }
        self._transport = Transport(config, transport=transport, clock=clock)

    def __enter__(self) -> ServiceClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._transport.close()

    def at_router(self) -> ServiceClient:
        """A client of ``service.router_url``, where the formal requests go."""
        assert self.config.router_url is not None
        config = replace(self.config, inference_urls=(self.config.router_url,))
        return ServiceClient(config, generation_kwargs=self.generation_kwargs)

    def halt(self) -> None:
        """From now on, in every thread, send nothing."""
        self._transport.halt()

    def inference_url(self, dp_rank: int | None) -> str:
        """The URL that reaches ``dp_rank``."""
        return self.config.inference_urls[self.config.route(dp_rank).position]

    def complete(self, prompt: str, *, dp_rank: int | None = None, max_tokens: int = 1) -> Completion:
        """Send one completion to ``dp_rank`` and wait for its end, on the endpoint of the formal requests.

        The rank's header is sent only where several ranks stand behind its URL; else the URL decides. On a chat
        endpoint the prompt is one user message.

        Raises:
            ServiceError: for every failure; the rank is named where there are several.
        """
        route = self.config.route(dp_rank)
        headers = {} if route.rank_behind is None else {RANK_HEADER: str(route.rank_behind)}
        url = self.config.inference_urls[route.position]
        asked: dict[str, Any] = {"prompt": prompt}
        if _is_chat(url):
            asked = {"messages": [{"role": "user", "content": prompt}]}
        try:
            return self._completion(url, {**asked, "max_tokens": max_tokens}, headers)
        except ServiceError as error:
            if dp_rank is None or self.config.dp_size == 1:
                raise
            raise ServiceError(_of_rank(problem, dp_rank, self.config) for problem in error.problems) from error

    def chat(self, content: Sequence[Mapping[str, Any]], position: int = 0) -> Completion:
        """Send one user message of ``content`` parts to the entry point at ``position``; one token is asked for."""
        messages = [{"role": "user", "content": list(content)}]
        return self._completion(self.chat_url(position), {"messages": messages, "max_tokens": 1}, {})

    def chat_url(self, position: int = 0) -> str:
        """Chat completions of the entry point at ``position``."""
        return f"{self.base_urls[position]}/v1/chat/completions"

    def _completion(self, url: str, asked: Mapping[str, Any], headers: Mapping[str, str]) -> Completion:
        body = {**self._request_fields, "model": self.config.model, **asked, "temperature": 0, "stream": False}
        reply = self._transport.exchange("POST", url, json_body=body, headers=headers)
        document = reply.json_object()
        if document is None:
            raise self._transport.unusable(reply, "a completion")
        usage = document.get("usage")
        if not isinstance(usage, dict):
            return Completion(None, None)
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        return Completion(
            self._count(reply, "usage.prompt_tokens", usage.get("prompt_tokens")),
            self._count(reply, "usage.prompt_tokens_details.cached_tokens", cached),
        )

    def models(self, position: int = 0) -> tuple[ServedModel, ...] | None:
        """``/v1/models`` of the entry point at ``position``; None where a gateway does not offer it."""
        reply = self._transport.exchange(
            "GET",
            f"{self.base_urls[position]}/v1/models",
            accept_status=lambda status: status == 200 or status in _NOT_OFFERED,
        )
        if reply.status != 200:
            return None
        entries = (reply.json_object() or {}).get("data")
        if not isinstance(entries, list):
            raise self._transport.unusable(reply, "a list of models")
        return tuple(
            ServedModel(
                without_secret(entry["id"], self.config.api_key),
                self._count(reply, "max_model_len", entry.get("max_model_len")),
            )
            for entry in entries
            if isinstance(entry, dict) and isinstance(entry.get("id"), str)
        )

    def tokenize(self, prompt: str, position: int = 0) -> tuple[int, ...] | None:
        """The server's own token ids of ``prompt`` as ``/v1/completions`` encodes it; None where it offers none."""
        fields = {key: value for key, value in self._request_fields.items() if key == "add_special_tokens"}
        reply = self._transport.exchange(
            "POST",
            f"{self.base_urls[position]}/tokenize",
            json_body={"model": self.config.model, "prompt": prompt, "add_special_tokens": True, **fields},
            accept_status=lambda status: status == 200 or status in _NOT_OFFERED,
        )
        if reply.status != 200:
            return None
        tokens = (reply.json_object() or {}).get("tokens")
        # A server of another kind may answer something else there.
        if not isinstance(tokens, list) or not all(_is_count(token) for token in tokens):
            return None
        return tuple(tokens)

    def version(self, position: int = 0) -> str | None:
        """What ``/version`` says; None where it is not offered. Our embedded server is said to be it."""
        reply = self._transport.exchange(
            "GET", f"{self.base_urls[position]}/version", accept_status=lambda _status: True
        )
        document = (reply.json_object() or {}) if reply.status == 200 else {}
        version = document.get("version")
        if not isinstance(version, str):
            return None
        told = self.quote(version)
        return f"{told} ({EMBEDDED_SERVER})" if "embedded_server" in document else told

    def scrape(self) -> tuple[str, ...]:
        """The metrics text of every metrics URL, in the Scenario's order, without the API key."""
        return tuple(self._scrape_one(url) for url in self.config.metrics_urls)

    def _scrape_one(self, url: str) -> str:
        reply = self._transport.exchange("GET", url)
        text = reply.text
        # A proxy's error page has status 200 more often than one would like.
        if "html" in reply.content_type or text.lstrip()[:1] in ("<", "[") or reply.json_object() is not None:
            raise ServiceError.of(
                Code.NOT_METRICS,
                shown_url(url),
                f"answered something else than Prometheus text ({self._transport.excerpt(reply)})",
                hint="Check service.metrics_url: it ends in /metrics on the inference server.",
            )
        return without_secret(text, self.config.api_key)

    def reset(self, url: str) -> ResetReply:
        """POST to one reset URL; any HTTP status but a redirect is an answer, judged by the caller."""
        reply = self._transport.exchange("POST", url, accept_status=lambda status: not 300 <= status < 400)
        success = (reply.json_object() or {}).get("success")
        return ResetReply(
            shown_url(url), reply.status, success if isinstance(success, bool) else None, self._transport.excerpt(reply)
        )

    def quote(self, text: str) -> str:
        """Words of the server as they may be shown: without the key, in one line, not too long."""
        return self._transport.quote(text)

    def _count(self, reply: Reply, name: str, value: Any) -> int | None:
        """A number of tokens that the server says; None where it does not."""
        if value is None:
            return None
        if _is_count(value):
            return int(value)
        raise ServiceError.of(
            Code.UNEXPECTED_ANSWER,
            shown_url(reply.url),
            f"says that {name} is {self.quote(repr(value))}",
            allowed="a whole number of tokens, or null",
            hint="Is this an OpenAI-compatible server?",
        )


def base_url(inference_url: str) -> str:
    """The server's root: ``inference_url`` without ``/v1/completions`` or ``/v1/chat/completions``."""
    return _ENDPOINT.sub("", inference_url).rstrip("/")


def _is_chat(inference_url: str) -> bool:
    match = _ENDPOINT.search(inference_url)
    return match is not None and match[1] is not None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS


def _of_rank(problem: Problem, dp_rank: int, config: ServiceConfig) -> Problem:
    """A rank that fails while others answer is no fault of the server as a whole."""
    hint = problem.hint
    if problem.code in (Code.SERVER_ERROR, Code.HTTP_STATUS):
        hint = (
            f"Does the server have a rank {dp_rank} (service.dp_size), and is its engine alive? Look at the server's "
            "log."
        )
        if len(config.inference_urls) > 1 and config.ranks_per_url > 1:
            hint = (
                f"service.dp_size {config.dp_size} over {len(config.inference_urls)} URLs is {config.ranks_per_url} "
                f"ranks behind each; this one was asked for its rank {config.route(dp_rank).rank_behind}. Does every "
                "URL have as many, and is the engine alive? Look at the server's log."
            )
    return Problem(problem.code, problem.where, f"rank {dp_rank}: {problem.message}", problem.allowed, hint)
