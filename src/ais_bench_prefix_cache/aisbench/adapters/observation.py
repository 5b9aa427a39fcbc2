"""What is seen of one formal request while AISBench sends it.

The inferencer opens an observation before AISBench's own code runs, the model fills it; a context variable joins the
two, because AISBench copies the data between them. Imports nothing of AISBench.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any


class AnswerError(RuntimeError):
    """The server's answer is no answer to the request: broken off, too long, or an error in its middle."""


@dataclass
class RequestObservation:
    """One request: what is sent where and for how long, whom to tell, and what the server said.

    ``prompt`` is a text, or messages for a chat; ``time_limit`` is in seconds, None for none. ``events`` counts the
    parts of the answer that brought text.
    """

    sequence_index: int
    dp_rank: int | None
    max_tokens: int
    on_first_token: Callable[[], None]
    on_activity: Callable[[], None]
    prompt: Any = None
    time_limit: float | None = None
    attempts: int = 0
    events: int = 0
    success: bool = False
    error: str | None = None
    usage: Mapping[str, Any] | None = None
    sent: float | None = None
    first_token: float | None = None
    finished: float | None = None
    _clock: Callable[[], float] = field(default=time.perf_counter, repr=False)

    def begin_attempt(self) -> None:
        self.attempts += 1
        self.usage = None
        self.events = 0
        self.first_token = None
        if self.sent is None:
            self.sent = self._clock()

    def see_chunk(self, *, has_token: bool, has_text: bool = False) -> None:
        """A part of the response arrived. Raises AnswerError for more parts with text than tokens were asked for."""
        self.on_activity()
        self.events += has_text
        if self.events > self.max_tokens:
            raise AnswerError(f"the answer has more tokens than max_tokens, {self.max_tokens}")
        if has_token and self.first_token is None:
            self.first_token = self._clock()
            self.on_first_token()

    def check_usage(self) -> None:
        """Raises AnswerError where the server's own figures contradict the request or the answer."""
        tokens = (self.usage or {}).get("completion_tokens")
        if not isinstance(tokens, int):
            return
        if tokens > self.max_tokens:
            raise AnswerError(f"the answer has {tokens} tokens, more than max_tokens, {self.max_tokens}")
        if self.events > tokens:
            raise AnswerError(f"the answer came in {self.events} parts with text, but has {tokens} tokens: sent twice?")

    def end(self, *, success: bool, error: str | None) -> None:
        self.finished = self._clock()
        self.success = success
        self.error = None if success else error or "unknown error"
        self.on_activity()

    def to_row(self, *, time_origin: float) -> dict[str, Any]:
        """A row of the usage file; see :mod:`ais_bench_prefix_cache.aisbench.request_usage`."""
        usage = self.usage or {}
        row: dict[str, Any] = {
            "sequence_index": self.sequence_index,
            "success": self.success,
            "attempts": self.attempts,
            "prompt_tokens": usage.get("prompt_tokens"),
            "completion_tokens": usage.get("completion_tokens"),
        }
        row.update(_cached_tokens(usage))
        for name in ("sent", "first_token", "finished"):
            moment = getattr(self, name)
            row[name] = None if moment is None else round(moment - time_origin, 6)
        row["error"] = self.error
        return row


def _cached_tokens(usage: Mapping[str, Any]) -> dict[str, Any]:
    """``{}`` for a server that does not say, ``null`` for one that says null: neither is a zero."""
    if "prompt_tokens_details" not in usage:
        return {}
    details = usage["prompt_tokens_details"]
    if details is None:
        return {"cached_tokens": None}
    if not isinstance(details, Mapping) or "cached_tokens" not in details:
        return {}
    return {"cached_tokens": details["cached_tokens"]}


CURRENT_REQUEST: ContextVar[RequestObservation | None] = ContextVar("current formal request", default=None)
