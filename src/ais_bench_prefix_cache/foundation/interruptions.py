"""SIGINT and SIGTERM: the first one ends a command, and nothing breaks off what must be finished."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ais_bench_prefix_cache.foundation.errors import Terminated

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def ended_by_the_first_signal() -> Iterator[None]:
    """In the block SIGINT raises KeyboardInterrupt and SIGTERM Terminated; after the first of them, both are ignored.

    They stay ignored until the process ends: an impatient second Ctrl-C would only break off the clean-up (processes,
    shared memory and scratch directories would be left) or change the exit code. A SIGINT that was ignored before, as
    in a shell's background job, stays ignored.
    """
    if not _in_main_thread():
        yield
        return
    ended = False

    def end(number: int, _frame: FrameType | None) -> None:
        nonlocal ended
        ended = True
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated

    before: dict[int, Any] = {signal.SIGTERM: signal.signal(signal.SIGTERM, end)}
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        if not ended:
            _restore(before)


@contextmanager
def signals_held() -> Iterator[None]:
    """SIGINT and SIGTERM take effect after the block.

    By handlers, not by a signal mask: a mask holds for one thread, and libraries run threads of their own.
    """
    if not _in_main_thread():
        yield
        return
    arrived: list[int] = []
    before: dict[int, Any] = {
        number: signal.signal(number, lambda received, _frame: arrived.append(received)) for number in _SIGNALS
    }
    try:
        yield
    finally:
        _restore(before)
        for number in arrived[:1]:
            signal.raise_signal(number)


def _in_main_thread() -> bool:
    """Whether handlers may be set here. Where nobody has imported ``threading``, there is no other thread."""
    threading = sys.modules.get("threading")
    return threading is None or threading.current_thread() is threading.main_thread()


def _restore(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
