"""The lengths of a data set whose Scenario took them from a CSV file, from its own rows.

The CSV file is not part of the data set: its name, recorded in the manifest, is nobody's to open. What the rows say in
send order is put back into the order of the file, which groups and order strategy give; so everything but the lengths
themselves can still be planned again.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ais_bench_prefix_cache.datasets.format.documents import is_count
from ais_bench_prefix_cache.datasets.format.rows import read_rows
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ScenarioError
from ais_bench_prefix_cache.foundation.names import group_name
from ais_bench_prefix_cache.foundation.random_streams import RandomStream
from ais_bench_prefix_cache.planning.ordering import assigned_groups, send_order
from ais_bench_prefix_cache.planning.plan import Int64Column
from ais_bench_prefix_cache.scenario.groups import group_counts
from ais_bench_prefix_cache.scenario.loading import scenario_of_document
from ais_bench_prefix_cache.scenario.model import Scenario

ROW_KEYS = {"input_length": "actual_input_tokens", "output_length": "max_tokens"}
_PLACEHOLDER_TOKENS = 1 << 20


def with_lengths_of_rows(document: Mapping[str, Any], full: Path) -> Mapping[str, Any]:
    """``document`` with explicit lengths in place of every rule that names a CSV file.

    Raises :class:`ScenarioError` where the rest is no Scenario or the rows do not have its number of lengths.
    """
    if not any(True for _ in _csv_rules(document)):
        return document
    replaced = copy.deepcopy(dict(document))
    for _, _, rule in _csv_rules(replaced):
        rule.clear()
        rule.update(mode="fixed", value=_PLACEHOLDER_TOKENS)
    scenario = scenario_of_document(replaced, "effective_config", "prefixes")
    columns, groups = _lengths_as_generated(scenario, full)
    replaced = copy.deepcopy(dict(document))
    for kind, group, rule in _csv_rules(replaced):
        lengths = columns[kind]
        if group is not None:
            lengths = lengths[groups[group]]
        rule.clear()
        rule.update(mode="explicit", values=lengths.tolist())
    return replaced


def _csv_rules(document: Mapping[str, Any]) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    """(``input_length`` or ``output_length``, group or None for all, rule) of each rule that names a CSV file."""
    prefix_cache = document.get("prefix_cache")
    groups = prefix_cache.get("groups") if isinstance(prefix_cache, dict) else None
    overrides = groups.get("overrides") if isinstance(groups, dict) else None
    named: list[tuple[str | None, Any]] = [(None, document.get("requests"))]
    named += list(overrides.items()) if isinstance(overrides, dict) else []
    for group, rules in named:
        for kind in ROW_KEYS:
            rule = rules.get(kind) if isinstance(rules, dict) else None
            if isinstance(rule, dict) and rule.get("mode") == "csv":
                yield kind, group, rule


def _lengths_as_generated(scenario: Scenario, full: Path) -> tuple[dict[str, Int64Column], dict[str, Int64Column]]:
    """The lengths of all rows in the order before sending, and where each group's are."""
    groups, seed = scenario.prefix_cache.groups, scenario.run.random_seed
    counts = group_counts(groups.count, groups.assignment, scenario.requests.count)
    group = assigned_groups(counts, seed)
    strategy = scenario.prefix_cache.order
    # Equal lengths: the order by length keeps equal ones as they are, and the rows are in that order already.
    order = send_order(strategy, group, np.zeros(group.size, dtype=np.int64), RandomStream(seed, "order", strategy))
    found: dict[str, list[int]] = {kind: [] for kind in ROW_KEYS}
    for row in read_rows(full):
        for kind, key in ROW_KEYS.items():
            tokens = row.get(key) if isinstance(row, dict) else None
            if not is_count(tokens) or tokens >= 1 << 31:
                raise ScenarioError.of(Code.WRONG_TYPE, full.name, f"a row has no {key} that could be a length")
            found[kind].append(tokens)
    if len(found["input_length"]) != group.size:
        message = f"it has {len(found['input_length'])} rows"
        raise ScenarioError.of(Code.ROW_COUNT, full.name, message, allowed=str(group.size))
    columns = {}
    for kind, lengths in found.items():
        columns[kind] = np.empty(group.size, dtype=np.int64)
        columns[kind][order] = lengths
    return columns, {group_name(number): np.flatnonzero(group == number) for number in range(groups.count)}
