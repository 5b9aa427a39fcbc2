"""``inspect``."""

from __future__ import annotations

import argparse

SUMMARY = "inspect"
DESCRIPTION = "inspect"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``inspect``."""


def execute(arguments: argparse.Namespace) -> int:
    """Run ``inspect``; returns the exit code."""
    raise NotImplementedError
