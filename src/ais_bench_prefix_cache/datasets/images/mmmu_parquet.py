"""Finds an image of one native size in a directory of MMMU Parquet files.

Files are looked through in the order of their paths, rows and columns ``image_1`` … ``image_7`` in theirs, and the
search stops at the first image that is whole and has exactly the wanted size: the same files give the same image on
every machine. Only the image columns are read, a few rows at a time.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.datasets.images.decoding import DamagedImageError, ImageHeader, decode, read_header
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import GenerationError, ScenarioError
from ais_bench_prefix_cache.foundation.foreign_files import HEAD_BYTES, foreign_file

IMAGE_COLUMNS = tuple(f"image_{number}" for number in range(1, 8))
ID_COLUMN = "id"
WHERE = "scenario: multimodal.mmmu_parquet_dir"

SIZES_SHOWN = 200
EXAMPLES_SHOWN = 3
COLUMNS_SHOWN = 20
_ROWS_AT_ONCE = 4
_READ_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class ChosenImage:
    """One image, its bytes untouched, and where they come from. ``row_index`` counts the file's rows from 0."""

    content: bytes
    header: ImageHeader
    parquet_path: Path
    row_index: int
    image_column: str
    sample_id: str | None

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


@dataclass
class SearchRecord:
    """What was passed on the way.

    ``sizes`` counts the readable images by (width, height); ``other_columns`` are those of files without image columns.
    """

    files: int = 0
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    damaged: list[str] = field(default_factory=list)
    without_bytes: int = 0
    unreadable_files: list[str] = field(default_factory=list)
    strange_columns: list[str] = field(default_factory=list)
    other_columns: set[str] = field(default_factory=set)

    def warnings(self) -> list[dict[str, Any]]:
        """Warning objects for what should not have been there."""
        found = []
        for code, entries, what in (
            (Code.DAMAGED_IMAGES, self.damaged, "damaged image cells"),
            (Code.DAMAGED_PARQUET_FILES, self.unreadable_files, "Parquet files that cannot be read"),
            (Code.IMAGE_COLUMN_TYPE, self.strange_columns, "image columns that hold no bytes"),
        ):
            if entries:
                found.append(
                    {
                        "code": code.value,
                        "message": f"skipped {what}: {len(entries)} ({_examples(entries)})",
                        "count": len(entries),
                    }
                )
        return found


def find_image(directory: Path, width: int, height: int) -> tuple[ChosenImage, SearchRecord]:
    """The first whole image of exactly ``width`` × ``height`` pixels below ``directory`` (or in that single file).

    Raises :class:`ScenarioError` where the directory or pyarrow is missing, :class:`GenerationError` with the sizes
    that do exist where none fits.
    """
    files = parquet_files(directory)
    record = SearchRecord()
    for path in files:
        record.files += 1
        for image in _images(path, record):
            try:
                header = read_header(image.content)
                record.sizes[header.width, header.height] += 1
                if (header.width, header.height) != (width, height):
                    continue
                decode(image.content)
            except DamagedImageError as error:
                record.damaged.append(f"{image.where} ({error})")
                continue
            return image.chosen(header), record
    raise _none_fits(directory, width, height, record)


def parquet_files(directory: Path) -> list[Path]:
    """All Parquet files below ``directory``, hidden ones left out, ordered by their path relative to it.

    Links are followed, as the cache of the Hugging Face hub needs. Raises :class:`ScenarioError` where there are none.
    """
    if directory.is_file():
        return [directory]
    if not directory.is_dir():
        raise ScenarioError.of(
            Code.MMMU_NOT_FOUND,
            WHERE,
            f"the directory {str(directory)!r} does not exist",
            allowed="a directory with the Parquet files of MMMU",
        )
    found: list[tuple[tuple[str, ...], Path]] = []
    seen: set[str] = set()
    for root, directories, names in os.walk(directory, followlinks=True):
        real = os.path.realpath(root)
        if real in seen:
            directories.clear()
            continue
        seen.add(real)
        directories[:] = sorted(name for name in directories if not name.startswith("."))
        for name in names:
            if name.lower().endswith(".parquet") and not name.startswith("."):
                path = Path(root, name)
                found.append((path.relative_to(directory).parts, path))
    if not found:
        raise ScenarioError.of(
            Code.MMMU_EMPTY,
            WHERE,
            f"no *.parquet file lies below {str(directory)!r}",
            allowed="a directory with the Parquet files of MMMU",
        )
    return [path for _, path in sorted(found)]


@dataclass(frozen=True)
class _Cell:
    """The bytes of one cell, not copied, and its place."""

    content: memoryview
    path: Path
    row_index: int
    column: str
    sample_id: str | None

    @property
    def where(self) -> str:
        return f"{self.path} row {self.row_index} {self.column}"

    def chosen(self, header: ImageHeader) -> ChosenImage:
        return ChosenImage(bytes(self.content), header, self.path, self.row_index, self.column, self.sample_id)


