"""Dataclasses from JSON: names are keys, types say how values are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ais_bench_prefix_cache.scenario.building import build


@dataclass(frozen=True)
class Part:
    weight: float
    limit: int | None = None


@dataclass(frozen=True)
class Whole:
    name: str
    part: Part
    parts: tuple[Part, ...]
    urls: tuple[str, ...] = field(metadata={"key": "net.url"})
    home: Path | None = None
    labels: Mapping[str, int] = field(default_factory=dict)


def test_nested_parts_lists_paths_and_deeper_keys() -> None:
    document = {
        "name": "n",
        "part": {"weight": 1},
        "parts": [{"weight": 2, "limit": 3}, {"weight": 0.5, "limit": None}],
        "net": {"url": ["a", "b"]},
        "home": "/h",
        "labels": {"x": 1},
        "unknown": 1,
    }
    whole = build(Whole, document)
    assert whole == Whole("n", Part(1.0), (Part(2.0, 3), Part(0.5)), ("a", "b"), Path("/h"), {"x": 1})
    assert type(whole.part.weight) is float


def test_one_text_is_a_list_of_one_and_nothing_is_an_empty_list() -> None:
    rest = {"name": "n", "part": {"weight": 1}, "parts": []}
    for value, expected in (("a", ("a",)), ("", ()), (None, ())):
        assert build(Whole, {**rest, "net": {"url": value}}).urls == expected


def test_a_reader_reads_what_its_type_does_not_tell() -> None:
    document = {"name": "n", "part": 7, "parts": [], "net": {"url": ""}, "home": None}
    assert build(Whole, document, {Part: lambda number: Part(number / 2)}).part == Part(3.5)
