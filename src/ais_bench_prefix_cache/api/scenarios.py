"""Scenarios and what their numbers alone tell."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.datasets.text.plan_sections import plan_warnings
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ScenarioError
from ais_bench_prefix_cache.foundation.names import NO_RANK, group_name
from ais_bench_prefix_cache.planning.plan import Plan
from ais_bench_prefix_cache.planning.planner import plan_scenario
from ais_bench_prefix_cache.planning.summary import inspect_summary
from ais_bench_prefix_cache.reporting.notebook import data_frame, html_tables, remarks_of
from ais_bench_prefix_cache.scenario import loading
from ais_bench_prefix_cache.scenario.model import Scenario

if TYPE_CHECKING:
    import pandas

ScenarioFile = str | os.PathLike[str] | Scenario
"""A Scenario's file, or a Scenario that was loaded from one."""


def load_scenario(path: str | os.PathLike[str], settings: Mapping[str, Any] | None = None) -> Scenario:
    """Read and check a Scenario file; ``settings`` (``{"requests.count": 200}``) replace fields of it.

    An API key, if the file has none, is taken from the environment variable ``AISBENCH_PREFIX_CACHE_API_KEY``.

    Raises:
        ScenarioError: with every problem of the file at once.
    """
    return loading.load_scenario(Path(path), rules=None, settings=_as_options(settings))


@dataclass(frozen=True)
class PlannedDataSet:
    """What a Scenario would give, from its numbers alone.

    ``plan`` has the theory of each request in numpy columns, ``summary`` is what ``inspect`` prints, ``warnings`` are
    objects with ``code`` and ``message``. Rates are fractions of 1.
    """

    scenario: Scenario = field(repr=False)
    plan: Plan = field(repr=False)
    summary: Mapping[str, Any] = field(repr=False)
    warnings: tuple[Mapping[str, Any], ...]
    theoretical_hit_rate: float
    reachable_hit_rates: tuple[float, float]

    def to_pandas(self) -> pandas.DataFrame:
        """One row a request, in send order; lengths are tokens. Raises PrefixCacheError without pandas."""
        plan = self.plan
        ranks = [None if rank == NO_RANK else rank for rank in plan.dp_rank.tolist()]
        return data_frame(
            {
                "group_id": [group_name(group) for group in plan.group.tolist()],
                "dp_rank": ranks,
                "input_tokens": plan.input_tokens,
                "max_tokens": plan.max_tokens,
                "shared_prefix_tokens": plan.shared_prefix_tokens,
                "hit_tokens": plan.hit_tokens,
            }
        )

    def _repr_html_(self) -> str:
        plan, (low, high) = self.plan, self.reachable_hit_rates
        rows = [
            ("Requests", str(len(plan))),
            ("Input tokens", str(plan.total_input_tokens)),
            ("Hit tokens", str(plan.total_hit_tokens)),
            ("Target", f"{plan.requested_target_hit_rate:.2%}"),
            ("Theory", f"{self.theoretical_hit_rate:.2%}"),
            ("Reachable", f"{low:.2%} to {high:.2%}"),
            ("Over the requests", str(self.summary["smoothness"]["picture"])),
        ]
        name = self.scenario.run.run_id
        return html_tables(f"Plan of {name}", [(plan.mode, ("", "Value"), rows)], remarks_of(self.warnings))


def plan(scenario: ScenarioFile, settings: Mapping[str, Any] | None = None) -> PlannedDataSet:
    """Plan a text data set. Needs no tokenizer, corpus or service and writes nothing.

    Raises:
        ScenarioError: the Scenario cannot be used.
    """
    path, options = file_and_options(scenario, settings)
    loaded = loading.load_scenario(path, settings=options)
    made = plan_scenario(loaded)
    return PlannedDataSet(
        scenario=loaded,
        plan=made,
        summary=inspect_summary(loaded, made),
        warnings=tuple(plan_warnings(loaded, made)),
        theoretical_hit_rate=made.theoretical_hit_rate,
        reachable_hit_rates=(made.reachability.min_rate, made.reachability.max_rate),
    )


def file_and_options(scenario: ScenarioFile, settings: Mapping[str, Any] | None) -> tuple[Path, tuple[str, ...]]:
    """The file and its settings as ``FIELD=VALUE``; a loaded Scenario brings those that it was loaded with.

    Raises:
        ScenarioError: the file of a loaded Scenario is another one by now.
    """
    if not isinstance(scenario, Scenario):
        return Path(scenario), _as_options(settings)
    again = loading.load_scenario(scenario.path, rules=None, settings=scenario.settings)
    if again.sha256 != scenario.sha256:
        raise ScenarioError.of(
            Code.CONTENT_EDITED,
            str(scenario.path),
            "the file was changed after the Scenario had been loaded",
            hint="Load it again.",
        )
    return scenario.path, (*scenario.settings, *_as_options(settings))


def _as_options(settings: Mapping[str, Any] | None) -> tuple[str, ...]:
    return tuple(f"{name}={json.dumps(value)}" for name, value in (settings or {}).items())
