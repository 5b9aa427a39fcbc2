"""Documents and data sets that are edited and sealed again, as somebody would who knows the format."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.kinds import verify_data_set
from ais_bench_prefix_cache.foundation.errors import ArtifactError


def codes(paths: RunPaths) -> set[str]:
    """The codes of everything that verifying finds; empty for an intact data set."""
    try:
        verify_data_set(paths.manifest)
    except ArtifactError as error:
        assert all(problem.message and str(problem) for problem in error.problems)
        return {problem.code for problem in error.problems}
    return set()


def canonical(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def reseal(path: Path, document: dict[str, Any]) -> None:
    """Write a document with a digest that fits, as somebody would who knows the format."""
    document.pop("content_sha256", None)
    document["content_sha256"] = hashlib.sha256(canonical(document)).hexdigest()
    path.write_text(json.dumps(document, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def reseal_data(paths: RunPaths) -> None:
    """Make the manifest's sizes and digests fit whatever the data files now hold."""
    manifest = json.loads(paths.manifest.read_bytes())
    for key, path in (("full", paths.full), ("requests", paths.requests)):
        content = path.read_bytes()
        entry = manifest["artifacts"][key]
        entry.update(rows=content.count(b"\n"), bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    content = paths.analysis.read_bytes()
    manifest["artifacts"]["analysis"].update(bytes=len(content), sha256_at_prepare=hashlib.sha256(content).hexdigest())
    reseal(paths.manifest, manifest)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every leaf and every container in a document."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def container_of(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        document = document[key]
    return document


def some_other_values(value: Any, place: tuple[Any, ...], count: int = 4) -> list[Any]:
    """A few of :func:`other_values`, chosen by the place, so that all kinds occur somewhere."""
    values = other_values(value)
    return random.Random(repr(place)).sample(values, min(count, len(values)))


def other_values(value: Any) -> list[Any]:
    """Values that stand for any edit of ``value``: another of its type, and other types."""
    values: list[Any] = [None, [], {}, "x", -1, 10**30, 0.25, True, [value]]
    if isinstance(value, bool):
        values.append(not value)
    elif isinstance(value, (int, float)):
        values += [value + 1, -value - 1, float(value), str(value)]
    elif isinstance(value, str):
        values += [value + "x", value[:-1], value.swapcase()]
    return [other for other in values if type(other) is not type(value) or other != value]
