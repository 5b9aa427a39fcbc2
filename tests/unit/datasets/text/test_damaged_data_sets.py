"""Data sets whose files are whole, moved, missing, empty or of another one; the messages that name what is wrong.

That no edit at all goes unnoticed is held by ``tests/property/test_damaged_data_set_laws.py``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.resealing import codes, reseal, reseal_data

from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.kinds import verify_data_set
from ais_bench_prefix_cache.foundation.errors import ArtifactError

MODES = ("cold", "warmup")
FILES = ("full", "requests", "manifest", "analysis")


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
