"""Ranges are put together in order, whoever made them; workers end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ais_bench_prefix_cache.datasets.range_workers import made_in_order, requests_in_a_range


class Tenths:
    """Takes the longer the earlier a range comes, and says who made it."""

    def begin(self) -> Callable[[int], tuple[int, int]]:
        return self.make

    def make(self, part: int) -> tuple[int, int]:
        time.sleep((5 - part) / 100)
        return part, os.getpid()


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_ranges_come_in_order(workers: int) -> None:
    made = list(made_in_order(Tenths(), iter(range(6)), workers=workers))
    assert [part for part, _ in made] == [0, 1, 2, 3, 4, 5]
    assert (os.getpid() in {process for _, process in made}) is (workers == 1)


def test_ranges_hold_about_a_million_tokens() -> None:
    assert requests_in_a_range(10_000 * 4096, 10_000) == 256
    assert requests_in_a_range(1 << 30, 1) == 1


PARENT = """
import os, time
from ais_bench_prefix_cache.datasets.range_workers import made_in_order

class Slow:
    def begin(self): return self.make
    def make(self, part):
        print(os.getpid(), flush=True)
        time.sleep(60)

if __name__ == "__main__":
    list(made_in_order(Slow(), iter(range(8)), workers=2))
"""


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while any(alive(worker) for worker in workers):
        assert time.monotonic() < deadline, "a worker is left"
        time.sleep(0.05)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
