"""Speed of the command ``prompts``, whole, from process start to its last row, beside one plain encode pass.

Every mode, with a tokenizer (exact counts) and without (a count of words): tokens a second by the wall clock. The plain
pass encodes the questions of a tenth of the rows, two threads, without its start-up.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from tests.benchmarks.measuring import (
    PROGRAM,
    Data,
    Run,
    in_turns,
    parse_data_arguments,
    print_bars,
    run,
    scratch_directory,
    seconds,
)

PLAIN_PASS = Path(__file__).with_name("plain_pass.py")
BAR = 5.0
SHAPES = ((20_000, 1024), (100_000, 128))
MODES: dict[str, list[str]] = {
    "repeat": [],
    "unique": [],
    "shared-prefix": ["--shared-prefix-ratio", "0.5", "--prefix-groups", "4"],
}


def prompts(mode: str, count: int, tokens: int, tokenizer: Path | None) -> Run:
    """One run of the command; its rows are thrown away after it."""
    exact = [] if tokenizer is None else ["--tokenizer", str(tokenizer)]
    size = ["--count", str(count), "--input-tokens", str(tokens)]
    return run([*PROGRAM, "prompts", "--mode", mode, *size, *MODES[mode], *exact])


def plain_pass(data: Data, directory: Path, count: int, tokens: int) -> Run:
    """A plain pass over ``count`` unique prompts; its own clocks replace those of the process."""
    rows = directory / "rows.jsonl"
    rows.write_text(prompts("unique", count, tokens, data.tokenizer).output, encoding="utf-8")
    figures = json.loads(run([PROGRAM[0], PLAIN_PASS, data.tokenizer, rows]).output)
    assert figures["tokens"] == count * tokens, "the prompts are not exact"
    return Run(figures["wall"], figures["cpu"], 0, "")


def main() -> None:
    arguments = parse_data_arguments(__doc__, times=1)
    data: Data = arguments.data
    bars = []
    print("| prompts | tokenizer | mode | wall | tokens a second | plain pass |")
    print("|---|---|---|---|---|---|")
    with scratch_directory() as directory:
        for count, tokens in SHAPES:
            for tokenizer in (data.tokenizer, None):
                for mode in MODES:
                    ours, plain = in_turns(
                        partial(prompts, mode, count, tokens, tokenizer),
                        partial(plain_pass, data, directory, count // 10, tokens),
                        times=arguments.times,
                    )
                    speed = count * tokens / seconds(ours, "wall") / 1e6
                    encoded = count // 10 * tokens / seconds(plain, "wall") / 1e6
                    label = f"{count:,} of {tokens:,} tokens"
                    named = "none" if tokenizer is None else tokenizer.name
                    print(
                        f"| {label} | {named} | {mode} | {seconds(ours, 'wall'):.2f} s "
                        f"| {speed:.1f} million | {encoded:.1f} million |",
                        flush=True,
                    )
                    met = "met" if speed >= BAR else "MISSED"
                    wanted = f"{speed:.3g} million | at least {BAR:g} million | {met} |"
                    bars.append(f"| {mode}, {label}, {named}, tokens a second | {wanted}")
    print_bars(bars)


if __name__ == "__main__":
    main()
