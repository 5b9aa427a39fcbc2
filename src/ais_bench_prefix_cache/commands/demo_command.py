"""``demo``."""

from __future__ import annotations

import argparse

SUMMARY = "demo"
DESCRIPTION = "demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``demo``."""


def execute(arguments: argparse.Namespace) -> int:
    """Run ``demo``; returns the exit code."""
    raise NotImplementedError
