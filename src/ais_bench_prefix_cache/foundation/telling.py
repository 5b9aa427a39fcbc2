"""What long work tells the person who waits for it: how far it has come, notes, and warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

Note = Callable[[str], None]
"""Takes one line."""

ProgressBar = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""``with bar(label, total) as show``: ``show`` is told how many are done."""


@contextmanager
def no_bar(_label: str, _total: int) -> Iterator[Callable[[int], None]]:
    """The :data:`ProgressBar` that shows nothing."""
    yield lambda _done: None


def no_note(_text: str) -> None:
    """The :data:`Note` that nobody hears."""


def warning_line(warning: Mapping[str, Any]) -> str:
    """A warning object of an analysis in one line; ``message`` is its sentence, ``code`` its name."""
    return f"warning [{warning['code']}] {warning['message']}"
