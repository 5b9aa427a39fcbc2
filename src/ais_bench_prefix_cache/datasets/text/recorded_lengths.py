"""The lengths of a data set whose Scenario took them from a CSV file, from its own rows.

The CSV file is not part of the data set: its name, recorded in the manifest, is nobody's to open. Which line of it a
row's length was, its request_random_seed tells; so everything but the lengths themselves can still be planned again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ais_bench_prefix_cache.datasets.format.documents import is_count
from ais_bench_prefix_cache.datasets.format.recorded import csv_rules
from ais_bench_prefix_cache.datasets.format.rows import read_rows
from ais_bench_prefix_cache.datasets.text.request_seeds import request_random_seed
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.foundation.names import group_name
from ais_bench_prefix_cache.planning.ordering import assigned_groups
from ais_bench_prefix_cache.planning.plan import Int64Column
from ais_bench_prefix_cache.scenario.groups import group_counts
from ais_bench_prefix_cache.scenario.model import CsvLengths, Scenario

ROW_KEYS = {"input_length": "actual_input_tokens", "output_length": "max_tokens"}


def with_lengths_of_rows(scenario: Scenario, document: Mapping[str, Any], full: Path) -> Scenario:
    """``scenario`` with the rows' lengths in place of every rule of ``document`` that names a CSV file.

    Raises :class:`ArtifactError` where the rows do not have the Scenario's number of lengths.
    """
    if not any(True for _ in csv_rules(document)):
        return scenario
    columns, places = _lengths_as_generated(scenario, full)

    def lengths(kind: str, rule: Any, part: Int64Column | slice) -> dict[str, Any]:
        if not isinstance(rule, dict) or rule.get("mode") != "csv":
            return {}
        return {kind: CsvLengths(Path(rule["path"]), tuple(columns[kind][part].tolist()))}

    everything, overrides = slice(None), dict(scenario.prefix_cache.groups.overrides)
    for group, override in overrides.items():
        recorded = document["prefix_cache"]["groups"]["overrides"][group_name(group)]
        found = [lengths(kind, recorded.get(kind), places[group]) for kind in ROW_KEYS]
        overrides[group] = replace(override, **found[0], **found[1])
    requests = [lengths(kind, document["requests"].get(kind), everything) for kind in ROW_KEYS]
    groups = replace(scenario.prefix_cache.groups, overrides=overrides)
    return replace(
        scenario,
        requests=replace(scenario.requests, **requests[0], **requests[1]),
        prefix_cache=replace(scenario.prefix_cache, groups=groups),
    )


def _lengths_as_generated(scenario: Scenario, full: Path) -> tuple[dict[str, Int64Column], list[Int64Column]]:
    """The lengths of all rows in the order before sending, and where each group's are."""
    groups, count, seed = scenario.prefix_cache.groups, scenario.requests.count, scenario.run.random_seed
    numbers = {request_random_seed(seed, number): number for number in range(count)}
    columns = {kind: np.zeros(count, dtype=np.int64) for kind in ROW_KEYS}
    for row in read_rows(full):
        values = row if isinstance(row, dict) else {}
        claimed = values.get("request_random_seed")
        number = numbers.pop(claimed, None) if is_count(claimed) else None
        if number is None:
            message = "the request_random_seed of a row is none that the Scenario gives, or that of another row"
            raise ArtifactError.of(Code.WRONG_VALUE, full.name, message)
        for kind, key in ROW_KEYS.items():
            tokens = values.get(key)
            if not is_count(tokens) or not 1 <= tokens < 1 << 31:
                raise ArtifactError.of(Code.WRONG_TYPE, full.name, f"a row has no {key} that could be a length")
            columns[kind][number] = tokens
    if numbers:
        message = f"it has {count - len(numbers)} rows"
        raise ArtifactError.of(Code.ROW_COUNT, full.name, message, allowed=str(count))
    group = assigned_groups(group_counts(groups.count, groups.assignment, count), seed)
    return columns, [np.flatnonzero(group == number) for number in range(groups.count)]
