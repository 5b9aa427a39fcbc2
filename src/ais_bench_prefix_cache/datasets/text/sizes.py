"""What a text data set takes of a machine, judged before it is planned and before its first prompt is made."""

from __future__ import annotations

from ais_bench_prefix_cache.foundation.resources import require_disk, require_memory
from ais_bench_prefix_cache.foundation.telling import ProgressBar, no_bar
from ais_bench_prefix_cache.planning.plan import Plan
from ais_bench_prefix_cache.planning.planner import STEPS, plan_scenario
from ais_bench_prefix_cache.scenario.model import Scenario

# Measured: inspect of 1,000,000 requests, and prepare of two prompts of 2,000,000 tokens, less what an empty one takes.
_BYTES_A_PLANNED_REQUEST = {"warmup": 160, "cold": 200}
_BYTES_A_TOKEN_OF_A_PROMPT = 200
_REQUESTS_OF_A_LONG_PLAN = 1_000_000
"""They take some seconds."""
_LEAST_BYTES_A_TOKEN_ON_DISK = 2
"""A prompt stands in two files, and no token has less than a byte but those that no text has."""


def plan_if_it_fits(scenario: Scenario, bar: ProgressBar = no_bar) -> Plan:
    """The plan; ``bar`` shows the steps of a long one.

    Raises :class:`ScenarioError` where this machine has no memory for it.
    """
    count = scenario.requests.count
    require_memory(
        count * _BYTES_A_PLANNED_REQUEST[scenario.prefix_cache.mode],
        f"{scenario.path.name}: requests.count",
        f"a plan of {count:,} requests",
        hint="Ask for fewer requests; a benchmark's rates do not change beyond some ten thousands.",
    )
    with (bar if count >= _REQUESTS_OF_A_LONG_PLAN else no_bar)("Plan, steps", STEPS) as show:
        return plan_scenario(scenario, show)


def require_room(scenario: Scenario, plan: Plan) -> None:
    """Raise :class:`ScenarioError` where this machine has no memory for the longest prompt, or no disk for all."""
    longest = int(plan.input_tokens.max(initial=0))
    where = f"{scenario.path.name}: requests.input_length"
    hint = "Ask for shorter or fewer requests."
    require_memory(longest * _BYTES_A_TOKEN_OF_A_PROMPT, where, f"a prompt of {longest:,} tokens", hint)
    total = plan.total_input_tokens
    require_disk(
        scenario.run.output_dir, total * _LEAST_BYTES_A_TOKEN_ON_DISK, where, f"a data set of {total:,} tokens", hint
    )
