"""Kind and size from headers, against Pillow; damage of every sort is noticed."""

from __future__ import annotations

import io
from typing import Any

import pytest
from PIL import Image
from tests.doubles.mmmu_directory import drawn

from ais_bench_prefix_cache.datasets.images.image_header import DamagedImageError, check_whole, read_header

KINDS: list[tuple[str, str, dict[str, Any]]] = [
    *(("PNG", mode, {}) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")),
    ("PNG", "P", {"bits": 2}),
    ("JPEG", "RGB", {}),
    ("JPEG", "L", {"progressive": True}),
    ("JPEG", "CMYK", {"quality": 95}),
    ("WEBP", "RGB", {}),
    ("WEBP", "RGBA", {}),
    ("WEBP", "RGBA", {"lossless": True}),
    ("WEBP", "RGB", {"lossless": True}),
    ("GIF", "P", {}),
    ("GIF", "L", {}),
]


@pytest.mark.parametrize(("kind", "mode", "options"), KINDS, ids=str)
@pytest.mark.parametrize("size", [(1, 1), (127, 75), (1280, 7)], ids=str)
def test_kind_and_size_are_those_that_pillow_sees(
    kind: str, mode: str, options: dict[str, Any], size: tuple[int, int]
) -> None:
    content = drawn(*size, mode=mode, kind=kind, **options)
    with Image.open(io.BytesIO(content)) as image:
        expected = (image.format, *image.size, Image.MIME[image.format or ""])
    header = check_whole(content)
    assert (header.format, header.width, header.height, header.mime_type) == expected
    assert read_header(memoryview(content)) == header


def test_an_interlaced_png_of_any_size_is_whole() -> None:
    # Pillow does not write Adam7, so an image of one colour is put together by hand.
    import struct
    import zlib

    def block(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    for width, height in ((1, 1), (3, 2), (5, 5), (9, 17)):
        passes = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
        rows = b""
        for x, y, dx, dy in passes:
            columns = len(range(x, width, dx))
            rows += b"".join(b"\0" + b"\x7f" * columns for _ in range(y, height, dy) if columns)
        header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 1)
        whole = (
            b"\x89PNG\r\n\x1a\n" + block(b"IHDR", header) + block(b"IDAT", zlib.compress(rows)) + block(b"IEND", b"")
        )
        with Image.open(io.BytesIO(whole)) as image:
            assert set(image.getdata()) == {0x7F}
        assert check_whole(whole).width == width
        short = (
            b"\x89PNG\r\n\x1a\n"
            + block(b"IHDR", header)
            + block(b"IDAT", zlib.compress(rows[:-1]))
            + block(b"IEND", b"")
        )
        with pytest.raises(DamagedImageError, match="fewer pixels"):
            check_whole(short)


@pytest.mark.parametrize(("kind", "mode", "options"), KINDS, ids=str)
def test_a_file_that_ends_too_early_is_damaged_wherever_it_ends(kind: str, mode: str, options: dict[str, Any]) -> None:
    content = drawn(40, 30, mode=mode, kind=kind, **options)
    end = len(content)
    for cut in {*range(40), end // 4, end // 2, end - 13, end - 2, end - 1}:
        with pytest.raises(DamagedImageError):
            check_whole(content[:cut])


def test_a_flipped_bit_in_a_png_is_noticed() -> None:
    content = bytearray(drawn(40, 30))
    for position in range(16, len(content), 97):
        content[position] ^= 4
        with pytest.raises(DamagedImageError):
            check_whole(bytes(content))
        content[position] ^= 4


@pytest.mark.parametrize("content", [b"", b"\x89PNG", b"BM" + bytes(60), b"<svg/>", b"II*\0" + bytes(60), b"text" * 9])
def test_other_bytes_are_no_image(content: bytes) -> None:
    with pytest.raises(DamagedImageError):
        read_header(content)
