"""``python -m tests.fuzz.for_seconds SECONDS``: all fuzz tests, round after round with new seeds, until the time is up.

The first failure ends it, with the input that fails in its smallest form: that becomes a test of its own.
"""

from __future__ import annotations

import secrets
import sys
import time
from pathlib import Path

import pytest


def main() -> int:
    seconds = float(sys.argv[1])
    end, rounds = time.monotonic() + seconds, 0
    while True:
        seed = secrets.randbelow(1 << 32)
        code = pytest.main(["-q", "-x", "--no-header", f"--hypothesis-seed={seed}", str(Path(__file__).parent)])
        rounds += 1
        if code != 0:
            print(f"round {rounds} failed; to repeat it: pytest --hypothesis-seed={seed} tests/fuzz")
            return int(code)
        if time.monotonic() >= end:
            print(f"{rounds} rounds in {time.monotonic() - end + seconds:.0f} s, nothing found")
            return 0


if __name__ == "__main__":
    sys.exit(main())
