"""``serve``: the embedded vLLM-like server."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields
from pathlib import Path

from ais_bench_prefix_cache.commands.console import print_json
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import EXIT_OK
from ais_bench_prefix_cache.server.configuration import ENGINES, RESET_MODES, ServerConfiguration, ServerError

DESCRIPTION = (
    "Runs a small server that imitates vLLM or SGLang where this tool touches it: completions, chat, tokenization, "
    "metrics, cache reset, data-parallel ranks, and a cache that keeps and counts as theirs do. It needs no model: "
    'answers are made up. Once it accepts requests it prints one line of JSON on stdout, {"url": ..., "pid": ...}. '
    "SIGINT and SIGTERM end it."
)
EXAMPLES = (
    "serve --tokenizer /models/Qwen3-8B --model Qwen3-8B --port 8000",
    "serve --tokenizer /models/Qwen3-8B --data-parallel-size 2 --prefill-tokens-per-second 5000",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``serve``; their defaults are those of ``ServerConfiguration``."""
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="DIR", help="directory of the tokenizer")
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default=ServerConfiguration.engine,
        help="the server to imitate (default: %(default)s)",
    )
    parser.add_argument(
        "--model", default=ServerConfiguration.model, metavar="NAME", help="model name (default: %(default)s)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port; 0 takes a free one (default: %(default)s)")
    parser.add_argument(
        "--api-key-env", metavar="NAME", help="environment variable that holds the key which /v1 then requires"
    )

    parser.add_argument(
        "--max-body-bytes",
        type=int,
        default=ServerConfiguration.max_body_bytes,
        metavar="BYTES",
        help="largest request body (default: %(default)s)",
    )

    cache = parser.add_argument_group("cache and batching")
    cache.add_argument(
        "--block-size",
        type=int,
        default=ServerConfiguration.block_size,
        metavar="TOKENS",
        help="tokens of a block; SGLang: of a page, usually 1 (default: %(default)s)",
    )
    cache.add_argument(
        "--num-blocks",
        type=int,
        default=ServerConfiguration.num_blocks,
        metavar="N",
        help="blocks of each rank; one of them is never used, as on vLLM (default: %(default)s)",
    )
    cache.add_argument(
        "--data-parallel-size",
        type=int,
        default=ServerConfiguration.data_parallel_size,
        metavar="N",
        help="number of ranks (default: %(default)s)",
    )
    cache.add_argument(
        "--max-model-len",
        type=int,
        default=ServerConfiguration.max_model_len,
        metavar="TOKENS",
        help="longest prompt with its answer (default: %(default)s)",
    )
    cache.add_argument(
        "--max-num-seqs",
        type=int,
        default=ServerConfiguration.max_num_seqs,
        metavar="N",
        help="requests of a batch (default: %(default)s)",
    )
    cache.add_argument(
        "--max-num-batched-tokens",
        type=int,
        default=ServerConfiguration.max_num_batched_tokens,
        metavar="TOKENS",
        help="tokens of a step (default: %(default)s)",
    )
    cache.add_argument(
        "--no-enable-prefix-caching", dest="enable_prefix_caching", action="store_false", help="cache nothing"
    )

    speed = parser.add_argument_group("speed")
    speed.add_argument(
        "--prefill-tokens-per-second",
        type=float,
        default=ServerConfiguration.prefill_tokens_per_second,
        metavar="RATE",
        help="prompt tokens that a rank computes in a second (default: %(default)s)",
    )
    speed.add_argument(
        "--decode-tokens-per-second",
        type=float,
        default=ServerConfiguration.decode_tokens_per_second,
        metavar="RATE",
        help="tokens that each request of a batch gets in a second (default: %(default)s)",
    )

    behaviour = parser.add_argument_group("other versions, other settings, faults")
    behaviour.add_argument("--disable-log-stats", action="store_true", help="show no vllm: metrics")
    behaviour.add_argument(
        "--no-prompt-tokens-details",
        dest="enable_prompt_tokens_details",
        action="store_false",
        help="keep cached_tokens out of the answers",
    )
    behaviour.add_argument(
        "--ignore-rank-header", action="store_true", help="do not know X-data-parallel-rank, as vLLM before 0.11.1"
    )
    behaviour.add_argument(
        "--reset-mode",
        choices=RESET_MODES,
        default="ok",
        help="what /reset_prefix_cache does: its work, always refuse, claim success and do nothing, not exist "
        "(default: %(default)s)",
    )
    behaviour.add_argument(
        "--fail-every",
        type=int,
        default=ServerConfiguration.fail_every,
        metavar="N",
        help="answer every N-th generation request with status 500",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Run ``serve``; returns when the server was told to stop."""
    from ais_bench_prefix_cache.server.running import serve

    api_key = None
    if arguments.api_key_env is not None:
        api_key = os.environ.get(arguments.api_key_env)
        if not api_key:
            raise ServerError.of(
                Code.API_KEY_NOT_SET, "--api-key-env", f"the environment variable {arguments.api_key_env} is not set"
            )
    configuration = ServerConfiguration(
        **{field.name: getattr(arguments, field.name) for field in fields(ServerConfiguration)}
    )
    serve(
        configuration,
        host=arguments.host,
        port=arguments.port,
        api_key=api_key,
        ready=lambda url: print_json({"url": url, "pid": os.getpid()}, indent=None),
    )
    return EXIT_OK
