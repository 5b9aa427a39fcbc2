"""Speed of the command `prompts` against one plain encode pass over the same prompts.

    python tests/benchmarks/bench_prompt_sources.py [--tokenizer DIR] [--prompts 20000] [--tokens 1024]

Prints one JSON object: tokens a second of the rows as `prompts` writes them (text, digest, JSON), of a plain encode
pass with the tokenizer, and their ratio; by the clock and, for a machine that others use, too, by CPU time. Loading the
tokenizer is not part of either.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import resource
import sys
import time
from pathlib import Path

from ais_bench_prefix_cache.cli import build_parser
from ais_bench_prefix_cache.commands import prompts_command
from ais_bench_prefix_cache.prompts import ExactTokens, PromptSource, PromptSpec, WordEstimate
from ais_bench_prefix_cache.prompts.tokenizer import load_tokenizer
from ais_bench_prefix_cache.scenario.model import TokenizerConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--prompts", type=int, default=20_000)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--plain-prompts", type=int, default=300, help="prompts of the plain pass")
    arguments = parser.parse_args()
    tokenizer = None
    if arguments.tokenizer is not None:
        tokenizer = load_tokenizer(TokenizerConfig(str(arguments.tokenizer), 16, None, False))
    counter = WordEstimate() if tokenizer is None else ExactTokens(tokenizer, block_size=16)
    report: dict[str, object] = {"prompts": arguments.prompts, "tokens_each": arguments.tokens, "cpus": os.cpu_count()}
    for mode in ("repeat", "unique", "shared-prefix"):
        options = ["--shared-prefix-ratio", "0.5", "--prefix-groups", "4"] if mode == "shared-prefix" else []
        command = build_parser("prompts").parse_args(
            [
                *("prompts", "--mode", mode, "--count", str(arguments.prompts)),
                *("--input-tokens", str(arguments.tokens), *options),
            ]
        )
        original, standard_output = prompts_command._counter, sys.stdout
        prompts_command._counter = lambda _arguments: counter  # type: ignore[assignment]
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(io.StringIO()):  # noqa: PTH123
            sys.stdout = nowhere
            started, cpu_started = time.perf_counter(), time.process_time()
            prompts_command.execute(command)
            seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        sys.stdout, prompts_command._counter = standard_output, original
        tokens = arguments.prompts * arguments.tokens
        report[f"{mode}_tokens_per_second"] = round(tokens / seconds)
        report[f"{mode}_tokens_per_cpu_second"] = round(tokens / cpu_seconds)
    report["peak_memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    if tokenizer is not None:
        source = PromptSource(
            PromptSpec("unique"), counter=counter, seed=42, case_id="default", phase="x", input_tokens=arguments.tokens
        )
        texts = [source.prompt(index).text for index in range(arguments.plain_prompts)]
        started, cpu_started = time.perf_counter(), time.process_time()
        encoded = sum(map(len, tokenizer.encode_batch(texts)))
        report["plain_tokens_per_second"] = round(encoded / (time.perf_counter() - started))
        plain = encoded / (time.process_time() - cpu_started)
        report["plain_tokens_per_cpu_second"] = round(plain)
        ratio = report["unique_tokens_per_cpu_second"] / plain  # type: ignore[operator]
        report["unique_times_plain_by_cpu"] = round(ratio, 1)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
