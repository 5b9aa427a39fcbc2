"""Which fields shape a data set. Scenarios that agree in them have the same data set; the others belong to a run."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.foundation.strict_json import canonical_sha256
from ais_bench_prefix_cache.scenario.model import ScenarioRules

TEXT_FIELDS = (
    "schema_version",
    "run.run_id",
    "run.random_seed",
    "tokenizer",
    "corpus",
    "requests",
    "output",
    "prefix_cache",
    "service.dp_size",
)
IMAGE_FIELDS = (*TEXT_FIELDS, "multimodal")
CONVERSATION_FIELDS = (
    *(name for name in TEXT_FIELDS if name not in ("requests", "output", "prefix_cache")),
    "conversation",
)
FIELDS: Mapping[ScenarioRules, tuple[str, ...]] = {
    "prefixes": TEXT_FIELDS,
    "images": IMAGE_FIELDS,
    "conversations": CONVERSATION_FIELDS,
}
PATH_KEYS = ("path", "mmmu_parquet_dir")


def data_fields(effective: Mapping[str, Any], rules: ScenarioRules) -> dict[str, Any]:
    """What of an effective configuration shapes the data set, by dotted names. Images do not shape text."""
    return {name: copy.deepcopy(_value(effective, name)) for name in FIELDS[rules]}


def data_sha256(effective: Mapping[str, Any], rules: ScenarioRules) -> str:
    """The digest of :func:`data_fields` as canonical JSON: two data sets of one digest have the same requests."""
    return canonical_sha256(data_fields(effective, rules))


def same_data_set(
    one: Mapping[str, Any], one_directory: Path, other: Mapping[str, Any], other_directory: Path, rules: ScenarioRules
) -> bool:
    """Whether two effective configurations ask for the same data set.

    Each belongs to a Scenario in its directory. Paths agree when they are the same, or the same as seen from there: a
    tree that was moved as a whole still has its data sets.
    """
    fields, others = data_fields(one, rules), data_fields(other, rules)
    return fields == others or _seen_from(fields, one_directory) == _seen_from(others, other_directory)


def differing_fields(one: Mapping[str, Any], other: Mapping[str, Any], rules: ScenarioRules) -> list[str]:
    """The dotted names of the fields in which two data sets differ, sections as a whole."""
    first, second = data_fields(one, rules), data_fields(other, rules)
    return [name for name in first if first[name] != second[name]]


def _value(effective: Mapping[str, Any], name: str) -> Any:
    value: Any = effective
    for key in name.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _seen_from(value: Any, directory: Path) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {
        key: os.path.relpath(item, directory)
        if key in PATH_KEYS and isinstance(item, str) and Path(item).is_absolute()
        else _seen_from(item, directory)
        for key, item in value.items()
    }
