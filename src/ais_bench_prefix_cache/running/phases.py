"""Which phase a run is in, when each began and ended, and the few lines about it in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from time import monotonic
from typing import Any, Literal

Phase = Literal["verify", "precheck", "reset", "warmup", "baseline", "formal", "after", "analysis"]


def utc_now() -> datetime:
    """The time, with its zone."""
    return datetime.now(timezone.utc)


@dataclass
class Phases:
    """Records phases one after another; ``say`` shows a line to the person at the terminal.

    ``now`` tells the time of day, which somebody may set; ``clock`` the seconds, which nobody can turn back.
    """

    log: logging.Logger
    say: Callable[[str], None]
    now: Callable[[], datetime] = utc_now
    clock: Callable[[], float] = monotonic
    current: Phase | None = None
    records: dict[str, dict[str, Any]] = field(default_factory=dict)

    @contextmanager
    def enter(self, phase: Phase) -> Iterator[None]:
        """The body is ``phase``. After an error :attr:`current` still names it."""
        self.current = phase
        started, begin = self.now(), self.clock()
        self.log.info("%s: started", phase)
        yield
        finished = self.now()
        seconds = round(self.clock() - begin, 3)
        if finished < started:
            self.note("note: the computer's clock was set back meanwhile: times of day are wrong, durations are not")
        self.records[phase] = {
            "started_at": started.isoformat(timespec="milliseconds"),
            "finished_at": finished.isoformat(timespec="milliseconds"),
            "seconds": seconds,
        }
        self.log.info("%s: finished after %.3f s", phase, seconds)

    def note(self, text: str) -> None:
        """A line for the terminal and the log."""
        self.say(text)
        self.log.info("%s: %s", self.current, text)

    def notes(self, texts: Iterable[str]) -> None:
        """Several notes."""
        for text in texts:
            self.note(f"note: {text}")
