"""``validate`` beside ``sha256sum`` over the same files, and ``validate --deep`` beside a plain encode pass.

The bar of ``validate`` is 100 MB a second beyond start-up, which is ``validate`` of a data set of one prompt; beside it
stands how sha256sum fares.
"""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path

from tests.benchmarks.bench_prepare import plain_pass
from tests.benchmarks.measuring import (
    PROGRAM,
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

SHAPES = (("long rows", 10_000, 4096, 10), ("short rows", 200_000, 64, 10))
SECONDS_A_100_MB_BAR, DEEP_BAR, DEEP_PROMPTS = 1.0, 1.3, 2_000


def main() -> None:
    arguments = parse_data_arguments(__doc__, times=3)
    rows, bars = [], []
    with scratch_directory() as directory:

        def prepared(name: str, prompts: int, tokens: int, groups: int) -> Path:
            sections = warmup_sections(prompts, tokens=tokens, groups=groups)
            run(
                [
                    *PROGRAM,
                    "prepare",
                    "--mode",
                    "text",
                    "--scenario",
                    write_scenario(directory, name, arguments.data, **sections),
                ]
            )
            return newest_manifest(directory, name)

        def validate(manifest: Path, *options: str) -> Run:
            return run([*PROGRAM, "validate", "--manifest", manifest, *options])

        smallest = prepared("smallest", 1, 64, 1)
        for label, prompts, tokens, groups in SHAPES:
            manifest = prepared(f"shape-{prompts}", prompts, tokens, groups)
            files = sorted(manifest.parent.iterdir())
            size = sum(path.stat().st_size for path in files) / 1e6
            ours, sums, start = in_turns(
                partial(validate, manifest),
                partial(run, ["sha256sum", *files]),
                lambda: validate(smallest),
                times=arguments.times,
            )
            for name, runs in (("validate", ours), ("sha256sum", sums), ("validate of one prompt", start)):
                rows.append(
                    f"| {label}: {prompts:,} prompts, {size:.0f} MB | {name} | {seconds(runs, 'wall'):.2f} s "
                    f"| {seconds(runs, 'cpu'):.2f} s | {max(one.peak_mb for one in runs):.0f} MB |"
                )
            beyond = statistics.median((a.wall - c.wall) / b.wall for a, b, c in zip(ours, sums, start, strict=True))
            bars.append(f"| (validate − start-up) / sha256sum, {label}, wall | {beyond:.3g} | | |")
            pace = statistics.median((a.wall - c.wall) / size * 100 for a, c in zip(ours, start, strict=True))
            bars.append(
                f"| validate − start-up, {label}, wall for 100 MB | {verdict(pace, SECONDS_A_100_MB_BAR, unit=' s')} |"
            )
        name = f"deep-{DEEP_PROMPTS}"
        manifest = prepared(name, DEEP_PROMPTS, 4096, 10)
        sources = ("--deep", "--tokenizer", str(arguments.data.tokenizer), "--corpus", str(arguments.data.corpus))
        deep, plain, start = in_turns(
            lambda: validate(manifest, *sources),
            lambda: plain_pass(arguments.data, directory, name),
            lambda: validate(smallest, *sources),
            times=arguments.times,
        )
        for label, runs in (
            ("validate --deep", deep),
            ("plain pass alone", plain),
            ("validate --deep of one prompt", start),
        ):
            rows.append(
                f"| {DEEP_PROMPTS:,} prompts of 4,096 tokens | {label} | {seconds(runs, 'wall'):.2f} s "
                f"| {seconds(runs, 'cpu'):.2f} s | {max(one.peak_mb for one in runs):.0f} MB |"
            )
        bars.append(f"| validate --deep / plain pass, start-up included, wall | {ratio(deep, plain, 'wall'):.3g} | | |")
        beyond = statistics.median((a.wall - c.wall) / b.wall for a, b, c in zip(deep, plain, start, strict=True))
        bars.append(f"| (validate --deep − start-up) / plain pass, wall | {verdict(beyond, DEEP_BAR)} |")
    print("| data | command | wall | processor | peak memory |\n|---|---|---|---|---|")
    print("\n".join(rows))
    print_bars(bars)


if __name__ == "__main__":
    main()
