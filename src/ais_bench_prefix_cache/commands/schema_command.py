"""``schema``."""

from __future__ import annotations

import argparse

SUMMARY = "schema"
DESCRIPTION = "schema"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``schema``."""


def execute(arguments: argparse.Namespace) -> int:
    """Run ``schema``; returns the exit code."""
    raise NotImplementedError
