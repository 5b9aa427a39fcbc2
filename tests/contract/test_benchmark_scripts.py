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


def test_make_bench_runs_every_script() -> None:
    listed = re.findall(r'"(bench_\w+)"\),', (BENCHMARKS / "run_all.py").read_text(encoding="utf-8"))
    assert sorted(listed) == SCRIPTS
