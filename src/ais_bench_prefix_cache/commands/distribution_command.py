"""``distribution``: a data set whose prompts copy the beginning of earlier ones."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.commands.argument_types import integer
from ais_bench_prefix_cache.commands.quiet_start import load_quietly
from ais_bench_prefix_cache.foundation.codes import Code

if TYPE_CHECKING:
    from ais_bench_prefix_cache.datasets.copies.request_lengths import InputLengths, OutputLengths

DESCRIPTION = (
    "Make prompts of given lengths, each of which copies the beginning of one of the prompts before it, so that a "
    "given share of all input tokens is repeated. Lengths and prefixes are exact to the token for the tokenizer. "
    "Writes NAME.jsonl, the audit file NAME.prefixes.jsonl and, last, NAME.manifest.json for `validate`; an existing "
    "name gets _1, _2, … Prints one JSON object with the paths and the shares."
)
EXAMPLES = (
    "distribution --distribution 0-1024:50,1024-4096:50 --repeat-rate 0.5 --output-len 32 --tokenizer /models/Qwen3-8B",
    "distribution --input-len 512 --num-prompts 100 --repeat-rate 0.8 --output-len 32 --tokenizer /models/Qwen3-8B",
)

DEFAULT_CORPUS = Path("GSM8K.jsonl")
DEFAULT_OUTPUT = Path("distribution.jsonl")
DEFAULT_PREFIX_COUNT = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``distribution``."""
    lengths = parser.add_argument_group("input lengths, exactly one of")
    lengths.add_argument(
        "--distribution",
        metavar="LOW-HIGH:COUNT,…",
        help="COUNT lengths, uniform in each interval (both ends included), or a .txt file that holds this",
    )
    lengths.add_argument(
        "--input-token-csv",
        type=Path,
        metavar="FILE",
        help="a CSV file with the column input_prompt_tokens, one row a prompt",
    )
    lengths.add_argument(
        "--input-len", type=integer, metavar="N", help="every prompt has N tokens (with --num-prompts)"
    )
    lengths.add_argument("--num-prompts", type=integer, metavar="M", help="how many prompts --input-len makes")
    lengths.add_argument(
        "--order",
        choices=("random", "increasing"),
        default="random",
        help="the order of the lengths of --distribution: shuffled (default) or sorted",
    )
    cache = parser.add_argument_group("prefixes")
    cache.add_argument(
        "--repeat-rate",
        type=float,
        required=True,
        metavar="SHARE",
        help="the share of all input tokens that are to be copied prefixes, 0 to 1",
    )
    cache.add_argument(
        "--blocksize",
        type=integer,
        default=16,
        metavar="B",
        help="the server's block size: prompts of B tokens and more copy whole blocks (default 16)",
    )
    cache.add_argument(
        "--prefix-count",
        type=integer,
        default=DEFAULT_PREFIX_COUNT,
        metavar="K",
        help=f"how many of the latest prompts may be copied from (default {DEFAULT_PREFIX_COUNT})",
    )
    cache.add_argument(
        "--prefix-algorithm",
        choices=("uniform", "zipf"),
        default="uniform",
        help="how the copied tokens are shared among prompts: evenly (default) or by Zipf weights",
    )
    cache.add_argument(
        "--zipf-exponent", type=float, default=1.0, metavar="S", help="exponent of the Zipf weights (default 1.0)"
    )
    output = parser.add_argument_group("output lengths (max_tokens)")
    output.add_argument(
        "--output-length-mode",
        choices=("fixed", "truncated-normal", "uniform", "custom"),
        default="fixed",
        help="fixed (default) uses --output-len; truncated-normal (always the same numbers, seed 0) and uniform draw "
        "from --min-output-len to --max-output-len; custom reads output_tokens from the CSV of --input-token-csv",
    )
    output.add_argument("--output-len", type=integer, metavar="N", help="max_tokens of every row (fixed)")
    output.add_argument("--min-output-len", type=integer, metavar="A", help="least max_tokens")
    output.add_argument("--max-output-len", type=integer, metavar="B", help="greatest max_tokens")
    parser.add_argument("--seed", type=integer, default=42, help="the same seed gives the same bytes (default 42)")
    parser.add_argument(
        "--tokenizer", required=True, metavar="DIR|NAME", help="the server's tokenizer: a directory or a hub name"
    )
    parser.add_argument(
        "--tokenizer-revision", metavar="REVISION", help="branch, tag or commit of a tokenizer on the hub (its default)"
    )
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="allow Python code of the tokenizer's repository"
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        default=DEFAULT_CORPUS,
        metavar="FILE",
        help=f"JSONL with a question or text in each row (default {DEFAULT_CORPUS})",
    )
    parser.add_argument(
        "--output", type=Path, default=DEFAULT_OUTPUT, metavar="FILE", help=f"the main file (default {DEFAULT_OUTPUT})"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Run ``distribution``; returns the exit code."""
    from ais_bench_prefix_cache.commands.option_names import named_by_options

    inputs, outputs = _checked(arguments)
    with named_by_options():
        return _generate(arguments, inputs, outputs)


def _generate(arguments: argparse.Namespace, inputs: InputLengths, outputs: OutputLengths) -> int:
    from ais_bench_prefix_cache.commands.console import note, print_json, progress_bar
    from ais_bench_prefix_cache.datasets.copies.copied_prompts import CopiedPrompts
    from ais_bench_prefix_cache.datasets.copies.copy_paths import claim_names
    from ais_bench_prefix_cache.datasets.copies.kind import CORPUS_FIELDS, KIND, copy_content, copy_origin
    from ais_bench_prefix_cache.datasets.copies.request_lengths import input_column, output_column
    from ais_bench_prefix_cache.datasets.format.engine import write_data_set
    from ais_bench_prefix_cache.datasets.format.writing import PARTIAL_SUFFIX
    from ais_bench_prefix_cache.exact_text.corpus import load_corpus
    from ais_bench_prefix_cache.scenario.model import TokenizerConfig

    input_tokens = input_column(inputs, arguments.seed)
    max_tokens = output_column(outputs, inputs.csv, len(input_tokens), arguments.seed)
    corpus = load_corpus(arguments.corpus, *CORPUS_FIELDS)
    directory = Path(arguments.tokenizer)
    path = str(directory.resolve()) if directory.is_dir() else arguments.tokenizer
    config = TokenizerConfig(path, arguments.blocksize, arguments.tokenizer_revision, arguments.trust_remote_code)
    tokenizer = load_quietly(config)
    prompts = CopiedPrompts(
        input_tokens,
        arguments.repeat_rate,
        tokenizer=tokenizer,
        corpus=corpus,
        block_size=arguments.blocksize,
        window=arguments.prefix_count,
        algorithm=arguments.prefix_algorithm,
        exponent=arguments.zipf_exponent,
        seed=arguments.seed,
    )
    paths = claim_names(arguments.output)
    effective = _effective_config(arguments, inputs, outputs, config)
    try:
        content = copy_content(prompts, max_tokens, effective, paths.origins)
        origin = copy_origin(effective, corpus.sha256, tokenizer.identity())
        with progress_bar("Generate prompts", len(prompts)) as show:
            manifest, _ = write_data_set(KIND, paths, content, origin, replace=False, show=show)
    finally:
        paths.requests.with_name(f".{paths.requests.name}{PARTIAL_SUFFIX}").unlink(missing_ok=True)
    cache = manifest["prefix_cache"]
    if cache["prefix_tokens"] != cache["requested_prefix_tokens"]:
        reason = "the nearest total in whole blocks"
        if cache["requested_prefix_tokens"] > cache["reachable_prefix_tokens"]:
            reason = "the cold first prompt, the lengths, whole blocks and --prefix-count allow no more"
        note(
            f"note: {cache['prefix_tokens']} tokens are copied prefixes, {cache['requested_prefix_tokens']} were asked "
            f"for: {reason}"
        )
    print_json(
        {
            "requests": str(paths.requests),
            "prefixes": str(paths.origins),
            "manifest": str(paths.manifest),
            "rows": manifest["requests"]["count"],
            "input_tokens": manifest["requests"]["total_input_tokens"],
            "requested_repeat_rate": cache["requested_repeat_rate"],
            "repeat_rate": cache["repeat_rate"],
            "replay_hit_rate": cache["replay_hit_rate"],
        },
        indent=None,
    )
    return 0


def _checked(arguments: argparse.Namespace) -> tuple[InputLengths, OutputLengths]:
    """The two specifications of lengths. Raises with every option that is missing, out of range or does not belong."""
    from math import isfinite

    from ais_bench_prefix_cache.datasets.copies.request_lengths import InputLengths, OutputLengths, parse_ranges
    from ais_bench_prefix_cache.foundation.errors import GenerationError, Problem

    problems: list[Problem] = []

    def refuse(option: str, message: str, allowed: str | None = None, hint: str | None = None) -> None:
        problems.append(Problem(Code.WRONG_OPTION, option, message, allowed, hint))

    given = {
        "--distribution": arguments.distribution is not None,
        "--input-token-csv": arguments.input_token_csv is not None,
        "--input-len": arguments.input_len is not None or arguments.num_prompts is not None,
    }
    chosen = [name for name, is_given in given.items() if is_given]
    if len(chosen) != 1:
        found = " and ".join(chosen) + " were given" if chosen else "no source of input lengths was given"
        refuse(
            "input lengths", found, "exactly one of --distribution, --input-token-csv, --input-len with --num-prompts"
        )
    if given["--input-len"]:
        for option, value in (("--input-len", arguments.input_len), ("--num-prompts", arguments.num_prompts)):
            if value is None or value < 1:
                refuse(option, "it is missing" if value is None else f"it is {value}", "a whole number from 1 up")
    if not 0 <= arguments.repeat_rate <= 1:
        refuse("--repeat-rate", f"it is {arguments.repeat_rate}", "0 to 1")
    for option, value in (("--blocksize", arguments.blocksize), ("--prefix-count", arguments.prefix_count)):
        if value < 1:
            refuse(option, f"it is {value}", "a whole number from 1 up")
    if not (isfinite(arguments.zipf_exponent) and 0 <= arguments.zipf_exponent <= 100):
        refuse("--zipf-exponent", f"it is {arguments.zipf_exponent}", "0 to 100")

    mode = arguments.output_length_mode
    needs = {"fixed": ("--output-len",), "custom": ()}.get(mode, ("--min-output-len", "--max-output-len"))
    bounds = {
        "--output-len": arguments.output_len,
        "--min-output-len": arguments.min_output_len,
        "--max-output-len": arguments.max_output_len,
    }
    for option, value in bounds.items():
        if option in needs and (value is None or value < 1):
            refuse(
                option,
                f"--output-length-mode {mode} needs it" if value is None else f"it is {value}",
                "a whole number from 1 up",
            )
        elif option not in needs and value is not None:
            refuse(option, f"it has no meaning with --output-length-mode {mode}")
    low, high = arguments.min_output_len, arguments.max_output_len
    if len(needs) == 2 and low is not None and high is not None and 1 <= high < low:
        refuse("--max-output-len", f"it is {high}, less than --min-output-len {low}")
    if mode == "custom" and not given["--input-token-csv"]:
        refuse(
            "--output-length-mode",
            "custom reads the column output_tokens of the file that gives the input lengths",
            hint="Give both columns in one CSV file, with --input-token-csv.",
        )
    ranges: Any = ()
    if arguments.distribution is not None:
        try:
            ranges = parse_ranges(arguments.distribution)
        except GenerationError as error:
            problems.extend(error.problems)
    if problems:
        raise GenerationError(problems)
    fixed = (arguments.input_len, arguments.num_prompts) if given["--input-len"] else None
    return (
        InputLengths(ranges, arguments.order, arguments.input_token_csv, fixed),
        OutputLengths(mode, arguments.output_len, low, high),
    )


def _effective_config(
    arguments: argparse.Namespace, inputs: InputLengths, outputs: OutputLengths, config: Any
) -> dict[str, Any]:
    """Everything that decides the files, and nothing else."""
    from ais_bench_prefix_cache.datasets.copies.kind import CORPUS_FIELDS

    return {
        "input_lengths": {
            "distribution": [[part.min, part.max, part.count] for part in inputs.ranges] or None,
            "order": inputs.order if inputs.ranges else None,
            "input_token_csv": str(inputs.csv) if inputs.csv else None,
            "input_len": inputs.fixed[0] if inputs.fixed else None,
            "num_prompts": inputs.fixed[1] if inputs.fixed else None,
        },
        "output_lengths": {
            "mode": outputs.mode,
            "output_len": outputs.value,
            "min_output_len": outputs.low,
            "max_output_len": outputs.high,
        },
        "repeat_rate": arguments.repeat_rate,
        "prefix_count": arguments.prefix_count,
        "prefix_algorithm": arguments.prefix_algorithm,
        "zipf_exponent": arguments.zipf_exponent if arguments.prefix_algorithm == "zipf" else None,
        "seed": arguments.seed,
        "corpus": {"path": str(arguments.corpus.absolute()), "fields": list(CORPUS_FIELDS)},
        "tokenizer": {
            "path": config.path,
            "block_size": config.block_size,
            "revision": config.revision,
            "trust_remote_code": config.trust_remote_code,
        },
    }
