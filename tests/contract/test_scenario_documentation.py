"""The Scenario reference, in both languages, names every field of the schema with its default, and no other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ais_bench_prefix_cache.scenario.schema import schema_fields

REFERENCES = ["docs/scenario.md", "docs/zh/scenario.md"]
COMPUTED = {
    "requests.input_length.mean",
    "requests.input_length.std",
    "requests.output_length.mean",
    "requests.output_length.std",
    "prefix_cache.minimum_non_shared_length",
}
"""Fields whose default is computed; the reference says in words how."""


def documented_fields(text: str) -> list[tuple[str, str, str]]:
    """Field, default and meaning of each table row."""
    rows = []
    for line in text.splitlines():
        match = re.match(r"\| `([^`]+)` \|", line)
        if match:
            _, _, _, default, meaning, _ = re.split(r" ?\| ?", line)
            rows.append((match[1], default, meaning))
    return rows


@pytest.fixture(params=REFERENCES)
def rows(request: pytest.FixtureRequest, project_root: Path) -> list[tuple[str, str, str]]:
    return documented_fields((project_root / request.param).read_text(encoding="utf-8"))


def test_every_field_is_documented_once_and_none_that_does_not_exist(rows: list[tuple[str, str, str]]) -> None:
    assert sorted(field for field, _, _ in rows) == sorted(path for path, _ in schema_fields())


def test_documented_defaults_are_those_of_the_schema(rows: list[tuple[str, str, str]]) -> None:
    schema = dict(schema_fields())
    wrong = []
    for field, default, _ in rows:
        if "default" in schema[field]:
            expected = f"`{json.dumps(schema[field]['default'])}`"
            wrong += [(field, default)] if default != expected else []
        elif field in COMPUTED:
            wrong += [(field, default)] if default in ("", "–") else []
        elif default != "–":
            wrong.append((field, default))
    assert wrong == []


def test_fields_of_our_own_are_marked(rows: list[tuple[str, str, str]]) -> None:
    meanings = {field: meaning for field, _, meaning in rows}
    ours = [path for path, schema in schema_fields() if schema.get("x-ours")]
    assert [path for path in ours if not path.startswith(("validation.slo", "conversation"))] == [
        "$schema",
        "tokenizer.add_special_tokens",
        "service.router_url",
        "service.engine",
        "service.hybrid_warmup",
        "service.kv_cache_blocks",
        "aisbench.model.request_rate",
        "aisbench.model.arrivals",
        "aisbench.load",
        *(f"aisbench.load.{name}" for name in ("senders", "generators", "engine", "address", "command", "split")),
    ]
    for field in ours:
        assert re.match(r"\*\*(\(ours\)|（自有字段）)\*\*", meanings[field]), field


def test_every_field_of_the_schema_is_described() -> None:
    assert [
        path for path, schema in schema_fields() if "description" not in schema and not path.endswith(".mode")
    ] == []
