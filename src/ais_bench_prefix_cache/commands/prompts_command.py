"""``prompts``: any number of prompts with controlled prefix sharing, as JSONL on stdout."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ais_bench_prefix_cache.commands.argument_types import integer
from ais_bench_prefix_cache.commands.quiet_start import load_quietly
from ais_bench_prefix_cache.foundation.codes import Code

if TYPE_CHECKING:
    from ais_bench_prefix_cache.prompts import TokenCounter

DESCRIPTION = (
    "Print one JSON object a line on stdout: prompts that are all the same (repeat), share nothing (unique) or begin "
    "with the prefix of one of N groups (shared-prefix). With --tokenizer every length is exact and prefixes are whole "
    "blocks; without, a word counts as a token. Memory does not grow with --count. The last line on stderr is the "
    "digest of all prompts."
)
EXAMPLES = (
    "prompts --mode unique --count 3 --input-tokens 64",
    "prompts --mode shared-prefix --shared-prefix-ratio 0.6 --count 8 --input-tokens 256 --tokenizer /models/Qwen3-8B",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``prompts``."""
    parser.add_argument("--mode", choices=("repeat", "unique", "shared-prefix"), default="unique")
    parser.add_argument("--count", type=integer, required=True, metavar="N", help="how many prompts")
    parser.add_argument("--input-tokens", type=integer, required=True, metavar="N", help="tokens of every prompt")
    parser.add_argument(
        "--shared-prefix-ratio",
        type=float,
        metavar="SHARE",
        help="shared-prefix: how much of a prompt the group's prefix covers, between 0 and 1",
    )
    parser.add_argument("--prefix-groups", type=integer, metavar="N", help="shared-prefix: how many groups (default 1)")
    parser.add_argument("--seed", type=integer, default=42, help="the same seed gives the same prompts (default 42)")
    parser.add_argument("--case", default="default", metavar="NAME", help="other cases share no prefix with this one")
    parser.add_argument("--phase", default="measured", metavar="NAME", help="nor do other phases, such as warmup")
    parser.add_argument("--tokenizer", metavar="DIR|NAME", help="the server's tokenizer: a directory or a hub name")
    parser.add_argument(
        "--tokenizer-revision", metavar="REVISION", help="branch, tag or commit of a tokenizer on the hub (its default)"
    )
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="allow Python code of the tokenizer's repository"
    )
    parser.add_argument(
        "--blocksize", type=integer, default=16, metavar="B", help="the server's block size (default 16)"
    )
    parser.add_argument(
        "--max-tokens", type=integer, metavar="N", help="add max_tokens to each row, as `extract` needs it"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Run ``prompts``; returns the exit code."""
    import json
    import sys

    from ais_bench_prefix_cache.commands.console import note
    from ais_bench_prefix_cache.foundation.errors import GenerationError, Problem
    from ais_bench_prefix_cache.prompts import GENERATOR_VERSION, PromptSource, PromptSpec
    from ais_bench_prefix_cache.prompts.prompt_rows import PromptRows

    spec = PromptSpec(arguments.mode, arguments.shared_prefix_ratio, arguments.prefix_groups)
    wrong = [
        Problem(Code.WRONG_OPTION, f"--{name.replace('_', '-')}", f"it is {value}", "a whole number from 1 up")
        for name in ("count", "input_tokens", "blocksize", "max_tokens")
        if (value := getattr(arguments, name)) is not None and value < 1
    ]
    if wrong:
        raise GenerationError(wrong)
    source = PromptSource(
        spec,
        counter=_counter(arguments),
        seed=arguments.seed,
        case_id=arguments.case,
        phase=arguments.phase,
        input_tokens=arguments.input_tokens,
    )
    source.warm()
    rows = PromptRows(arguments.max_tokens)
    output = sys.stdout.buffer
    for index in range(arguments.count):
        output.write(rows.line(index, source.take(index)))
        source.forget(index)
    output.flush()
    note(json.dumps({"digest": source.digest(), "generator_version": GENERATOR_VERSION}))
    return 0


def _counter(arguments: argparse.Namespace) -> TokenCounter:
    from ais_bench_prefix_cache.prompts import ExactTokens, WordEstimate

    if arguments.tokenizer is None:
        return WordEstimate()
    from ais_bench_prefix_cache.commands.option_names import named_by_options
    from ais_bench_prefix_cache.scenario.model import TokenizerConfig

    directory = Path(arguments.tokenizer)
    path = str(directory.resolve()) if directory.is_dir() else arguments.tokenizer
    with named_by_options():
        tokenizer = load_quietly(
            TokenizerConfig(path, arguments.blocksize, arguments.tokenizer_revision, arguments.trust_remote_code)
        )
    return ExactTokens(tokenizer, block_size=arguments.blocksize)
