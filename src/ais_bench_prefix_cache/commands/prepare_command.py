"""``prepare``: make a data set."""

from __future__ import annotations

import argparse
from pathlib import Path

from ais_bench_prefix_cache.commands.argument_types import positive_integer
from ais_bench_prefix_cache.commands.choosing import add_settings
from ais_bench_prefix_cache.commands.console import note, print_json, progress_bar
from ais_bench_prefix_cache.commands.quiet_start import load_quietly, stdout_to_stderr
from ais_bench_prefix_cache.datasets.kinds import PREPARED_KINDS
from ais_bench_prefix_cache.foundation.errors import EXIT_OK

DESCRIPTION = (
    "Make the prompts of a Scenario, exact to the token, and write full.jsonl, requests.jsonl, analysis.json and, "
    "last, manifest.json; with --mode mm choose the image, and write <image scenario>.requests.jsonl in place of the "
    "two; --mode conversation writes no requests.jsonl. Continues in the directory of the newest matching `inspect`, "
    "otherwise in a new one. The last line on stdout is one JSON object with the files' paths."
)
EXAMPLES = (
    "prepare --scenario scenario.json",
    "prepare --scenario scenario.json --workers 4 --set requests.count=10000",
    "prepare --scenario scenario.json --trace conversation_trace.jsonl",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the Scenario, the kind of data set, and how it is made."""
    parser.add_argument(
        "--mode",
        choices=PREPARED_KINDS,
        help="text prompts, multimodal requests with images, conversations, or prompts that share what a trace shares "
        "(default: trace with --trace, conversation where the Scenario has that section, mm where it has "
        "multimodal.mmmu_parquet_dir, else text)",
    )
    parser.add_argument("--scenario", type=Path, required=True, metavar="FILE", help="the Scenario (JSON)")
    add_settings(parser)
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="remake the newest data set of this Scenario in place, replacing its own files only "
        "(the same as run.overwrite); without it every prepared data set is kept",
    )
    parser.add_argument(
        "--verify",
        choices=("proof", "full"),
        default="proof",
        help="proof (default) encodes every distinct piece and join once more, full every whole prompt; "
        "both give the same files (--mode mm always encodes whole texts)",
    )
    parser.add_argument(
        "--workers",
        type=positive_integer,
        default=1,
        metavar="N",
        help="of text data sets and traces: how many processes make the prompts (default 1); the files are the same. "
        "Tokenizers whose words are not proven to be encoded one by one stay on one",
    )
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="as --workers, on all cores of the Ray cluster at host:port (auto: that of this machine)",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="with --mode trace: a JSONL with hash_ids, in Mooncake's or Qwen-Bailian's format; the Scenario gives "
        "tokenizer, corpus, output and ranks",
    )
    parser.add_argument(
        "--trace-block-size", type=positive_integer, metavar="TOKENS", help="tokens of a hash_id (512 or 16)"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Make the data set and print where its files are; returns the exit code."""
    from ais_bench_prefix_cache.datasets.preparing import prepare_data_set

    with stdout_to_stderr():  # A tokenizer that is sent to workers may print.
        made = prepare_data_set(
            arguments.scenario,
            mode=arguments.mode or ("trace" if arguments.trace is not None else None),
            settings=arguments.settings,
            overwrite=arguments.overwrite,
            check_whole=arguments.verify == "full",
            workers=arguments.workers,
            ray=arguments.ray,
            trace=arguments.trace,
            trace_block_size=arguments.trace_block_size,
            load=load_quietly,
            note=note,
            bar=progress_bar,
        )
    print_json(made.report, indent=None)
    return EXIT_OK
