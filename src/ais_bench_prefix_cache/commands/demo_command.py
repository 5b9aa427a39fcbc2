"""``demo``: the main job from beginning to end on the embedded server."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = (
    "Starts the embedded server with two data-parallel ranks on a free loopback port, then runs inspect, prepare, "
    "validate, run, analyze and report against it, each as you would type it, and compares theory and counters."
)
EXAMPLES = (
    "demo",
    "demo --mode cold",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where the demonstration works, and its cache mode."""
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path("demo-output"),
        metavar="DIR",
        help="where the demo writes its Scenario and outputs (default: %(default)s)",
    )
    parser.add_argument(
        "--mode", choices=("warmup", "cold"), default="warmup", help="cache mode of the Scenario (default: %(default)s)"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Run the demonstration; returns the exit code, or raises with the step that failed."""
    from ais_bench_prefix_cache.demo.demonstration import run_demonstration

    run_demonstration(arguments.directory, arguments.mode)
    return 0
