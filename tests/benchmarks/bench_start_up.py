"""How long the commands that should answer at once take, beside ``python -c pass`` of the same interpreter."""

from __future__ import annotations

from tests.benchmarks.measuring import (
    PROGRAM,
    in_turns,
    newest_manifest,
    parse_data_arguments,
    print_bars,
    run,
    scratch_directory,
    seconds,
    verdict,
    warmup_sections,
    write_scenario,
)

HELP_BAR, VALIDATE_BAR = 150, 600
"""Milliseconds of processor time."""


def main() -> None:
    arguments = parse_data_arguments(__doc__, times=25)
    with scratch_directory() as directory:
        scenario = write_scenario(directory, "small", arguments.data, **warmup_sections(20, tokens=512, groups=2))
        run([*PROGRAM, "prepare", "--mode", "text", "--scenario", scenario])
        manifest = newest_manifest(directory, "small")
        nothing, help_text, validate = in_turns(
            lambda: run([PROGRAM[0], "-c", "pass"]),
            lambda: run([*PROGRAM, "--help"]),
            lambda: run([*PROGRAM, "validate", "--manifest", manifest]),
            times=arguments.times,
        )
    print("| command | processor | wall |\n|---|---|---|")
    commands = (("python -c pass", nothing), ("--help", help_text), ("validate, 20 prompts of 512 tokens", validate))
    for label, runs in commands:
        print(f"| {label} | {1000 * seconds(runs, 'cpu'):.0f} ms | {1000 * seconds(runs, 'wall'):.0f} ms |")
    help_ms, validate_ms = (1000 * seconds(runs, "cpu") for runs in (help_text, validate))
    print_bars(
        [
            f"| `--help`, processor | {verdict(help_ms, HELP_BAR, unit=' ms')} |",
            f"| `validate` of 20 prompts, processor | {verdict(validate_ms, VALIDATE_BAR, unit=' ms')} |",
        ]
    )


if __name__ == "__main__":
    main()
