"""SIGINT and SIGTERM in this very process: what the first does, and what later ones no longer do."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from ais_bench_prefix_cache.foundation.errors import Terminated
from ais_bench_prefix_cache.foundation.interruptions import ended_by_the_first_signal, signals_held

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def handlers_of_the_tests() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("first", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)], ids=["SIGINT", "SIGTERM"]
)
def test_the_first_signal_is_the_last(first: signal.Signals, raised: type[BaseException]) -> None:
    cleaned_up = False
    with pytest.raises(raised), ended_by_the_first_signal():
        try:
            signal.raise_signal(first)
        finally:
            for number in SIGNALS * 2:
                signal.raise_signal(number)
            cleaned_up = True
    assert cleaned_up
    # Also on the way out of the process.
    assert [signal.getsignal(number) for number in SIGNALS] == [signal.SIG_IGN, signal.SIG_IGN]


def test_a_block_without_a_signal_leaves_no_trace() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with ended_by_the_first_signal():
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_background_job_goes_on_ignoring_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with ended_by_the_first_signal():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_held_signal_takes_effect_after_the_block() -> None:
    finished = False
    with pytest.raises(Terminated), ended_by_the_first_signal(), signals_held():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        finished = True
    assert finished
