"""Types of command-line arguments that several commands share."""

from __future__ import annotations

import argparse
import math

LARGEST = 10**15
"""No number of tokens, blocks or bytes that anybody asks about is larger."""


def integers(text: str) -> list[int]:
    """``16,32,64`` as a list of integers."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{shortened(text)} is not a list of integers such as 16,32,64") from None
    for number in numbers:
        _refuse_large(number)
    return numbers


def integer(text: str) -> int:
    """One integer."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{shortened(text)} is not an integer") from None
    _refuse_large(number)
    return number


def positive_integer(text: str) -> int:
    """An integer of 1 or more."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{shortened(text)} is not an integer of 1 or more")
    _refuse_large(number)
    return number


def percentile_list(text: str) -> list[float]:
    """``50,90,99.9`` as a list of percentiles, each above 0 and below 100."""
    try:
        percentiles = [float(part) for part in text.split(",")]
    except ValueError:
        percentiles = []
    if not percentiles or not all(0 < percentile < 100 for percentile in percentiles):
        raise argparse.ArgumentTypeError(f"{shortened(text)} is not a list of percentiles such as 50,90,99.9")
    return percentiles


def shortened(text: str) -> str:
    """What the user wrote, in quotes, without the middle of very long texts."""
    return repr(text if len(text) <= 60 else f"{text[:40]}…{text[-10:]}")


def _refuse_large(number: int) -> None:
    if abs(number) > LARGEST:
        raise argparse.ArgumentTypeError(f"{shortened(str(number))} is too large: at most {LARGEST:,}")


def positive_number(text: str) -> float:
    """A finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{shortened(text)} is not a number above 0")
    if number > LARGEST:
        raise argparse.ArgumentTypeError(f"{shortened(text)} is too large: at most {LARGEST:,}")
    return number


def key_and_value(text: str) -> tuple[str, str]:
    """``KEY=VALUE``; the value may hold further equals signs."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"{shortened(text)} is not KEY=VALUE")
    return key.strip(), value
