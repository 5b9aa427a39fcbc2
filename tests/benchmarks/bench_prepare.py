"""``prepare`` as a whole command, process start to finished files, against one plain encode pass over its prompts.

Warm-up of 60 %, ten groups, 4,096 tokens a prompt; ``--verify proof`` and ``full``. The pass is that of
``plain_pass.py``, which leaves out its own start-up and reading; ours is counted.
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
FULL_BAR, PROOF_BAR, SMALL_BAR, MEMORY_RATIO_BAR, MEMORY_BAR = 1.3, 0.5, 1.0, 1.3, 700


def prepare(scenario: Path, directory: Path, name: str, verify: str) -> Run:
    """One ``prepare`` into an empty place."""
    for old in directory.glob(f"{name}_*"):
        shutil.rmtree(old)
    return run([*PROGRAM, "prepare", "--mode", "text", "--scenario", scenario, "--verify", verify])


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
                partial(prepare, scenario, directory, name, "proof"),
                partial(prepare, scenario, directory, name, "full"),
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
    bars.append(f"| peak memory, 10,000 / 1,000 prompts | {verdict(peaks[10_000] / peaks[1_000], MEMORY_RATIO_BAR)} |")
    bars.append(f"| peak memory, 10,000 prompts | {verdict(peaks[10_000], MEMORY_BAR, unit=' MB')} |")
    print_bars(bars)


if __name__ == "__main__":
    main()
