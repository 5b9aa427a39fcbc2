"""How the imitated servers word their answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from ais_bench_prefix_cache import __version__

SYSTEM_FINGERPRINT = f"ais-bench-prefix-cache-{__version__}"


@dataclass(frozen=True)
class Usage:
    """Tokens of an answer; ``cached_tokens`` is None where the server does not tell."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None

    def document(self) -> dict[str, int]:
        """What both servers say."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
        }

    def details(self) -> dict[str, int] | None:
        """``prompt_tokens_details``."""
        return None if self.cached_tokens is None else {"cached_tokens": self.cached_tokens}


class AnswerFormat(Protocol):
    """The wording of one endpoint. Texts of a stream come piece by piece, those of a whole answer at once."""

    prefix: str
    object_name: str
    chunk_name: str

    def choice(self, index: int, text: str) -> dict[str, Any]:
        """A whole choice."""

    def whole(self, usage: Usage) -> dict[str, Any]:
        """What a whole answer has beside its choices."""

    def opening(self, count: int) -> Iterator[dict[str, Any]]:
        """Choices that open a stream."""

    def pieces(self, index: int, text: str, finished: bool) -> Iterator[dict[str, Any]]:
        """The choices of the events with which a token is told."""

    def event(self, usage: Usage | None) -> dict[str, Any]:
        """What an event has beside its choices; ``usage`` so far, where the request wants it all along."""

    def last_event(self, usage: Usage) -> dict[str, Any]:
        """What the last event has, which has no choices."""


class _Completion:
    """Choices of ``/v1/completions``, which the servers word alike but for the name of ``stop_key``."""

    object_name = chunk_name = "text_completion"
    stop_key: str

    def choice(self, index: int, text: str) -> dict[str, Any]:
        return next(self.pieces(index, text, finished=True))

    def opening(self, count: int) -> Iterator[dict[str, Any]]:
        return iter(())

    def pieces(self, index: int, text: str, finished: bool) -> Iterator[dict[str, Any]]:
        yield {
            "index": index,
            "text": text,
            "logprobs": None,
            "finish_reason": "length" if finished else None,
            self.stop_key: None,
        }


class _Vllm:
    def whole(self, usage: Usage) -> dict[str, Any]:
        return {
            "service_tier": None,
            "system_fingerprint": SYSTEM_FINGERPRINT,
            "usage": usage.document() | {"prompt_tokens_details": usage.details()},
            "kv_transfer_params": None,
        }

    def event(self, usage: Usage | None) -> dict[str, Any]:
        return {} if usage is None else {"usage": usage.document()}

    def last_event(self, usage: Usage) -> dict[str, Any]:
        return {
            "usage": usage.document() | {"prompt_tokens_details": usage.details()},
            "system_fingerprint": SYSTEM_FINGERPRINT,
        }


class VllmCompletion(_Completion, _Vllm):
    """vLLM's ``/v1/completions``."""

    prefix = "cmpl-"
    stop_key = "stop_reason"


class VllmChat(_Vllm):
    """vLLM's ``/v1/chat/completions``."""

    prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def choice(self, index: int, text: str) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": text},
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        }

    def opening(self, count: int) -> Iterator[dict[str, Any]]:
        for index in range(count):
            yield {
                "index": index,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }

    def pieces(self, index: int, text: str, finished: bool) -> Iterator[dict[str, Any]]:
        yield {
            "index": index,
            "delta": {"content": text},
            "logprobs": None,
            "finish_reason": "length" if finished else None,
        }


class _Sglang:
    prefix = ""

    def whole(self, usage: Usage) -> dict[str, Any]:
        return {
            "usage": usage.document()
            | {
                "prompt_tokens_details": usage.details(),
                "reasoning_tokens": 0,
                "completion_tokens_details": None,
            },
            "metadata": {"weight_version": "default"},
        }

    def last_event(self, usage: Usage) -> dict[str, Any]:
        return {"usage": usage.document() | {"prompt_tokens_details": usage.details(), "reasoning_tokens": 0}}


class SglangCompletion(_Completion, _Sglang):
    """SGLang's ``/v1/completions``."""

    stop_key = "matched_stop"

    def event(self, usage: Usage | None) -> dict[str, Any]:
        return {"usage": None if usage is None else _so_far(usage)}


class SglangChat(_Sglang):
    """SGLang's ``/v1/chat/completions``."""

    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def choice(self, index: int, text: str) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": text, "reasoning_content": None},
            "logprobs": None,
            "finish_reason": "length",
            "matched_stop": None,
        }

    def opening(self, count: int) -> Iterator[dict[str, Any]]:
        for index in range(count):
            yield self._delta(index, {"role": "assistant", "content": ""})

    def pieces(self, index: int, text: str, finished: bool) -> Iterator[dict[str, Any]]:
        yield self._delta(index, {"content": text})
        if finished:
            yield self._delta(index, {}) | {"finish_reason": "length"}

    def event(self, usage: Usage | None) -> dict[str, Any]:
        return {} if usage is None else {"usage": _so_far(usage)}

    @staticmethod
    def _delta(index: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {
            "index": index,
            "delta": {"reasoning_content": None, **delta},
            "logprobs": None,
            "finish_reason": None,
            "matched_stop": None,
        }


def _so_far(usage: Usage) -> dict[str, Any]:
    return usage.document() | {
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }
