"""Names and marks that several rooms use and that must be the same everywhere."""

from __future__ import annotations

from typing import Final

RANK_HEADER = "X-data-parallel-rank"
"""The request header by which vLLM (0.11.1 and later) sends a request to one data-parallel rank."""

API_KEY_VARIABLE = "AISBENCH_PREFIX_CACHE_API_KEY"
"""The environment variable with the key of the inference service, where the Scenario has none."""

PASS: Final = "PASS"
PASS_WITH_WARNING: Final = "PASS_WITH_WARNING"
"""The verdicts of a plan and of an analysis."""

BEST_EFFORT: Final = "BEST_EFFORT"
"""The verdict of a trajectory whose total is exact and whose way there is not."""

NO_RANK = -1
"""The rank, and the place in its lane, of a request that the server's balancer may put anywhere."""


def group_name(group: int) -> str:
    """The public id of a prefix group: ``group-0`` …"""
    return f"group-{group}"
