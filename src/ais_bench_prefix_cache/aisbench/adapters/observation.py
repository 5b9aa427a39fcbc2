"""What is seen of one formal request while AISBench sends it.

The inferencer opens an observation before AISBench's own code runs, the model fills it; a context variable joins the
two, because AISBench copies the data between them. Imports nothing of AISBench.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any


class AnswerError(RuntimeError):
    """The server's answer is no answer to the request: broken off, too long, or an error in its middle."""


@dataclass
class RequestObservation:
    """One request: what is sent where and for how long, whom to tell, and what the server said.

    ``prompt`` is a text, messages for a chat, or token ids, where ``token_ids`` are those of the answer; ``text`` is
    the answer's, of conversations alone. ``time_limit`` is in seconds, None for none. ``events`` counts the parts of
    the answer that brought text. Moments are those of :func:`time.perf_counter`, which is one clock for all processes
    of a machine; ``time_points`` are AISBench's own: when the last attempt was sent, and when each part of its answer
    came.
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
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    sent: float | None = None
    first_token: float | None = None
    finished: float | None = None
    time_points: Sequence[float] = ()
    lane_wait: float = 0.0
    slot_wait: float = 0.0
    _clock: Callable[[], float] = field(default=time.perf_counter, repr=False)

    def begin_attempt(self) -> None:
        self.attempts += 1
        self.usage = None
        self.token_ids = []
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

    def check_token_ids(self) -> None:
        """Raises AnswerError where the ids of the answer are not those of as many tokens as were asked for."""
        if len(self.token_ids) == self.max_tokens:
            return
        answer = f"the answer to request {self.sequence_index}"
        if not self.token_ids:
            raise AnswerError(f"{answer} has no token ids: the server does not know return_token_ids")
        raise AnswerError(f"{answer} has {len(self.token_ids)} token ids, not the {self.max_tokens} that are planned")

    def check_length(self) -> None:
        """Raises AnswerError where the server does not say that the answer has as many tokens as were asked for."""
        tokens = (self.usage or {}).get("completion_tokens")
        if tokens != self.max_tokens:
            said = "says not how many tokens it has" if tokens is None else f"has {tokens} tokens"
            answer = f"the answer to request {self.sequence_index} {said}"
            raise AnswerError(f"{answer}, not the {self.max_tokens} that are planned")

    def end(self, *, success: bool, error: str | None) -> None:
        self.finished = self._clock()
        self.success = success
        self.error = None if success else error or "unknown error"
        self.on_activity()

    def to_row(self, *, due: float | None) -> dict[str, Any]:
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
        sent, first_token, finished, points = self.sent, self.first_token, self.finished, self.time_points
        if self.success and len(points) > 1:
            # AISBench's figures and ours come from the same moments.
            sent, finished = points[0], points[-1]
            first_token = None if first_token is None else points[1]
        for name, moment in (("due", due), ("sent", sent), ("first_token", first_token), ("finished", finished)):
            row[name] = None if moment is None else round(moment, 6)
        row["lane_wait"], row["slot_wait"] = round(self.lane_wait, 6), round(self.slot_wait, 6)
        streamed = self.success and first_token is not None
        row["itl_ms"] = [round(1000 * (b - a), 3) for a, b in pairwise(points[1:])] if streamed else []
        row["error"] = self.error
        return row


def usage_numbers(usage: Any) -> dict[str, Any] | None:
    """What is used of a server's ``usage``: its numbers of tokens, and nothing else that it may say.

    Raises AnswerError for what is no number of tokens.
    """
    if usage is None:
        return None
    if not isinstance(usage, Mapping):
        raise AnswerError(f"usage is no object, but {usage!r}")
    numbers = {name: _tokens(name, usage[name]) for name in ("prompt_tokens", "completion_tokens") if name in usage}
    details = usage.get("prompt_tokens_details", _ABSENT)
    if details is _ABSENT:
        return numbers
    if isinstance(details, Mapping):
        details = {name: _tokens(name, details[name]) for name in ("cached_tokens",) if name in details}
    elif details is not None:
        raise AnswerError(f"usage.prompt_tokens_details is no object, but {details!r}")
    return {**numbers, "prompt_tokens_details": details}


_ABSENT = object()
_MOST_TOKENS = 2**53


def _tokens(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_TOKENS:
        raise AnswerError(f"usage says that {name} is {value!r}")
    return value


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
