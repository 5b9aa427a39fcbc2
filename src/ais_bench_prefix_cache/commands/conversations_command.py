"""``conversations``: a Scenario whose conversations are as long as those of a file."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from ais_bench_prefix_cache.commands.console import note, print_json
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import EXIT_OK, ScenarioError

DESCRIPTION = (
    "Write a copy of a Scenario with the conversations of a file in its section conversation: how many, of how many "
    "turns, with messages and answers of how many tokens. The file is one of ShareGPT's form, of chat messages, or a "
    "trace with hash_ids (Mooncake, Qwen-Bailian). Texts are counted by the Scenario's tokenizer, and not taken over."
)
EXAMPLES = (
    "conversations ShareGPT.json --scenario scenario.json --most 200",
    "conversations conversation_trace.jsonl --scenario scenario.json --output talk.json",
)

_KEPT = ("answers", "form", "routing", "think_time_ms")
"""What no file says; other fields would ask for more lengths than it has."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the files and how much of them."""
    parser.add_argument("input", type=Path, metavar="FILE", help="rows with conversations, messages or hash_ids")
    parser.add_argument("--scenario", type=Path, required=True, metavar="FILE", help="everything else is taken from it")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="beside the Scenario (default: its name with .conversations)"
    )
    parser.add_argument("--most", type=int, metavar="N", help="only the first conversations (default: all)")
    parser.add_argument(
        "--trace-block-size", type=int, metavar="TOKENS", help="tokens that an id stands for (default: 512 or 16)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")


def execute(arguments: argparse.Namespace) -> int:
    """Write the Scenario and print what was found; returns the exit code."""
    # The tokenizer's library is only for commands that count tokens.
    from ais_bench_prefix_cache.datasets.conversations.lengths_of_files import lengths_of_file
    from ais_bench_prefix_cache.datasets.format.writing import write_document
    from ais_bench_prefix_cache.exact_text.tokenizer import load_tokenizer
    from ais_bench_prefix_cache.foundation.strict_json import parse_json, read_file
    from ais_bench_prefix_cache.scenario.loading import load_scenario

    base: Path = arguments.scenario
    output: Path = arguments.output or base.with_name(f"{base.stem}.conversations.json")
    for option, value in (("--most", arguments.most), ("--trace-block-size", arguments.trace_block_size)):
        if value is not None and value < 1:
            raise ScenarioError.of(Code.WRONG_OPTION, option, f"it is {value}", allowed="a whole number from 1 up")
    if output.absolute().parent != base.absolute().parent:
        message = "the Scenario's relative paths hold only beside it"
        raise ScenarioError.of(Code.WRONG_OPTION, "--output", message, allowed=f"a file in {base.absolute().parent}")
    if output.exists() and not arguments.overwrite:
        hint = "Allow it with --overwrite."
        raise ScenarioError.of(Code.FILE_EXISTS, str(output), "the file exists already", hint=hint)
    scenario = load_scenario(base, rules=None)
    found = lengths_of_file(
        arguments.input,
        partial(load_tokenizer, scenario.tokenizer),
        most=arguments.most,
        trace_block_size=arguments.trace_block_size,
    )
    document = parse_json(read_file(base, "the Scenario file", ScenarioError))
    kept = {key: value for key, value in document.get("conversation", {}).items() if key in _KEPT}
    write_document(output, {**document, "conversation": {**kept, **found.section()}})
    for reason, number in sorted(found.left_out.items()):
        note(f"note: left out: {number} {reason}")
    note(f"next: ais-bench-prefix-cache inspect --scenario {output}")
    print_json(
        {
            "scenario": str(output),
            "conversations": len(found.turns),
            "turns": sum(map(len, found.turns)),
            "system_prompt_tokens": found.system_prompt,
            "left_out": dict(sorted(found.left_out.items())),
        },
        indent=None,
    )
    return EXIT_OK
