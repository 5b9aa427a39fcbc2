"""Faults of runs on a Ray cluster of two nodes; started inside a network namespace, with the cluster's words in place.

Usage: ``python -m tests.doubles.ray_faults SCENARIO PREPARED SERVER RAY``; PREPARED is what ``prepare`` printed. Prints
one JSON object a fault.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

FAULTS = ("SIGINT", "coordinator", "actor", "node")


def processes(*words: str) -> list[int]:
    """The living processes whose command line holds all of the words."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            zombie = "zombie" in (entry / "status").read_text()
        except OSError:
            continue
        if not zombie and all(word in line for word in words):
            found.append(int(entry.name))
    return found


def of_the_run() -> list[int]:
    """Processes of a run, on any node: actors, generators, AISBench."""
    return [*processes("ray::_Actor"), *processes("aisbench.generator"), *processes("ais_bench.benchmark")]


def answered(server: str) -> int:
    """How many requests the server has finished."""
    with urllib.request.urlopen(f"{server}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    counts = re.findall(r"^vllm:request_success_total\{.*\} (\S+)$", text, re.MULTILINE)
    return int(sum(map(float, counts)))


def until(happened: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def strike(fault: str, run: subprocess.Popen[str]) -> None:
    if fault == "SIGINT":
        run.send_signal(signal.SIGINT)
        return
    victims = {
        "coordinator": lambda: [run.pid],
        "actor": lambda: processes("ray::_Actor")[:1],
        "node": lambda: processes("raylet/raylet", "--node_ip_address=127.0.0.2"),
    }[fault]()
    assert len(victims) == 1, (fault, victims)
    os.kill(victims[0], signal.SIGKILL)


def _take_ctrl_c() -> None:
    """Also where the tests run in the background of a shell, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> None:
    scenario, prepared, server, ray = sys.argv[1:]
    analysis = Path(json.loads(Path(prepared).read_text())["analysis"])
    for fault in FAULTS:
        before, sent = analysis.read_bytes(), answered(server)
        words = [sys.executable, "-m", "ais_bench_prefix_cache", "run", "--scenario", scenario, "--ray", ray]
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_take_ctrl_c
        ) as run:
            deadline = time.monotonic() + 200
            while answered(server) < sent + 12 and run.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            assert run.poll() is None, run.communicate()[1]
            started = time.monotonic()
            strike(fault, run)
            stdout, stderr = run.communicate(timeout=200)
            seconds = time.monotonic() - started
        until(lambda: not of_the_run(), 20)
        finished = answered(server)
        time.sleep(1)
        lines = stderr.splitlines()
        print(
            json.dumps(
                {
                    "fault": fault,
                    "code": run.returncode,
                    "seconds": round(seconds, 1),
                    "last_line": lines[-1] if lines else "",
                    "errors": [line for line in lines if line.startswith("error [")],
                    "traceback": "Traceback" in stderr,
                    "stdout": stdout,
                    "analysis_unchanged": analysis.read_bytes() == before,
                    "left": of_the_run(),
                    "sent": finished - sent,
                    "sent_afterwards": answered(server) - finished,
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
