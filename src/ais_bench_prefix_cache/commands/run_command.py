"""``run``."""

from __future__ import annotations

import argparse

SUMMARY = "run"
DESCRIPTION = "run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``run``."""


def execute(arguments: argparse.Namespace) -> int:
    """Run ``run``; returns the exit code."""
    raise NotImplementedError
