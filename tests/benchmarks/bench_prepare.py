"""``prepare`` as a whole command, process start to finished files, against one plain encode pass over its prompts.

Warm-up of 60 %, ten groups, 4,096 tokens a prompt; ``--verify proof`` and ``full``. The pass is that of
``plain_pass.py``, which leaves out its own start-up and reading; ours is counted. Then 50,000 prompts by one and by two
workers.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

from tests.benchmarks.measuring import (
    PROGRAM,
    Data,
    Run,
    in_turns,
    newest_manifest,
    parse_data_arguments,
    print_bars,
    ratio,
    run,
    scratch_directory,
    seconds,
    verdict,
    warmup_sections,
    write_scenario,
)

PLAIN_PASS = Path(__file__).with_name("plain_pass.py")
TOKENS = 4096
FULL_BAR, PROOF_BAR, SMALL_BAR, MEMORY_RATIO_BAR, MEMORY_BAR = 1.3, 0.1, 0.4, 1.3, 700
TIME_BAR = 0.1
"""Seconds for a million tokens, start-up included, on a quiet machine."""
WORKERS_BAR = 0.67
"""Two workers beside one; each has a core of its own only where there are more than two."""
MANY = 50_000


def prepare(scenario: Path, directory: Path, name: str, *options: str) -> Run:
    """One ``prepare`` into an empty place."""
    for old in directory.glob(f"{name}_*"):
        shutil.rmtree(old)
    return run([*PROGRAM, "prepare", "--mode", "text", "--scenario", scenario, *options])


def plain_pass(data: Data, directory: Path, name: str) -> Run:
    """The pass over the prompts that lie there; its own clocks replace those of the process."""
    requests = Path(str(newest_manifest(directory, name)).replace(".manifest.json", ".requests.jsonl"))
    finished = run([PROGRAM[0], PLAIN_PASS, data.tokenizer, requests])
    figures = json.loads(finished.output)
    assert figures["tokens"] == figures["prompts"] * TOKENS, "the prompts are not exact"
    return Run(figures["wall"], figures["cpu"], finished.peak_mb, finished.output)


def main() -> None:
    arguments = parse_data_arguments(__doc__, times=3)
    print("| prompts | command | wall | processor | peak memory | tokens a second (wall) |")
    print("|---|---|---|---|---|---|")
    bars, peaks = [], {}
    with scratch_directory() as directory:
        for prompts in (1_000, 10_000):
            name = f"warmup-{prompts}"
            scenario = write_scenario(directory, name, arguments.data, **warmup_sections(prompts, tokens=TOKENS))
            proof, full, plain = in_turns(
                partial(prepare, scenario, directory, name),
                partial(prepare, scenario, directory, name, "--verify", "full"),
                partial(plain_pass, arguments.data, directory, name),
                times=arguments.times,
            )
            peaks[prompts] = max(one.peak_mb for one in [*proof, *full])
            for label, runs in (("prepare", proof), ("prepare --verify full", full), ("plain pass alone", plain)):
                wall = seconds(runs, "wall")
                print(
                    f"| {prompts:,} | {label} | {wall:.2f} s | {seconds(runs, 'cpu'):.2f} s "
                    f"| {max(one.peak_mb for one in runs):.0f} MB | {prompts * TOKENS / wall / 1e6:.1f} million |",
                    flush=True,
                )
            large = prompts == 10_000
            asked = verdict(ratio(proof, plain, "wall"), PROOF_BAR if large else SMALL_BAR)
            bars.append(f"| proof / plain pass, {prompts:,} prompts, wall | {asked} |")
            bars.append(f"| the same, processor | {ratio(proof, plain, 'cpu'):.3g} | | |")
            asked = verdict(ratio(full, plain, "wall"), FULL_BAR) if large else f"{ratio(full, plain, 'wall'):.3g} | |"
            bars.append(f"| full / plain pass, {prompts:,} prompts, wall | {asked} |")
            bars.append(f"| the same, processor | {ratio(full, plain, 'cpu'):.3g} | | |")
            if large:
                per_token = 1e6 * seconds(proof, "wall") / (prompts * TOKENS)
                bars.append(f"| prepare, 10,000 prompts, seconds a million tokens | {verdict(per_token, TIME_BAR)} |")
        name = f"warmup-{MANY}"
        scenario = write_scenario(directory, name, arguments.data, **warmup_sections(MANY, tokens=TOKENS))
        one, two = in_turns(
            partial(prepare, scenario, directory, name),
            partial(prepare, scenario, directory, name, "--workers", "2"),
            times=min(arguments.times, 2),
        )
        for label, runs in (("prepare", one), ("prepare --workers 2", two)):
            wall = seconds(runs, "wall")
            print(
                f"| {MANY:,} | {label} | {wall:.2f} s | {seconds(runs, 'cpu'):.2f} s "
                f"| {max(each.peak_mb for each in runs):.0f} MB | {MANY * TOKENS / wall / 1e6:.1f} million |",
                flush=True,
            )
        bars.append(f"| two workers / one, {MANY:,} prompts, wall | {verdict(ratio(two, one, 'wall'), WORKERS_BAR)} |")
    bars.append(f"| peak memory, 10,000 / 1,000 prompts | {verdict(peaks[10_000] / peaks[1_000], MEMORY_RATIO_BAR)} |")
    bars.append(f"| peak memory, 10,000 prompts | {verdict(peaks[10_000], MEMORY_BAR, unit=' MB')} |")
    print_bars(bars)


if __name__ == "__main__":
    main()
