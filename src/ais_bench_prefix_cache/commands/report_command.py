"""``report``."""

from __future__ import annotations

import argparse

SUMMARY = "report"
DESCRIPTION = "report"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``report``."""


def execute(arguments: argparse.Namespace) -> int:
    """Run ``report``; returns the exit code."""
    raise NotImplementedError
