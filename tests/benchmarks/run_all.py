"""All benchmarks, one after the other: ``python -m tests.benchmarks.run_all [--output FILE] [--quick]``.

Prints their tables as Markdown and, with ``--output``, writes them there, under a description of the machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from datetime import date
from pathlib import Path

from tests.benchmarks.measuring import PROJECT, compile_sources, environment, machine

SECTIONS = (
    ("Start-up", "bench_start_up"),
    ("Prompts", "bench_prepare"),
    ("Beside other tools", "bench_peers"),
    ("Planning: whole commands", "bench_inspect"),
    ("Planning: quality, and speed alone", "bench_planning"),
    ("Checking", "bench_validate"),
    ("Metrics", "bench_metrics"),
    ("Replaying a cache", "bench_replay"),
    ("Prompts on demand", "bench_prompt_sources"),
    ("Sending", "bench_sending"),
)
TAKE_TURNS = ("bench_prepare", "bench_inspect", "bench_validate")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="also write the tables to this file")
    parser.add_argument("--quick", action="store_true", help="one turn where long commands take turns")
    arguments = parser.parse_args()
    compile_sources()
    parts: list[str] = []

    def say(text: str) -> None:
        parts.append(text)
        print(text, flush=True)

    say(f"Measured on {date.today().isoformat()}: {machine()}")
    failed = []
    for title, script in SECTIONS:
        options = ["--times", "1"] if arguments.quick and script in TAKE_TURNS else []
        command = [sys.executable, "-m", f"tests.benchmarks.{script}", *options]
        finished = subprocess.run(command, cwd=PROJECT, env=environment(), stdout=subprocess.PIPE, text=True)
        say(f"\n## {title}\n\n`tests/benchmarks/{script}.py`\n\n{finished.stdout.strip()}")
        if finished.returncode:
            failed.append(script)
            say(f"\nThis benchmark ended with exit code {finished.returncode}.")
    if arguments.output is not None:
        arguments.output.write_text("\n".join(parts) + "\n", encoding="utf-8")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
