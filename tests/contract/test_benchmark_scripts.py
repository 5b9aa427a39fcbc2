"""Every benchmark starts, and `make bench` runs them all."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
SCRIPTS = sorted(path.stem for path in BENCHMARKS.glob("bench_*.py"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_benchmark_script_knows_its_options(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"tests.benchmarks.{script}", "--help"],
        cwd=BENCHMARKS.parents[1],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout.startswith("usage: ")) == (0, True), done.stderr


def test_the_plan_of_a_large_load_is_arithmetic() -> None:
    """5,000 requests a second of 1.2 + 0.4096 + 64 x 0.028 ms are 17 cores; at 70 % each 25. Bytes are 4.6 a token."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.plan_scale"],
        cwd=BENCHMARKS.parents[1],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    rows = dict(re.findall(r"^\| (.+) \| (.+) \|$", done.stdout, re.MULTILINE))
    assert rows["senders, a core each"] == "25, 200 requests/s each"
    assert rows["data set on the shared directory"] == "188 GB"
    assert rows["time to send"] == "0.56 h"
    assert rows["time to prepare, one core"] == "0.9 h"
    assert rows["first limit"].startswith("memory of the coordinator")


def test_make_bench_runs_every_script() -> None:
    listed = re.findall(r'"(bench_\w+)"\),', (BENCHMARKS / "run_all.py").read_text(encoding="utf-8"))
    assert sorted(listed) == SCRIPTS
