"""Types of command-line arguments that several commands share."""

from __future__ import annotations

import argparse


def integers(text: str) -> list[int]:
    """``16,32,64`` as a list of integers."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of integers such as 16,32,64") from None
