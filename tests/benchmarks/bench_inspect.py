"""``inspect`` as a whole command: small cold Scenarios, and ten times the requests in both modes and all orders."""

from __future__ import annotations

from functools import partial
from typing import get_args

from tests.benchmarks.measuring import (
    PROGRAM,
    in_turns,
    parse_data_arguments,
    print_bars,
    run,
    scratch_directory,
    seconds,
    spread_sections,
    verdict,
    write_scenario,
)

from ais_bench_prefix_cache.scenario.model import OrderStrategy

SMALL_BAR, GROWTH_BAR, MEMORY_BAR = 3.0, 12.0, 2048


def main() -> None:
    arguments = parse_data_arguments(__doc__, times=3)
    bars = []
    with scratch_directory() as directory:
        scenario = write_scenario(
            directory, "small-cold", arguments.data, **spread_sections(200, mode="cold", groups=3, ranks=2)
        )
        inspect, prepare = in_turns(
            lambda: run([*PROGRAM, "inspect", "--scenario", scenario]),
            lambda: run([*PROGRAM, "prepare", "--mode", "text", "--scenario", scenario]),
            times=arguments.times,
        )
        for label, runs in (("inspect", inspect), ("prepare", prepare)):
            bars.append(
                f"| {label}, 200 cold requests, wall | {verdict(seconds(runs, 'wall'), SMALL_BAR, unit=' s')} |"
            )
            bars.append(f"| {label}, 200 cold requests, processor | {seconds(runs, 'cpu'):.2f} s | | |")
        print("| mode | order | 100,000 requests | 1,000,000 requests (processor) | growth | peak memory |")
        print("|---|---|---|---|---|---|")
        growths, peak = [], 0.0
        for mode in ("warmup", "cold"):
            for order in get_args(OrderStrategy):
                few, many = (
                    write_scenario(
                        directory,
                        f"{mode}-{order}-{count}",
                        arguments.data,
                        **spread_sections(count, mode=mode, groups=100, ranks=8, order=order),
                    )
                    for count in (100_000, 1_000_000)
                )
                small, large = in_turns(
                    partial(run, [*PROGRAM, "inspect", "--scenario", few]),
                    partial(run, [*PROGRAM, "inspect", "--scenario", many]),
                    times=1,
                )
                growth = seconds(large, "cpu") / seconds(small, "cpu")
                growths.append(growth)
                peak = max(peak, large[0].peak_mb)
                print(
                    f"| {mode} | {order} | {seconds(small, 'cpu'):.2f} s | {seconds(large, 'cpu'):.2f} s "
                    f"| {growth:.1f} | {large[0].peak_mb:.0f} MB |",
                    flush=True,
                )
        bars.append(f"| largest growth from 100,000 to 1,000,000 requests | {verdict(max(growths), GROWTH_BAR)} |")
        bars.append(f"| peak memory, 1,000,000 requests | {verdict(peak, MEMORY_BAR, unit=' MB')} |")
    print_bars(bars)


if __name__ == "__main__":
    main()
