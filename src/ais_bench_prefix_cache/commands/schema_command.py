"""``schema``: print the Scenario's JSON Schema, for editors and other tools."""

from __future__ import annotations

import argparse
import sys

DESCRIPTION = (
    "Print the JSON Schema (draft 2020-12) of Scenario files on stdout, byte for byte as it ships. "
    "Save it and point an editor at it to have fields completed and checked while typing."
)
EXAMPLES = ("schema > scenario.schema.json",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``schema`` has no options."""


def execute(arguments: argparse.Namespace) -> int:
    """Print the schema; returns the exit code."""
    from ais_bench_prefix_cache.scenario.schema import schema_text

    sys.stdout.write(schema_text())
    return 0
