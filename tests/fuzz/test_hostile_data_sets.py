"""Data sets that somebody changed: what does not follow from the configuration is named; nothing ends otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.doubles.hostile import DEEP, JSON, SETTINGS
from tests.doubles.sealed_data_sets import KINDS, DataSet

from ais_bench_prefix_cache.datasets.kinds import kind_named, verify
from ais_bench_prefix_cache.foundation.errors import PrefixCacheError

FREE_SECTIONS = {"tokenizer", "scenario_path", "scenario_sha256", "corpus_sha256", "created_at", "effective_config"}
"""Of these a manifest is the only witness, or they decide what all others must be."""


def places_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places_in(value[key], (*place, key))


def change(document: Any, place: tuple[Any, ...], data: st.DataObject) -> None:
    """Replace, remove or double what stands at ``place``."""
    *way, last = place
    for key in way:
        document = document[key]
    how = data.draw(st.sampled_from(["replace", "replace", "remove", "another key", "near"]))
    if how == "remove":
        del document[last]
    elif how == "another key" and isinstance(document, dict):
        document[data.draw(st.text(max_size=5))] = data.draw(JSON)
    elif how == "near" and isinstance(document[last], (int, float)) and not isinstance(document[last], bool):
        document[last] += data.draw(st.sampled_from([1, -1, 0.5, 16, 2**53]))
    else:
        document[last] = data.draw(JSON)


def verified(manifest: Path) -> bool:
    """Whether nothing is found; everything but an error of our own tree is a failure."""
    try:
        verify(manifest)
    except PrefixCacheError as error:
        assert error.problems
        return False
    return True


@SETTINGS
@given(data=st.data())
@pytest.mark.parametrize("kind", KINDS)
def test_a_manifest_that_was_changed_and_sealed(
    kind: str, data: st.DataObject, originals: dict[str, Path], tmp_path: Path
) -> None:
    damaged = DataSet.copy_of(originals[kind], tmp_path)
    before = json.dumps(damaged.manifest)
    place = data.draw(st.sampled_from([each for each in places_in(damaged.manifest) if each]))
    change(damaged.manifest, place, data)
    try:
        damaged.seal()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        damaged.path.write_bytes(json.dumps(damaged.manifest).encode())  # nothing to seal is left
    after = json.dumps(damaged.manifest)
    if verified(damaged.path) and place[0] not in FREE_SECTIONS and not is_origin(place):
        digests = ("content_sha256", "effective_config_sha256", "artifacts", "datasets")
        assert place[0] in digests or same_but_digests(before, after), f"{place} was changed and nobody noticed"


def is_origin(place: tuple[Any, ...]) -> bool:
    """Digests and corpus rows of prefixes, traces and images: only making the data set again could contradict them."""
    words = (
        "sha256",
        "indices",
        "hashes",
        "path",
        "image",
        "warmup",
        "damaged",
        "unreadable",
        "without_bytes",
        "files",
    )
    return any(word in str(key) for key in place for word in words)


def same_but_digests(before: str, after: str) -> bool:
    documents = [json.loads(each) for each in (before, after)]
    for document in documents:
        for key in ("content_sha256", "effective_config_sha256", "artifacts"):
            document.pop(key, None)
    return bool(documents[0] == documents[1])


@SETTINGS
@given(data=st.data())
@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_were_changed_and_sealed(
    kind: str, data: st.DataObject, originals: dict[str, Path], tmp_path: Path
) -> None:
    damaged = DataSet.copy_of(originals[kind], tmp_path)
    first = next(iter(damaged.manifest["artifacts"]))
    before = damaged.file(first).read_bytes()
    rows = damaged.rows(first)
    free = set(kind_named(damaged.manifest["benchmark_mode"]).row_type.free_fields())
    how = data.draw(st.sampled_from(["value", "value", "value", "drop", "swap", "double"]))
    number = data.draw(st.integers(0, len(rows) - 1))
    key = None
    if how == "drop":
        del rows[number]
    elif how == "double":
        rows.insert(number, rows[data.draw(st.integers(0, len(rows) - 1))])
    elif how == "swap":
        other = data.draw(st.integers(0, len(rows) - 1))
        rows[number], rows[other] = rows[other], rows[number]
    else:
        key = data.draw(st.sampled_from(list(rows[number])))
        change(rows[number], (key,), data)
    try:
        damaged.change_rows(lambda old: old.__setitem__(slice(None), rows))
        damaged.seal()
    except (KeyError, TypeError, UnicodeEncodeError):
        return  # rows that have no partner can be made to fit nothing
    changed = damaged.file(first).read_bytes() != before
    if changed and key not in free:
        assert not verified(damaged.path), f"{how} {key} in row {number}: nobody noticed"
    else:
        verified(damaged.path)


@SETTINGS
@given(data=st.data())
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_that_were_changed(kind: str, data: st.DataObject, originals: dict[str, Path], tmp_path: Path) -> None:
    damaged = DataSet.copy_of(originals[kind], tmp_path)
    path = data.draw(st.sampled_from([damaged.path, *map(damaged.file, damaged.manifest["artifacts"])]))
    content = path.read_bytes()
    at = data.draw(st.integers(0, len(content)))
    new = data.draw(st.binary(max_size=20) | DEEP)
    path.write_bytes(content[:at] + new + content[at + data.draw(st.integers(0, 40)) :])
    if path.read_bytes() != content:
        assert not verified(damaged.path)
