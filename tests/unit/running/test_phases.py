"""Phases of a run: times, log lines, and what is known after a failure."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone

import pytest

from ais_bench_prefix_cache.running.phases import Phases


def recorded(caplog: pytest.LogCaptureFixture) -> tuple[Phases, list[str]]:
    caplog.set_level(logging.INFO)
    ticks = iter(datetime(2026, 8, 25, 12, 0, 0, tzinfo=timezone.utc) + timedelta(seconds=1.5 * n) for n in range(9))
    said: list[str] = []
    seconds = iter(100 + 1.5 * n for n in range(9))
    return Phases(logging.getLogger("test-phases"), said.append, lambda: next(ticks), lambda: next(seconds)), said


def test_times_and_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    phases, said = recorded(caplog)
    with phases.enter("precheck"):
        phases.note("note: something")
    with phases.enter("reset"):
        pass
    assert phases.records == {
        "precheck": {
            "started_at": "2026-08-25T12:00:00.000+00:00",
            "finished_at": "2026-08-25T12:00:01.500+00:00",
            "seconds": 1.5,
        },
        "reset": {
            "started_at": "2026-08-25T12:00:03.000+00:00",
            "finished_at": "2026-08-25T12:00:04.500+00:00",
            "seconds": 1.5,
        },
    }
    assert said == ["note: something"]
    assert caplog.messages == [
        "precheck: started",
        "precheck: note: something",
        "precheck: finished after 1.500 s",
        "reset: started",
        "reset: finished after 1.500 s",
    ]


def test_the_phase_that_failed_is_known_and_not_recorded_as_finished(caplog: pytest.LogCaptureFixture) -> None:
    phases, _said = recorded(caplog)
    with pytest.raises(KeyboardInterrupt), phases.enter("formal"):
        raise KeyboardInterrupt
    assert phases.current == "formal"
    assert phases.records == {}


def test_a_clock_that_goes_back_is_noticed_and_changes_no_duration(caplog: pytest.LogCaptureFixture) -> None:
    noon = datetime(2026, 8, 25, 12, 0, 0, tzinfo=timezone.utc)
    times, seconds, said = iter([noon, noon - timedelta(hours=1)]), iter([7.0, 9.5]), []  # type: ignore[var-annotated]
    phases = Phases(logging.getLogger("test-phases"), said.append, lambda: next(times), lambda: next(seconds))
    with phases.enter("reset"):
        pass
    assert phases.records["reset"]["seconds"] == 2.5
    assert said == ["note: the computer's clock was set back meanwhile: times of day are wrong, durations are not"]
