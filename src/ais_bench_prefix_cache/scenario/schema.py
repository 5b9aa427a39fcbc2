"""The Scenario's JSON Schema as it ships in the package, and the defaults that it holds."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

Schema = Mapping[str, Any]


def schema_text() -> str:
    """The JSON Schema (draft 2020-12), byte for byte as it ships."""
    return files("ais_bench_prefix_cache.scenario").joinpath("scenario.schema.json").read_text(encoding="utf-8")


@cache
def scenario_schema() -> Schema:
    """The parsed schema; treat it as read-only."""
    document: dict[str, Any] = json.loads(schema_text())
    return document


def resolved(schema: Schema) -> Schema:
    """The schema with its ``$ref`` into ``$defs`` followed; keywords beside the reference win."""
    while "$ref" in schema:
        target = scenario_schema()["$defs"][schema["$ref"].rpartition("/")[2]]
        schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    return schema


def branches_by_mode(schema: Schema) -> dict[str, Schema]:
    """The branches of a tagged union, by the constant of their ``mode``."""
    branches = (resolved(branch) for branch in schema.get("oneOf", ()))
    return {branch["properties"]["mode"]["const"]: branch for branch in branches}


def default_mode(branches: Mapping[str, Schema]) -> str | None:
    """The mode of a union whose ``mode`` is left out."""
    return next((mode for mode, branch in branches.items() if "default" in branch["properties"]["mode"]), None)


def filled_with_defaults(value: Any, schema: Schema, place: Callable[[str], str] = str) -> Any:
    """A copy of ``value`` in the order of the schema, with the default of every field that was left out.

    ``place`` makes the paths (``x-path``) absolute. Values of a wrong shape are kept as they are: saying so is the
    checks' task.
    """
    schema = resolved(schema)
    if schema.get("x-path") and isinstance(value, str):
        return place(value)
    if not isinstance(value, dict):
        return copy.copy(value)
    branches = branches_by_mode(schema)
    if branches:
        mode = value.get("mode", default_mode(branches))
        schema = branches.get(mode, schema) if isinstance(mode, str) else schema
    filled: dict[str, Any] = {}
    properties: Schema = schema.get("properties", {})
    for key, field in properties.items():
        if key in value or "default" in field:
            filled[key] = filled_with_defaults(value[key] if key in value else field["default"], field, place)
    patterns: Schema = schema.get("patternProperties", {})
    for key in value:
        if key not in properties:
            field = next(iter(patterns.values()), {})
            filled[key] = filled_with_defaults(value[key], field, place)
    return filled


def schema_fields() -> Iterator[tuple[str, Schema]]:
    """Every field of a Scenario with its schema, once: ``requests.input_length.ranges[].min``, ….

    The branches of a tagged union appear together, as one field per key. A group's overrides appear once, under
    ``group-N``; what lies inside the rules there is the same as in the global ones, and what lies inside a field with
    ``x-as`` is the same as in the field that it names.
    """
    yield from _fields("", scenario_schema())


def _fields(prefix: str, schema: Schema) -> Iterator[tuple[str, Schema]]:
    schema = resolved(schema)
    branches = branches_by_mode(schema).values()
    properties: dict[str, Schema] = dict(schema.get("properties", {}))
    for branch in branches:
        for key, field in branch["properties"].items():
            properties.setdefault(key, field)
    for key, field in properties.items():
        path = f"{prefix}.{key}" if prefix else key
        yield path, resolved(field)
        if "x-as" not in field:
            yield from _fields(path, field)
    if schema.get("type") == "array" and "properties" in schema["items"]:
        yield from _fields(f"{prefix}[]", schema["items"])
    for field in schema.get("patternProperties", {}).values():
        path = f"{prefix}.group-N"
        yield path, resolved(field)
        for key, rule in field["properties"].items():
            yield f"{path}.{key}", resolved(rule)
