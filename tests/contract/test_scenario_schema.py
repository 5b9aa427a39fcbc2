"""The schema that ships: valid, closed, printed unchanged, and every keyword in it has a sentence of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from ais_bench_prefix_cache.scenario import schema_problems
from ais_bench_prefix_cache.scenario.schema import scenario_schema

STRUCTURE = {"$schema", "$id", "$defs", "$ref", "title", "description", "default"}
STRUCTURE |= {"x-ours", "x-allowed", "x-path", "x-also-called", "x-as"}
STRUCTURE |= {"properties", "patternProperties", "items", "oneOf"}


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    yield schema
    for keyword in ("properties", "patternProperties", "$defs"):
        for part in schema.get(keyword, {}).values():
            yield from subschemas(part)
    for keyword in ("oneOf", "anyOf"):
        for part in schema.get(keyword, ()):
            yield from subschemas(part)
    for keyword in ("items", "additionalProperties", "propertyNames"):
        if isinstance(schema.get(keyword), dict):
            yield from subschemas(schema[keyword])


def test_it_is_a_valid_schema_of_draft_2020_12() -> None:
    Draft202012Validator.check_schema(dict(scenario_schema()))
    assert scenario_schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_every_object_refuses_unknown_keys_or_is_meant_to_be_open() -> None:
    open_objects = [
        part["description"]
        for part in subschemas(scenario_schema())
        if part.get("type") == "object" and "oneOf" not in part and part.get("additionalProperties") is not False
    ]
    assert open_objects == [
        "Data-parallel rank of each engine label of the metrics. Empty: trailing digits of the label.",
        "More command-line arguments: a scalar becomes one value, a list several, true only the name, false nothing.",
        "Generation parameters, passed to the server unchanged.",
    ]
    branches = [branch for part in subschemas(scenario_schema()) for branch in part.get("oneOf", ())]
    named = [scenario_schema()["$defs"][b["$ref"].rpartition("/")[2]] if "$ref" in b else b for b in branches]
    assert len(named) == 22
    assert all(branch["additionalProperties"] is False for branch in named)


def test_every_keyword_has_a_sentence() -> None:
    used = {keyword for part in subschemas(scenario_schema()) for keyword in part}
    assert used - STRUCTURE <= set(schema_problems._SENTENCES)


def test_the_command_prints_the_file_byte_for_byte(project_root: Path) -> None:
    shipped = project_root / "src/ais_bench_prefix_cache/scenario/scenario.schema.json"
    result = subprocess.run(
        [sys.executable, "-m", "ais_bench_prefix_cache", "schema"], capture_output=True, check=True, timeout=60
    )
    assert result.stdout == shipped.read_bytes()
    assert result.stderr == b""
    assert json.loads(result.stdout)["title"] == "Scenario of ais-bench-prefix-cache"


def test_the_schema_accepts_the_examples(project_root: Path) -> None:
    validator = Draft202012Validator(dict(scenario_schema()))
    for path in (project_root / "config_examples").glob("*.json"):
        assert list(validator.iter_errors(json.loads(path.read_text(encoding="utf-8")))) == [], path.name