def _images(path: Path, record: SearchRecord) -> Iterator[_Cell]:
    """Every cell with bytes of one file, row by row. What cannot be read goes into ``record``."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise ScenarioError.of(
            Code.MULTIMODAL_EXTRA_MISSING,
            "--mode mm",
            "reading Parquet files needs pyarrow, which is not installed",
            hint="pip install 'ais-bench-prefix-cache[multimodal]'",
        ) from None
    if path.exists() and not path.is_file():
        # Opening a pipe would wait for its writer.
        record.unreadable_files.append(f"{path} (not a regular file)")
        return
    try:
        with ParquetFile(path, buffer_size=_READ_BUFFER_BYTES, pre_buffer=False) as file:
            columns = _image_columns(file.schema_arrow, path, record)
            if not columns:
                record.other_columns.update(file.schema_arrow.names)
                return
            wanted = [*columns, *([ID_COLUMN] if ID_COLUMN in file.schema_arrow.names else [])]
            first_row = 0
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=wanted, use_threads=False):
                    yield from _cells(batch, columns, path, first_row, record)
                    first_row += batch.num_rows
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        record.unreadable_files.append(f"{path} ({_reason(path, error)})")


def _image_columns(schema: Any, path: Path, record: SearchRecord) -> list[str]:
    """The image columns of a file whose cells hold bytes: plain ones, or a struct with a field ``bytes``."""
    columns = []
    for name in IMAGE_COLUMNS:
        if name not in schema.names:
            continue
        kind = schema.field(schema.names.index(name)).type
        if _holds_bytes(kind) or (_is_struct(kind) and any(f.name == "bytes" and _holds_bytes(f.type) for f in kind)):
            columns.append(name)
        elif str(kind) != "null":
            record.strange_columns.append(f"{path} {name} ({kind})")
    return columns


def _is_struct(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_struct(kind))


def _holds_bytes(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or str(kind) == "binary_view"
    )


def _cells(batch: Any, columns: Sequence[str], path: Path, first_row: int, record: SearchRecord) -> Iterator[_Cell]:
    # Of columns with the same name the first one counts.
    names = batch.schema.names
    arrays = [(name, batch.column(names.index(name))) for name in columns]
    ids = batch.column(names.index(ID_COLUMN)) if ID_COLUMN in names else None
    for row in range(batch.num_rows):
        sample_id = None if ids is None else _sample_id(ids[row])
        for name, array in arrays:
            cell = array[row]
            if not cell.is_valid:
                continue
            if _is_struct(array.type):
                cell = cell["bytes"]
            if hasattr(cell, "dictionary"):
                cell = cell.value
            if not cell.is_valid:
                record.without_bytes += 1
                continue
            # Arrow's buffers hold signed bytes.
            content = memoryview(cell.as_buffer()).cast("B")
            yield _Cell(content, path, first_row + row, name, sample_id)


def _sample_id(cell: Any) -> str | None:
    """The text of an ``id`` cell; None where it is null or its bytes are no text."""
    try:
        value = cell.as_py()
    except UnicodeDecodeError:
        return None
    return None if value is None else str(value)


def _reason(path: Path, error: Exception) -> str:
    try:
        with path.open("rb") as stream:
            foreign = foreign_file(stream.read(HEAD_BYTES))
        if foreign is not None:
            return f"{foreign.what}; {foreign.hint}"
    except OSError as unreadable:
        return unreadable.strerror or str(unreadable)
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


def _none_fits(directory: Path, width: int, height: int, record: SearchRecord) -> GenerationError:
    where = str(directory)
    passed = [warning["message"] for warning in record.warnings()]
    if record.without_bytes:
        passed.append(f"cells without bytes: {record.without_bytes}; images must be embedded in the Parquet files")
    if record.other_columns and not record.sizes:
        passed.append(f"columns that exist: {_shown_columns(record.other_columns)}")
    hint = "\n    ".join(passed) or None
    if not record.sizes:
        return GenerationError.of(
            Code.NO_IMAGES,
            WHERE,
            f"no image was found in the Parquet files of {where!r} (files: {record.files})",
            allowed=f"columns {IMAGE_COLUMNS[0]} to {IMAGE_COLUMNS[-1]} with image bytes, plain or as a struct of "
            "bytes and path",
            hint=hint,
        )
    sizes = sorted(record.sizes.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{w}x{h}: {count}" for (w, h), count in sizes[:SIZES_SHOWN])
    if len(sizes) > SIZES_SHOWN:
        rest = sum(count for _, count in sizes[SIZES_SHOWN:])
        shown += f", and {rest} images of {len(sizes) - SIZES_SHOWN} other sizes"
    return GenerationError.of(
        Code.IMAGE_SIZE_NOT_FOUND,
        WHERE,
        f"no whole image of {width}x{height} pixels lies in {where!r}; images are never scaled. Sizes that exist: "
        f"{shown}",
        allowed=f"a directory with an image of {width}x{height} pixels",
        hint=hint,
    )


def _shown_columns(names: set[str]) -> str:
    shown = sorted(names)[:COLUMNS_SHOWN]
    rest = len(names) - len(shown)
    return ", ".join(map(repr, shown)) + (f" and {rest} more" if rest else "")


def _examples(entries: Sequence[str]) -> str:
    rest = len(entries) - EXAMPLES_SHOWN
    return "; ".join(entries[:EXAMPLES_SHOWN]) + (f"; and {rest} more" if rest > 0 else "")
