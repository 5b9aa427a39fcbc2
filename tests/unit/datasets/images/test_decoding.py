"""Kind and size of images; what does not decode is no image."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import warnings
import zlib
from typing import Any

import pytest
from PIL import Image
from tests.doubles.mmmu_directory import drawn

from ais_bench_prefix_cache.datasets.images.decoding import DamagedImageError, decode, read_header

KINDS: list[tuple[str, str, dict[str, Any]]] = [
    *(("PNG", mode, {}) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")),
    ("JPEG", "RGB", {}),
    ("JPEG", "L", {"progressive": True}),
    ("JPEG", "CMYK", {"quality": 95}),
    ("WEBP", "RGB", {}),
    ("WEBP", "RGBA", {"lossless": True}),
    ("GIF", "P", {}),
]


def png(width: int, height: int, rows: bytes) -> bytes:
    """A grey PNG with the given filtered rows, whatever the header promises."""

    def block(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + block(b"IHDR", header) + block(b"IDAT", zlib.compress(rows)) + block(b"IEND", b"")


@pytest.mark.parametrize(("kind", "mode", "options"), KINDS, ids=str)
@pytest.mark.parametrize("size", [(1, 1), (127, 75)], ids=str)
def test_kind_and_size_are_those_that_were_drawn(
    kind: str, mode: str, options: dict[str, Any], size: tuple[int, int]
) -> None:
    content = drawn(*size, mode=mode, kind=kind, **options)
    header = decode(content)
    assert (header.format, (header.width, header.height)) == (kind, size)
    assert header.mime_type == f"image/{kind.lower()}"
    assert read_header(memoryview(content)) == header


def test_a_jpeg_with_a_second_picture_is_the_first_one() -> None:
    stream = io.BytesIO()
    Image.new("RGB", (30, 20)).save(stream, "MPO", save_all=True, append_images=[Image.new("RGB", (8, 8))])
    header = decode(stream.getvalue())
    assert (header.format, header.mime_type, header.width, header.height) == ("JPEG", "image/jpeg", 30, 20)


@pytest.mark.parametrize(("kind", "mode", "options"), KINDS, ids=str)
def test_a_file_that_ends_within_its_pixels_is_damaged(kind: str, mode: str, options: dict[str, Any]) -> None:
    content = drawn(40, 30, mode=mode, kind=kind, **options)
    for cut in {*range(40), len(content) // 2, len(content) * 3 // 4, len(content) - 13}:
        with pytest.raises(DamagedImageError):
            decode(content[:cut])


def test_a_sound_header_before_broken_pixels_is_damage() -> None:
    # Rows begin with a filter's number, of which there are five.
    broken = png(9, 3, b"\x09" * 30)
    assert read_header(broken).height == 3
    with pytest.raises(DamagedImageError, match="does not decode"):
        decode(broken)
    assert decode(png(9, 3, bytes(30))).height == 3


def test_a_flipped_bit_in_a_png_is_noticed() -> None:
    content = bytearray(drawn(40, 30))
    for position in range(16, len(content) - 4, 97):
        content[position] ^= 4
        with pytest.raises(DamagedImageError):
            decode(bytes(content))
        content[position] ^= 4


@pytest.mark.parametrize("content", [b"", b"\x89PNG", b"BM" + bytes(60), b"<svg/>", b"II*\0" + bytes(60), b"text" * 9])
def test_other_bytes_are_no_image(content: bytes) -> None:
    with pytest.raises(DamagedImageError, match=r"no bytes|neither PNG, JPEG, WebP nor GIF"):
        read_header(content)


@pytest.mark.parametrize("size", [(2**31 - 1, 2**31 - 1), (20_000, 10_000), (10_000, 9_000)], ids=str)
def test_claims_of_too_many_pixels_are_refused_before_anything_is_decoded(size: tuple[int, int]) -> None:
    content = png(*size, bytes(1000))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for read in (read_header, decode):
            with pytest.raises(DamagedImageError, match="more than 89478485 pixels"):
                read(content)
    assert not seen


def test_the_caller_s_warnings_stay_as_they_were() -> None:
    before = list(warnings.filters)
    decode(drawn(8, 8))
    assert list(warnings.filters) == before


def test_without_pillow_the_extra_is_named() -> None:
    program = (
        "import sys; sys.modules['PIL'] = None\n"
        "from ais_bench_prefix_cache.datasets.images.decoding import decode\n"
        "decode(b'x')"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.stderr.endswith("pip install 'ais-bench-prefix-cache[multimodal]'\n")
