"""MMMU-shaped Parquet files with images drawn here."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

IMAGE_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def drawn(width: int, height: int, *, mode: str = "RGB", kind: str = "PNG", noise: int = 0, **options: Any) -> bytes:
    """A picture in ``mode``, saved by Pillow as ``kind``; ``noise`` makes it random, so that it stays large."""
    if noise:
        pixels = np.random.default_rng(noise).integers(0, 256, (height, width, 3), dtype=np.uint8)
    else:
        rows, columns = np.mgrid[0:height, 0:width]
        pixels = np.stack([rows % 256, columns % 256, (rows + columns) // 16 % 256], axis=-1).astype(np.uint8)
    image = Image.fromarray(pixels)
    if mode == "I;16":
        image = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
    elif mode == "RGBA":
        image.putalpha(Image.fromarray(pixels[..., 0]))
    else:
        image = image.convert(mode)
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def cell(content: bytes | None, path: str | None = None) -> dict[str, Any]:
    """A cell as the ``datasets`` library writes it."""
    return {"bytes": content, "path": path}


def write_parquet(
    path: Path,
    columns: Mapping[str, Sequence[Any]],
    *,
    image_type: pa.DataType = IMAGE_TYPE,
    rows_per_group: int = 2,
    with_ids: bool = True,
) -> None:
    """A file of questions whose image columns are ``columns``."""
    rows = max(map(len, columns.values()))
    arrays: dict[str, Any] = {"question": pa.array([f"What is shown in <image 1> of {n}?" for n in range(rows)])}
    if with_ids:
        arrays["id"] = pa.array([f"validation_{path.parent.name}_{n}" for n in range(rows)])
    for name, cells in columns.items():
        arrays[name] = pa.array(cells, type=image_type)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(arrays), path, row_group_size=rows_per_group)
