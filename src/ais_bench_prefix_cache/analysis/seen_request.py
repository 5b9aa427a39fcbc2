"""What the sender saw of one formal request: the one shape that sending, comparing and reporting share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

CachedTokensState = Literal["absent", "null", "reported"]


@dataclass(frozen=True)
class SeenRequest:
    """The request at ``sequence_index`` of the data set, as its sender saw it.

    ``state`` says what the server's usage held for ``cached_tokens``: nothing (absent), null, or a number (reported).
    ``prompt_tokens`` and ``completion_tokens`` are the server's own figures. ``attempts`` above 1: it was sent again.

    Moments are seconds after the first request of the run was sent, those of the last attempt; whatever is not known is
    None. ``due`` is when it should have been sent (None where no rate was asked for), ``lane_wait`` and ``slot_wait``
    are the seconds for which it waited for the request before it in its lane and for a free slot. ``itl_ms`` are the
    times between its tokens in milliseconds; without streaming there is neither a first token nor these.
    """

    sequence_index: int
    state: CachedTokensState
    cached_tokens: int | None = None
    prompt_tokens: int | None = None
    attempts: int = 1
    success: bool = True
    sent: float | None = None
    first_token: float | None = None
    finished: float | None = None
    completion_tokens: int | None = None
    error: str | None = None
    due: float | None = None
    lane_wait: float = 0.0
    slot_wait: float = 0.0
    itl_ms: tuple[float, ...] = ()


def sent_order(seen: Iterable[SeenRequest], count: int) -> list[int]:
    """The numbers of ``count`` requests in the order in which they were sent; empty where not all are known."""
    moments = {row.sequence_index: row.sent for row in seen if row.sent is not None}
    return sorted(moments, key=lambda index: moments[index]) if len(moments) == count else []
