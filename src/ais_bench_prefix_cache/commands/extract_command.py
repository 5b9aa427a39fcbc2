"""``extract``: the requests of a data set without audit fields, also in other benchmarks' formats."""

from __future__ import annotations

import argparse
from pathlib import Path

from ais_bench_prefix_cache.commands.console import print_json
from ais_bench_prefix_cache.datasets.extraction import FORM_NAMES, FORMS_WITH_MODEL, default_output, extract
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError

DESCRIPTION = (
    "Read the JSONL of `distribution` (or any JSONL with question, answer and max_tokens) line by line and write only "
    "what a request needs. Prompts are not changed. An existing output file is replaced as a whole, or not at all."
)
EXAMPLES = (
    "extract outputs/job_20260825_123456/result/job_20260825_123456.full.jsonl -o requests.jsonl",
    "extract distribution.jsonl --format vllm-custom",
    "extract talk.full.jsonl --format aiperf-multi-turn",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the files and the format."""
    parser.add_argument("input", type=Path, metavar="FILE", help="JSONL with question, answer and max_tokens")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="default: beside the input, with _extracted (or _FORMAT) before the ending",
    )
    parser.add_argument(
        "--format",
        choices=FORM_NAMES,
        default="plain",
        help="plain (default): exactly question, answer and max_tokens; the others are read by vllm bench (custom), "
        "SGLang (openai), AIPerf, GuideLLM, evalscope perf (line_by_line) and OpenAI-compatible batch runners; "
        "…-multi-turn are made from the full.jsonl of conversations, for AIPerf and vLLM's multi-turn benchmark",
    )
    parser.add_argument("--model", metavar="NAME", help="the served model's name, which openai-batch carries")


def execute(arguments: argparse.Namespace) -> int:
    """Write the file and print where it is; returns the exit code."""
    needs_model = arguments.format in FORMS_WITH_MODEL
    if needs_model != (arguments.model is not None):
        message = f"--format {arguments.format} " + ("needs it" if needs_model else "has no place for it")
        raise ArtifactError.of(Code.WRONG_OPTION, "--model", message)
    output = arguments.output or default_output(arguments.input, arguments.format)
    record = extract(arguments.input, output, form=arguments.format, model=arguments.model)
    print_json({"output": str(output), "rows": record.rows, "format": arguments.format}, indent=None)
    return 0
