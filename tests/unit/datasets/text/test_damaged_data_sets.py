"""Every edit, truncation, swap, appended byte or missing file is found and named, and none leads to a crash."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.format.writing import update_analysis
from ais_bench_prefix_cache.datasets.kinds import verify_data_set
from ais_bench_prefix_cache.foundation.errors import ArtifactError

MODES = ("cold", "warmup")
FILES = ("full", "requests", "manifest", "analysis")


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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("output_key", [None, "max_tokens", "output_tokens"])
def test_an_intact_data_set_is_verified(make_data_set: Any, mode: str, output_key: str | None) -> None:
    paths = make_data_set(mode, output_key)
    data_set = verify_data_set(paths.manifest)
    assert data_set.rows == 12
    assert data_set.paths == paths
    assert data_set.manifest["status"] == "prepared"
    assert data_set.analysis["status"] == "prepared"


def test_a_moved_directory_is_verified(make_data_set: Any, tmp_path: Path) -> None:
    paths = make_data_set("cold")
    moved = tmp_path / "elsewhere" / "renamed"
    moved.parent.mkdir()
    paths.directory.rename(moved)
    assert verify_data_set(moved / "result" / paths.manifest.name).paths.full == moved / "result" / paths.full.name


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


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("appended", [b"\n", b" ", b"{}\n", b"\x00"])
def test_appended_bytes_are_found(make_data_set: Any, name: str, appended: bytes) -> None:
    paths = make_data_set("warmup")
    path: Path = getattr(paths, name)
    path.write_bytes(path.read_bytes() + appended)
    assert codes(paths)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(make_data_set: Any, name: str) -> None:
    paths = make_data_set("cold")
    path: Path = getattr(paths, name)
    path.unlink()
    with pytest.raises(ArtifactError) as caught:
        verify_data_set(paths.manifest)
    problems = [problem for problem in caught.value.problems if problem.code == "MISSING_FILE"]
    assert [problem.where for problem in problems] == [str(path)]


def test_all_missing_files_are_named_at_once(make_data_set: Any) -> None:
    paths = make_data_set("cold")
    for path in (paths.full, paths.requests, paths.analysis):
        path.unlink()
    with pytest.raises(ArtifactError) as caught:
        verify_data_set(paths.manifest)
    assert [(problem.code, problem.where) for problem in caught.value.problems] == [
        ("MISSING_FILE", str(paths.full)),
        ("MISSING_FILE", str(paths.requests)),
        ("MISSING_FILE", str(paths.analysis)),
    ]


@pytest.mark.parametrize("name", FILES)
def test_an_empty_file_is_found(make_data_set: Any, name: str) -> None:
    paths = make_data_set("warmup")
    getattr(paths, name).write_bytes(b"")
    assert codes(paths)


@pytest.mark.parametrize("name", FILES)
def test_a_directory_in_place_of_a_file_is_found(make_data_set: Any, name: str) -> None:
    paths = make_data_set("cold")
    path: Path = getattr(paths, name)
    path.unlink()
    path.mkdir()
    assert "UNREADABLE_FILE" in codes(paths)


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


def test_another_layout_of_the_same_row_is_found(make_data_set: Any) -> None:
    paths = make_data_set("cold")
    for path in (paths.full, paths.requests):
        intact = path.read_bytes()
        lines = intact.splitlines(keepends=True)
        for line in (lines[2].replace(b": ", b":", 1), lines[2].replace(b"}\n", b" }\n"), lines[2][:-1] + b"\r\n"):
            path.write_bytes(b"".join([*lines[:2], line, *lines[3:]]))
            reseal_data(paths)
            assert codes(paths) == {"LAYOUT_EDITED"}
        path.write_bytes(intact)


def test_a_doubled_seed_is_found(make_data_set: Any) -> None:
    paths = make_data_set("warmup")
    lines = paths.full.read_bytes().splitlines(keepends=True)
    rows = [json.loads(lines[0]), json.loads(lines[1])]
    for key in ("seed_sha256", "divergence_block_sha256"):
        changed = lines[1].replace(rows[1][key].encode(), rows[0][key].encode())
        paths.full.write_bytes(b"".join([lines[0], changed, *lines[2:]]))
        reseal_data(paths)
        assert codes(paths) == {"NOT_UNIQUE"}


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


def test_the_warm_up_plan_is_the_same_on_every_rank(make_data_set: Any) -> None:
    paths = make_data_set("warmup")
    document = json.loads(paths.manifest.read_bytes())
    document["warmup"]["plan"][1]["prompt"] += "!"
    reseal(paths.manifest, document)
    with pytest.raises(ArtifactError) as caught:
        verify_data_set(paths.manifest)
    name = paths.manifest.name
    assert str(caught.value) == (
        f"{name}: warmup.plan[1].prompt: it says 'prefix 0 “warm”!' (allowed: 'prefix 0 “warm”')"
    )


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


def test_files_of_another_data_set_are_found(make_data_set: Any, tmp_path: Path) -> None:
    cold, other = make_data_set("cold"), make_data_set("warmup")
    for name in ("full", "requests", "analysis"):
        intact = getattr(cold, name).read_bytes()
        shutil.copyfile(getattr(other, name), getattr(cold, name))
        if name != "requests":  # both modes send the same requests here
            assert codes(cold), name
        getattr(cold, name).write_bytes(intact)
    renamed = cold.manifest.with_name(other.manifest.name)
    cold.manifest.rename(renamed)
    assert codes(RunPaths.of_manifest(renamed))


def test_problems_of_one_kind_are_counted_not_listed_without_end(make_data_set: Any) -> None:
    paths = make_data_set("cold")
    lines = paths.full.read_bytes().splitlines(keepends=True)
    paths.full.write_bytes(
        b"".join(
            line.replace(b'"seed_tokens": 4', b'"seed_tokens": 5').replace(b'hit_tokens": ', b'hit_tokens": 9')
            for line in lines
        )
    )
    with pytest.raises(ArtifactError) as caught:
        verify_data_set(paths.manifest)
    wrong = [problem for problem in caught.value.problems if problem.code == "WRONG_VALUE" and problem.where]
    assert len(wrong) == 20
    assert caught.value.problems[-1].message == "4 more problems of the kind WRONG_VALUE"


def test_an_inspected_manifest_is_no_data_set(make_data_set: Any) -> None:
    paths = make_data_set("cold")
    document = json.loads(paths.manifest.read_bytes())
    reseal(paths.manifest, {**document, "status": "inspected"})
    with pytest.raises(ArtifactError) as caught:
        verify_data_set(paths.manifest)
    assert str(caught.value) == (
        f"{paths.manifest}: this manifest only holds a plan (status inspected); there is no data set yet\n"
        "    Run prepare with the same Scenario."
    )
