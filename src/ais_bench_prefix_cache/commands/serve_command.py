"""``serve``."""

from __future__ import annotations

import argparse

SUMMARY = "serve"
DESCRIPTION = "serve"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``serve``."""


def execute(arguments: argparse.Namespace) -> int:
    """Run ``serve``; returns the exit code."""
    raise NotImplementedError
