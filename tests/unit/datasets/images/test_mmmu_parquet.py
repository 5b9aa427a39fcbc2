"""Choosing an image from MMMU-shaped Parquet files: layouts, cells, order, refusals."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.doubles.mmmu_directory import cell, drawn, write_parquet

from ais_bench_prefix_cache.datasets.images.mmmu_parquet import find_image, parquet_files
from ais_bench_prefix_cache.foundation.errors import GenerationError, PrefixCacheError, ScenarioError

SMALL = drawn(64, 48)
HD = drawn(1920, 1080)
SD = drawn(1280, 720, mode="P")


def refusal(directory: Path, width: int = 1920, height: int = 1080) -> PrefixCacheError:
    with pytest.raises(PrefixCacheError) as caught:
        find_image(directory, width, height)
    return caught.value


@pytest.mark.parametrize(
    "names",
    [
        ["Art/validation-00000-of-00001.parquet", "Biology/validation-00000-of-00001.parquet"],
        ["data/dev-00000-of-00001.parquet", "data/validation-00000-of-00001.parquet"],
        ["a.parquet", "b.PARQUET"],
        ["deep/er/and/deeper/x.parquet", "deep/y.parquet"],
    ],
    ids=["subjects", "data", "flat", "nested"],
)
def test_every_layout_is_searched_in_the_order_of_its_paths(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        write_parquet(tmp_path / name, {"image_1": [cell(SMALL), cell(HD, "x.jpg")]})
    (tmp_path / "README.md").write_text("not data")
    (tmp_path / ".cache").mkdir()
    shutil.copy(tmp_path / names[0], tmp_path / ".cache" / "0.parquet")
    assert parquet_files(tmp_path) == sorted(tmp_path / name for name in names)
    image, record = find_image(tmp_path, 1920, 1080)
    assert (image.parquet_path, image.row_index, image.image_column) == (
        sorted(tmp_path / n for n in names)[0],
        1,
        "image_1",
    )
    assert image.content == HD and image.sha256 == hashlib.sha256(HD).hexdigest()
    assert (record.files, dict(record.sizes)) == (1, {(64, 48): 1, (1920, 1080): 1})


def test_a_single_file_and_linked_files_are_read(tmp_path: Path) -> None:
    write_parquet(tmp_path / "blobs" / "0123", {"image_1": [cell(HD)]})
    link = tmp_path / "snapshot" / "Art" / "validation.parquet"
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "blobs" / "0123")
    (tmp_path / "snapshot" / "loop").symlink_to(tmp_path / "snapshot")
    assert find_image(tmp_path / "snapshot", 1920, 1080)[0].parquet_path == link
    assert find_image(tmp_path / "blobs" / "0123", 1920, 1080)[0].content == HD


def test_a_read_only_directory_is_enough(tmp_path: Path) -> None:
    write_parquet(tmp_path / "mmmu" / "a.parquet", {"image_1": [cell(HD)]})
    (tmp_path / "mmmu").chmod(0o555)
    before = sorted(tmp_path.rglob("*"))
    assert find_image(tmp_path / "mmmu", 1920, 1080)[0].content == HD
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "mmmu").chmod(0o755)


def test_rows_come_before_columns_and_row_groups_keep_counting(tmp_path: Path) -> None:
    other = drawn(1920, 1080, mode="L")
    write_parquet(
        tmp_path / "a.parquet",
        {
            "image_1": [None, cell(SMALL), cell(SMALL), None, cell(other)],
            "image_2": [None, None, None, None, None],
            "image_7": [None, None, None, cell(HD), None],
        },
    )
    image, _ = find_image(tmp_path, 1920, 1080)
    assert (image.row_index, image.image_column, image.content) == (3, "image_7", HD)
    assert image.sample_id == f"validation_{tmp_path.name}_3"


@pytest.mark.parametrize(
    "image_type",
    [
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.binary(len(HD)),
        pa.dictionary(pa.int32(), pa.binary()),
        pa.struct([("bytes", pa.large_binary())]),
        pa.struct([("path", pa.string()), ("bytes", pa.binary())]),
        pa.struct([("height", pa.int32()), ("bytes", pa.binary_view()), ("tags", pa.list_(pa.string()))]),
    ],
    ids=str,
)
def test_cells_of_every_type_of_bytes_are_read(tmp_path: Path, image_type: pa.DataType) -> None:
    cells = [None, HD] if not pa.types.is_struct(image_type) else [None, {"bytes": HD}]
    write_parquet(tmp_path / "a.parquet", {"image_3": cells}, image_type=image_type, with_ids=False)
    image, record = find_image(tmp_path, 1920, 1080)
    assert (image.content, image.row_index, image.sample_id, record.warnings()) == (HD, 1, None, [])


@pytest.mark.parametrize(
    ("content", "kind", "mime"),
    [
        *((drawn(1280, 720, mode=mode), "PNG", "image/png") for mode in ("P", "L", "LA", "RGBA", "1", "I;16")),
        (drawn(1280, 720, kind="JPEG"), "JPEG", "image/jpeg"),
        (drawn(1280, 720, kind="WEBP"), "WEBP", "image/webp"),
        (drawn(1280, 720, mode="P", kind="GIF"), "GIF", "image/gif"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_the_type_is_the_content_s_whatever_the_name_says(tmp_path: Path, content: bytes, kind: str, mime: str) -> None:
    write_parquet(tmp_path / "a.parquet", {"image_1": [cell(content, "picture.bmp")]})
    image, _ = find_image(tmp_path, 1280, 720)
    assert (image.content, image.header.format, image.header.mime_type) == (content, kind, mime)


def test_damaged_cells_and_files_are_skipped_counted_and_named(tmp_path: Path) -> None:
    (tmp_path / "0-empty.parquet").write_bytes(b"")
    (tmp_path / "1-lfs.parquet").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    write_parquet(
        tmp_path / "2.parquet",
        {
            "image_1": [cell(HD[:-20]), cell(b""), cell(None, "elsewhere.png"), cell(HD)],
            "image_2": [cell(b"<html>"), None, None, None],
        },
    )
    write_parquet(tmp_path / "1-text.parquet", {"image_1": ["a.png"]}, image_type=pa.string())
    image, record = find_image(tmp_path, 1920, 1080)
    assert image.row_index == 3
    assert record.without_bytes == 1
    assert [(warning["code"], warning["count"]) for warning in record.warnings()] == [
        ("DAMAGED_IMAGES", 3),
        ("DAMAGED_PARQUET_FILES", 2),
        ("IMAGE_COLUMN_TYPE", 1),
    ]
    messages = [warning["message"] for warning in record.warnings()]
    path = tmp_path / "2.parquet"
    assert messages[0] == (
        f"skipped damaged image cells: 3 ({path} row 0 image_1 (it does not decode: Truncated File Read); "
        f"{path} row 0 image_2 (neither PNG, JPEG, WebP nor GIF); {path} row 1 image_1 (no bytes))"
    )
    assert "1-lfs.parquet (a Git LFS pointer, " in messages[1]
    assert (
        messages[2] == f"skipped image columns that hold no bytes: 1 ({tmp_path / '1-text.parquet'} image_1 (string))"
    )


def test_a_pipe_in_the_directory_is_skipped_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.parquet")
    (tmp_path / "b.parquet").symlink_to("nowhere")
    write_parquet(tmp_path / "c.parquet", {"image_1": [cell(HD)]})
    image, record = find_image(tmp_path, 1920, 1080)
    assert image.parquet_path == tmp_path / "c.parquet"
    assert record.unreadable_files == [
        f"{tmp_path / 'a.parquet'} (not a regular file)",
        f"{tmp_path / 'b.parquet'} (No such file or directory)",
    ]


def test_an_id_that_is_no_text_and_doubled_columns_do_not_hide_an_image(tmp_path: Path) -> None:
    broken = pa.array([b"\xff\xfe"], pa.binary())
    ids = pa.Array.from_buffers(pa.string(), 1, broken.buffers())
    first, second = pa.array([HD], pa.binary()), pa.array([SMALL], pa.binary())
    table = pa.Table.from_arrays([ids, first, second], names=["id", "image_1", "image_1"])
    pq.write_table(table, tmp_path / "a.parquet")
    image, record = find_image(tmp_path, 1920, 1080)
    assert (image.content, image.sample_id, record.warnings()) == (HD, None, [])


def test_a_file_whose_column_names_are_no_text_is_skipped(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", {"image_1": [cell(HD)]}, with_ids=False)
    path = tmp_path / "a.parquet"
    path.write_bytes(path.read_bytes().replace(b"image_1", b"image_\xff"))
    write_parquet(tmp_path / "b.parquet", {"image_1": [cell(HD)]})
    image, record = find_image(tmp_path, 1920, 1080)
    assert image.parquet_path == tmp_path / "b.parquet" and record.unreadable_files[0].startswith(f"{path} (")


def test_a_wrong_size_is_answered_with_the_sizes_that_exist(tmp_path: Path) -> None:
    write_parquet(
        tmp_path / "a.parquet", {"image_1": [cell(SMALL), cell(SD), cell(SMALL)], "image_2": [cell(b"?")] * 3}
    )
    error = refusal(tmp_path)
    assert isinstance(error, GenerationError)
    file = tmp_path / "a.parquet"
    damaged = "; ".join(f"{file} row {row} image_2 (neither PNG, JPEG, WebP nor GIF)" for row in range(3))
    assert str(error) == (
        f"scenario: multimodal.mmmu_parquet_dir: no whole image of 1920x1080 pixels lies in '{tmp_path}'; images are "
        "never scaled. Sizes that exist: 64x48: 2, 1280x720: 1 (allowed: a directory with an image of 1920x1080 "
        f"pixels)\n    skipped damaged image cells: 3 ({damaged})"
    )


def test_directories_without_images_are_refused(tmp_path: Path) -> None:
    missing = refusal(tmp_path / "missing")
    assert isinstance(missing, ScenarioError) and missing.problems[0].code == "MMMU_NOT_FOUND"
    assert refusal(tmp_path).problems[0].code == "MMMU_EMPTY"
    pq.write_table(pa.table({"question": ["a"], "picture": [b"b"]}), tmp_path / "a.parquet")
    none = refusal(tmp_path)
    assert none.problems[0].hint == "columns that exist: 'picture', 'question'"
    assert none.problems[0].code == "NO_IMAGES"
    assert (
        none.problems[0].allowed
        == "columns image_1 to image_7 with image bytes, plain or as a struct of bytes and path"
    )


def test_the_search_reads_only_image_columns_and_stops_at_the_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        write_parquet(tmp_path / f"{name}.parquet", {"image_1": [cell(SMALL), cell(HD), cell(SMALL), cell(SMALL)]})
    read: list[tuple[str, list[int], list[str]]] = []

    class Recorded(pq.ParquetFile):  # type: ignore[misc]
        def __init__(self, source: Path, **options: Any) -> None:
            self.name = source.name
            super().__init__(source, **options)

        def iter_batches(self, *arguments: Any, **options: Any) -> Any:
            read.append((self.name, options["row_groups"], options["columns"]))
            return super().iter_batches(*arguments, **options)

    monkeypatch.setattr(pq, "ParquetFile", Recorded)
    find_image(tmp_path, 1920, 1080)
    assert read == [("a.parquet", [0], ["image_1", "id"])]
