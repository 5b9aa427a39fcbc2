"""``validate``."""

from __future__ import annotations

import argparse

SUMMARY = "validate"
DESCRIPTION = "validate"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``validate``."""


def execute(arguments: argparse.Namespace) -> int:
    """Run ``validate``; returns the exit code."""
    raise NotImplementedError
