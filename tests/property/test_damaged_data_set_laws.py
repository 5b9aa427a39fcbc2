"""Whatever is edited in a data set is found, also where every digest is made to fit, and none leads to a crash."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.resealing import (
    canonical,
    codes,
    container_of,
    other_values,
    places,
    reseal,
    reseal_data,
    some_other_values,
)

from ais_bench_prefix_cache.datasets.format.writing import update_analysis

MODES = ("cold", "warmup")
FILES = ("full", "requests", "manifest", "analysis")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FILES)
def test_every_byte_counts(make_data_set: Any, mode: str, name: str) -> None:
    """Flipped bits, removed bytes and inserted bytes at places all over the file."""
    paths = make_data_set(mode, "max_tokens")
    path: Path = getattr(paths, name)
    intact = path.read_bytes()
    draw = random.Random(f"{mode} {name}")
    for position in sorted(draw.sample(range(len(intact)), 60)):
        flipped = bytes([intact[position] ^ (1 << draw.randrange(8))])
        inserted = draw.choice([b" ", b"0", b"\n", b"\x00", b"\xff", b'"'])
        for damaged in (
            intact[:position] + flipped + intact[position + 1 :],
            intact[:position] + intact[position + 1 :],
            intact[:position] + inserted + intact[position:],
            intact[:position],
        ):
            path.write_bytes(damaged)
            assert codes(paths), f"byte {position} of {name}"
    path.write_bytes(intact)
    assert not codes(paths)


RowEdit = Callable[[list[bytes]], list[bytes]]
LINE_EDITS: dict[str, RowEdit] = {
    "swapped neighbours": lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]],
    "swapped within a group": lambda lines: [*lines[:3], lines[5], lines[4], lines[3], *lines[6:]],
    "reversed": lambda lines: lines[::-1],
    "first line gone": lambda lines: lines[1:],
    "middle line gone": lambda lines: [*lines[:5], *lines[6:]],
    "last line gone": lambda lines: lines[:-1],
    "doubled line": lambda lines: [*lines[:5], lines[4], *lines[5:]],
    "blank line": lambda lines: [*lines[:5], b"\n", *lines[5:]],
    "no final newline": lambda lines: [*lines[:-1], lines[-1][:-1]],
    "half a line": lambda lines: [*lines[:-1], lines[-1][: len(lines[-1]) // 2]],
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("resealed", [False, True], ids=["", "digests made to fit"])
@pytest.mark.parametrize("which", [("full",), ("requests",), ("full", "requests")], ids="+".join)
@pytest.mark.parametrize("edit", LINE_EDITS)
def test_moved_lines_are_found_even_with_fitting_digests(
    make_data_set: Any, mode: str, resealed: bool, which: tuple[str, ...], edit: str
) -> None:
    paths = make_data_set(mode)
    for name in which:
        path: Path = getattr(paths, name)
        path.write_bytes(b"".join(LINE_EDITS[edit](path.read_bytes().splitlines(keepends=True))))
    if resealed:
        reseal_data(paths)
    found = codes(paths)
    assert found - {"FILE_HASH", "FILE_SIZE"}
    assert ("FILE_HASH" in found) is not resealed


@pytest.mark.parametrize("mode", MODES)
def test_every_edited_value_of_a_row_is_found_with_fitting_digests(make_data_set: Any, mode: str) -> None:
    """Each key of a full row, changed in value or type, removed or added to; the manifest made to fit.

    Left out is what rows alone cannot contradict and only ``--deep`` proves: the choice of corpus rows, the numbers
    that a prompt was made from and its digests.
    """
    unprovable = {"gsm_indices", "gsm_hashes", "request_random_seed", "seed_sha256", "divergence_block_sha256"}
    paths = make_data_set(mode, "max_tokens")
    lines = paths.full.read_bytes().splitlines(keepends=True)
    row = json.loads(lines[7])
    for key, value in row.items():
        for other in other_values(value):
            same_type = type(other) is type(value)
            if key in unprovable and same_type and other not in ("x", -1, [value]):
                continue
            lines_now = list(lines)
            lines_now[7] = json.dumps({**row, key: other}, ensure_ascii=False).encode() + b"\n"
            paths.full.write_bytes(b"".join(lines_now))
            reseal_data(paths)
            assert codes(paths), f"{key}: {value!r} → {other!r}"
        without = {name: kept for name, kept in row.items() if name != key}
        for changed in (without, {**without, key: value}, {**row, f"{key}2": value}):
            if list(changed) == list(row):
                continue
            paths.full.write_bytes(b"".join([*lines[:7], json.dumps(changed).encode() + b"\n", *lines[8:]]))
            reseal_data(paths)
            assert codes(paths) & {"MISSING_KEY", "UNKNOWN_KEY", "KEY_ORDER"}, key


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["manifest", "analysis"])
def test_every_key_of_a_document_is_covered_by_its_digest(make_data_set: Any, mode: str, name: str) -> None:
    paths = make_data_set(mode)
    path: Path = getattr(paths, name)
    document = json.loads(path.read_bytes())
    for place in places(document):
        changed = copy.deepcopy(document)
        container = container_of(changed, place)
        container[place[-1]] = other_values(container[place[-1]])[-1]
        path.write_text(json.dumps(changed, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        assert codes(paths), f"edited {place}"
        if isinstance(place[-1], str):
            del container[place[-1]]
            path.write_text(json.dumps(changed, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
            assert codes(paths), f"removed {place}"


MANIFEST_ONLY = {
    # What no row can contradict: where things come from, and how the plan was made.
    ("plugin_version",),
    ("scenario_path",),
    ("scenario_sha256",),
    ("corpus_sha256",),
    ("tokenizer", "class"),
    ("tokenizer", "vocab_size"),
    ("tokenizer", "fingerprint_sha256"),
    ("tokenizer", "special_token_ids"),
    ("prefix_cache", "trajectory"),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_figure_of_the_manifest_is_proven_by_the_rows(make_data_set: Any, mode: str) -> None:
    """Each key edited and every digest made to fit: plan, rates, target, groups, lengths, hashes are still found."""
    paths = make_data_set(mode)
    document = json.loads(paths.manifest.read_bytes())
    for place in places(document):
        head = place[:2] if place[0] in ("tokenizer", "prefix_cache") else place[:1]
        if head in MANIFEST_ONLY or place[0] in ("effective_config", "effective_config_sha256", "content_sha256"):
            continue
        if place[0] == "groups" and len(place) > 2 and place[2] in ("gsm_indices", "gsm_question_sha256"):
            continue
        if place[:2] == ("warmup", "plan") and len(place) > 3 and place[3] in ("prompt", "input_tokens"):
            continue  # every rank's copy is compared with rank 0's; the text itself is proven by --deep
        if place[0] == "artifacts" and place[-1] in ("path",):
            continue
        for other in some_other_values(container_of(document, place)[place[-1]], place):
            changed = copy.deepcopy(document)
            container_of(changed, place)[place[-1]] = other
            reseal(paths.manifest, changed)
            assert codes(paths), f"{place} → {other!r}"


@pytest.mark.parametrize("mode", MODES)
def test_no_edit_of_the_manifest_crashes(make_data_set: Any, mode: str) -> None:
    paths = make_data_set(mode)
    document = json.loads(paths.manifest.read_bytes())
    for place in places(document):
        for other in some_other_values(container_of(document, place)[place[-1]], place):
            changed = copy.deepcopy(document)
            container_of(changed, place)[place[-1]] = other
            if isinstance(changed.get("effective_config"), dict):
                config = canonical(changed["effective_config"])
                changed["effective_config_sha256"] = hashlib.sha256(config).hexdigest()
            reseal(paths.manifest, changed)
            codes(paths)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("status", ["prepared", "complete", "analyzed"])
def test_the_theory_of_an_analysis_is_proven_by_the_rows(make_data_set: Any, mode: str, status: str) -> None:
    paths = make_data_set(mode)
    document = json.loads(paths.analysis.read_bytes())
    if status != "prepared":
        document["status"] = status
        document["validation"]["actual_status"] = "PASS"
        document = {**document, "runtime": {"phases": {}}, "actual": {"global_hits": 3}}
        document = update_analysis(paths.analysis, document)
        assert not codes(paths)
    for place in places(document):
        if place[0] in ("runtime", "actual", "content_sha256") or place[-1] == "actual_status":
            continue
        for other in some_other_values(container_of(document, place)[place[-1]], place):
            if place == ("status",) and other in ("complete", "analyzed", "prepared"):
                continue
            if place == ("validation", "status") and other == "PASS_WITH_WARNING":
                continue
            if place == ("warnings",) and isinstance(other, list) and status != "prepared":
                continue
            changed = copy.deepcopy(document)
            container_of(changed, place)[place[-1]] = other
            reseal(paths.analysis, changed)
            if status == "prepared":
                reseal_data(paths)
            assert codes(paths), f"{place} → {other!r}"
