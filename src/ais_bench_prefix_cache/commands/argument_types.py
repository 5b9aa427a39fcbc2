"""Types of command-line arguments that several commands share."""

from __future__ import annotations

import argparse
import math


def integers(text: str) -> list[int]:
    """``16,32,64`` as a list of integers."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of integers such as 16,32,64") from None


def positive_integer(text: str) -> int:
    """An integer of 1 or more."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of 1 or more")
    return number


def positive_number(text: str) -> float:
    """A finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number
