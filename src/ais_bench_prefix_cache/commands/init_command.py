"""``init``: a Scenario from what a running server tells of itself."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.commands.console import note, print_json
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import EXIT_OK, ScenarioError
from ais_bench_prefix_cache.foundation.names import API_KEY_VARIABLE

if TYPE_CHECKING:
    from ais_bench_prefix_cache.service.discovery import DiscoveredServer

DESCRIPTION = (
    "Ask a running server for its model, block size and data-parallel ranks (/v1/models and /metrics) and write a "
    "Scenario that fits it. A key, if the server wants one, is taken from the environment variable "
    f"{API_KEY_VARIABLE}."
)
EXAMPLES = ("init --url http://127.0.0.1:8000 --tokenizer /models/Qwen3-8B --corpus GSM8K.jsonl",)

DEFAULT_BLOCK_SIZE = 16
LONGEST_INPUT = 1024
OUTPUT_TOKENS = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the server, the file, and what no server tells."""
    parser.add_argument("--url", required=True, help="the server, for example http://127.0.0.1:8000")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("scenario.json"),
        metavar="FILE",
        help="the Scenario to write (default: %(default)s)",
    )
    parser.add_argument(
        "--tokenizer", type=Path, metavar="DIR", help="directory of the served model's tokenizer; no server tells it"
    )
    parser.add_argument("--corpus", type=Path, metavar="FILE", help="JSONL with natural text, such as GSM8K's rows")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")


def execute(arguments: argparse.Namespace) -> int:
    """Write the file and print what was found; returns the exit code."""
    # httpx and the readers of metrics are only for commands that send.
    from ais_bench_prefix_cache.datasets.format.writing import write_document
    from ais_bench_prefix_cache.service.client import ServiceClient
    from ais_bench_prefix_cache.service.discovery import discover, service_config_of

    output: Path = arguments.output
    if output.exists() and not arguments.overwrite:
        raise ScenarioError.of(
            Code.FILE_EXISTS, str(output), "the file exists already", hint="Allow it with --overwrite."
        )
    if not re.match(r"https?://[^/]", arguments.url):
        raise ScenarioError.of(Code.WRONG_URL, "--url", "this is no server", allowed="http://host:port")
    with ServiceClient(service_config_of(arguments.url, os.environ.get(API_KEY_VARIABLE, ""), 30.0)) as client:
        server = discover(client)
    document = scenario_document(server, tokenizer=arguments.tokenizer, corpus=arguments.corpus)
    write_document(output, document)
    if server.other_models:
        note(f"note: the server also serves {', '.join(server.other_models)}; service.model is {server.model}")
    if server.block_size is None:
        note(f"note: the server does not tell its block size; tokenizer.block_size is {DEFAULT_BLOCK_SIZE}: check it")
    if arguments.tokenizer is None:
        note("note: set tokenizer.path to the directory of the served model's tokenizer")
    if arguments.corpus is None:
        note("note: set corpus.path to a JSONL file of natural text")
    note(f"next: ais-bench-prefix-cache inspect --scenario {output}")
    print_json(
        {
            "scenario": str(output),
            "model": server.model,
            "engine": server.family,
            "dp_size": server.engines,
            "block_size": server.block_size,
            "max_model_len": server.max_model_len,
        },
        indent=None,
    )
    return EXIT_OK


def scenario_document(server: DiscoveredServer, *, tokenizer: Path | None, corpus: Path | None) -> dict[str, Any]:
    """The Scenario: what the server told, and a first question of 100 requests at a hit rate of 60 %."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", server.model.rstrip("/").rpartition("/")[2]).strip(".-") or "model"
    longest = LONGEST_INPUT if server.max_model_len is None else server.max_model_len - OUTPUT_TOKENS
    return {
        "schema_version": "1.0",
        "run": {"run_id": name, "random_seed": 42, "output_dir": f"./outputs/{name}"},
        "tokenizer": {
            "path": "/path/to/tokenizer" if tokenizer is None else str(tokenizer.absolute()),
            "block_size": server.block_size or DEFAULT_BLOCK_SIZE,
        },
        "corpus": {"path": "./GSM8K.jsonl" if corpus is None else str(corpus.absolute())},
        "requests": {
            "count": 100,
            "input_length": {"mode": "fixed", "value": max(1, min(LONGEST_INPUT, longest))},
            "output_length": {"mode": "fixed", "value": OUTPUT_TOKENS},
        },
        "prefix_cache": {"mode": "warmup", "target_hit_rate": 0.6},
        "service": {
            "inference_url": f"{server.url}/v1/completions",
            "metrics_url": f"{server.url}/metrics",
            "reset_url": f"{server.url}/{'flush_cache' if server.family == 'sglang' else 'reset_prefix_cache'}",
            "model": server.model,
            "dp_size": server.engines,
            "engine": server.family if server.family in ("vllm", "sglang") else "auto",
        },
        "aisbench": {"model": {"batch_size": 8}},
    }
