"""Names that several rooms must write in the same way."""

from __future__ import annotations

from typing import Final, Literal

RANK_HEADER = "X-data-parallel-rank"
"""Routes a request to one data-parallel rank of its port: vLLM 0.11.1 and later (vllm-project/vllm#24945)."""

API_KEY_VARIABLE = "AISBENCH_PREFIX_CACHE_API_KEY"
"""The environment variable that may hold ``service.api_key``."""

NO_RANK = -1
"""In columns of ranks: no one rank. The server's balancer may put the request anywhere; a counter is of all ranks."""

Verdict = Literal["PASS", "PASS_WITH_WARNING"]
PASS: Final = "PASS"
PASS_WITH_WARNING: Final = "PASS_WITH_WARNING"

BEST_EFFORT: Final = "BEST_EFFORT"
"""The verdict of a trajectory whose total is exact and whose way there is not."""


def group_name(group: int) -> str:
    """The public id of a prefix group, as ``group-0``."""
    return f"group-{group}"


def group_number(name: str) -> int:
    """The inverse of :func:`group_name`."""
    return int(name.removeprefix("group-"))


def verdict(warnings: object) -> Verdict:
    """What ``validation.status`` says of a document with these warnings, if any."""
    return PASS_WITH_WARNING if warnings else PASS
