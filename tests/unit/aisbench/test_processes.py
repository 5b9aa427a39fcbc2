"""A family of processes is found and ended whole; what it says is kept within bounds."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ais_bench_prefix_cache.aisbench.processes import ProcessFamily


def _family(script: str, tmp_path: Path, **replacements: str) -> ProcessFamily:
    return ProcessFamily(
        ["bash", "-c", script],
        cwd=tmp_path,
        environment={"PATH": os.environ["PATH"]},
        log=tmp_path / "log",
        replacements=replacements,
    )


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _pids(tmp_path: Path, count: int) -> list[int]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        words = (tmp_path / "pids").read_text().split() if (tmp_path / "pids").exists() else []
        if len(words) == count:
            return [int(word) for word in words]
        time.sleep(0.02)
    raise AssertionError("the family did not start")


def test_everyone_is_ended_also_in_another_session_and_deaf_to_sigterm(tmp_path: Path) -> None:
    script = """
    setsid bash -c 'trap "" TERM; echo $$ >> pids; while :; do sleep 0.1; done' &
    bash -c 'echo $$ >> pids; while :; do sleep 0.1; done' &
    echo $$ >> pids
    wait
    """
    family = _family(script, tmp_path)
    pids = _pids(tmp_path, 3)
    assert all(_is_alive(pid) for pid in pids)
    family.end()
    assert not any(_is_alive(pid) for pid in pids)


def test_children_that_outlive_the_command_are_ended(tmp_path: Path) -> None:
    family = _family("setsid bash -c 'echo $$ >> pids; while :; do sleep 0.1; done' & sleep 0.2; exit 3", tmp_path)
    (orphan,) = _pids(tmp_path, 1)
    assert family.wait(20) == 3
    assert _is_alive(orphan)
    family.end()
    assert not _is_alive(orphan)


def test_output_is_kept_without_bars_colours_and_secrets(tmp_path: Path) -> None:
    script = r"""printf 'one \033[32mgreen\033[0m key-123\n'
    printf 'Progress:  10%%|#  | 1/10 [00:01<00:09]\rbar\rend of bar\n'
    printf '\033[APOST=3 (1.0/s)\nProgress:   0%%|  | 0/12\n' >&2
    printf 'last, without end'"""
    family = _family(script, tmp_path, **{"key-123": "***"})
    assert family.wait(20) == 0
    family.end()
    expected = ["one green ***", "end of bar", "last, without end"]
    assert list(family.tail) == expected
    assert (tmp_path / "log").read_text().splitlines() == expected


def test_the_log_is_bounded_and_the_tail_goes_on(tmp_path: Path) -> None:
    family = _family("yes 'a line of thirty characters xx' | head -n 600000; echo the end", tmp_path)
    assert family.wait(60) == 0
    family.end()
    assert (tmp_path / "log").stat().st_size < 9 * 1024 * 1024
    assert family.tail[-1] == "the end"
    assert len(family.tail) == 60
