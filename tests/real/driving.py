"""The loop of the scripts ``drive_vllm_….py``, which run in vLLM's virtual environment: one JSON value a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


def answer_each_line(answer: Callable[[Any], Any]) -> None:
    """Answer each line of stdin with one on stdout; what libraries print goes to stderr."""
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
    answers.flush()
