"""What commands print where: JSON on stdout, everything for people on stderr."""

from __future__ import annotations

import json

import pytest

from ais_bench_prefix_cache.commands.console import print_json, progress_bar, warn


def test_json_goes_to_stdout_and_warnings_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"数": 1})
    warn({"code": "TARGET_DEVIATION", "message": "m"})
    out, err = capsys.readouterr()
    assert json.loads(out) == {"数": 1}
    assert err == "warning [TARGET_DEVIATION] m\n"


def test_a_pipe_sees_a_line_for_every_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("Send", 40) as show:
        for done in range(1, 41):
            show(done)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("Send [") and lines[0].endswith("4/40  10%")
    assert lines[-1].endswith("40/40 100%")


def test_the_pace_counts_from_the_first_sign_of_life(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start before it is no slow request: 3 more in 3 s are 1 a second, and the last 6 take 6 s."""
    clock = iter([100.0, 103.0])
    monkeypatch.setattr("ais_bench_prefix_cache.commands.console.monotonic", lambda: next(clock))
    with progress_bar("Send", 10) as show:
        show(1)
        show(4)
    assert capsys.readouterr().err.splitlines() == [
        "Send [###---------------------------] 1/10  10%",
        "Send [############------------------] 4/10  40%  1/s, 6 s left",
    ]


def test_nothing_to_do_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("Send", 0) as show:
        show(0)
    assert capsys.readouterr() == ("", "")
