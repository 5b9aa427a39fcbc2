"""``prepare``."""

from __future__ import annotations

import argparse

SUMMARY = "prepare"
DESCRIPTION = "prepare"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``prepare``."""


def execute(arguments: argparse.Namespace) -> int:
    """Run ``prepare``; returns the exit code."""
    raise NotImplementedError
