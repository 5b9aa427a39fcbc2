"""How many requests a second one process sends to a server that answers at once, beside an earlier commit.

Each version sends in turn, by the real AISBench, in processes of its own. Only the time between the first request and
the last answer counts; a run's start and summary are shown beside it.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import PROJECT, environment, find_data, print_bars, verdict

BEFORE = "571271d"
BAR = 0.2


@contextmanager
def stub() -> Iterator[int]:
    """The port of a running stub."""
    command = [sys.executable, "-m", "tests.benchmarks.stub_server"]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.terminate()


def source_of(commit: str, directory: Path) -> Path:
    """The source of a commit, unpacked; ends the benchmark where this checkout does not have it."""
    archive = subprocess.run(["git", "archive", commit, "src"], cwd=PROJECT, capture_output=True)
    if archive.returncode:
        raise SystemExit(f"this checkout has no commit {commit}: {archive.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(directory, filter="data")
    return directory / "src"


def send(source: Path, port: int, requests: int, words: int, batch_size: int, tokenizer: Path) -> dict[str, Any]:
    """One sending with the package in ``source``."""
    with tempfile.TemporaryDirectory() as directory:
        arguments = [directory, str(port), str(requests), str(words), str(batch_size), str(tokenizer)]
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.send_rows", *arguments],
            cwd=PROJECT,
            env={**environment(), "PYTHONPATH": str(source)},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", default=BEFORE, metavar="COMMIT", help=f"compare with this commit ({BEFORE})")
    parser.add_argument("--requests", type=int, default=3000, metavar="N", help="requests a sending (3000)")
    parser.add_argument("--times", type=int, default=1, metavar="N", help="turns (1)")
    arguments = parser.parse_args()
    tokenizer = find_data().tokenizer
    print("| version | words | batch_size | requests | requests a second | whole run | peak memory |")
    print("|---|---|---|---|---|---|---|")
    ratios, memory = [], []
    with tempfile.TemporaryDirectory() as directory, stub() as port:
        versions = {arguments.beside: source_of(arguments.beside, Path(directory)), "now": PROJECT / "src"}

        def show(version: str, requests: int, words: int, batch_size: int) -> dict[str, Any]:
            figures = send(versions[version], port, requests, words, batch_size, tokenizer)
            print(
                f"| {version} | {words} | {batch_size} | {requests:,} | {figures['requests_a_second']:.0f} | "
                f"{figures['wall']:.1f} s | {figures['peak_mb']:.0f} MB |",
                flush=True,
            )
            return figures

        for _ in range(arguments.times):
            before = show(arguments.beside, arguments.requests, 64, 100)
            now = show("now", arguments.requests, 64, 100)
            ratios.append(before["requests_a_second"] / now["requests_a_second"])
        for requests in (arguments.requests // 3, arguments.requests):
            memory.append(show("now", requests, 4096, 100)["peak_mb"])
        show("now", arguments.requests, 64, 1)
    more = 1000 * (memory[1] - memory[0]) / (arguments.requests - arguments.requests // 3)
    print(f"\nEach request of 4,096 words more takes {more:.0f} kB of memory.\n")
    asked = verdict(statistics.median(ratios), BAR)
    print_bars([f"| time a request takes in one process, beside {arguments.beside} in the same run | {asked} |"])


if __name__ == "__main__":
    main()
