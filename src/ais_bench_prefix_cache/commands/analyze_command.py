"""``analyze``."""

from __future__ import annotations

import argparse

SUMMARY = "analyze"
DESCRIPTION = "analyze"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``analyze``."""


def execute(arguments: argparse.Namespace) -> int:
    """Run ``analyze``; returns the exit code."""
    raise NotImplementedError
