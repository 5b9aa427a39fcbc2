"""Kind and size of an image, read from its own header; and whether its file is whole. No pixel is decoded.

Formats by their specifications: PNG (W3C PNG, section 11.2.2), JPEG (ITU T.81, B.2.2), GIF (GIF89a, sections 18-27),
WebP (RFC 9649).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Literal, Union

ImageFormat = Literal["PNG", "JPEG", "WEBP", "GIF"]
Content = Union[bytes, memoryview]

MIME_TYPES: dict[ImageFormat, str] = {
    "PNG": "image/png",
    "JPEG": "image/jpeg",
    "WEBP": "image/webp",
    "GIF": "image/gif",
}

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_BIT_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
# Adam7: first column, first row, column step, row step of each pass.
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
# Start-of-frame markers; C4, C8 and CC are tables and a reserved code.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})
_JPEG_SCAN, _JPEG_END = 0xDA, 0xD9
_INFLATED_AT_ONCE = 1 << 20


class DamagedImageError(ValueError):
    """The bytes are no image of a known kind, or a broken one; the message says which."""


@dataclass(frozen=True)
class ImageHeader:
    """Width and height are pixels as stored, before any orientation tag."""

    format: ImageFormat
    width: int
    height: int

    @property
    def mime_type(self) -> str:
        return MIME_TYPES[self.format]


def read_header(content: Content) -> ImageHeader:
    """The header of a PNG, JPEG, WebP or GIF. Raises :class:`DamagedImageError`."""
    view = memoryview(content).cast("B")
    start = bytes(view[:12])
    try:
        if start.startswith(_PNG_SIGNATURE):
            header = _png_header(view)
        elif start.startswith(b"\xff\xd8\xff"):
            header = _jpeg_header(view)
        elif start[:4] == b"RIFF" and start[8:12] == b"WEBP":
            header = _webp_header(view)
        elif start[:6] in (b"GIF87a", b"GIF89a"):
            header = ImageHeader("GIF", _little(view, 6, 2), _little(view, 8, 2))
        else:
            raise DamagedImageError("neither PNG, JPEG, WebP nor GIF" if start else "no bytes")
    except IndexError:
        raise DamagedImageError("the file ends within its header") from None
    if not header.width or not header.height:
        raise DamagedImageError(f"a {header.format} of {header.width}x{header.height} pixels")
    return header


def check_whole(content: Content) -> ImageHeader:
    """The header of an image whose file is whole, from its first to its last block. Raises :class:`DamagedImageError`.

    PNG: every checksum, and as much image data as size and colour mode need. JPEG, GIF, WebP: all blocks up to the end
    mark.
    """
    header = read_header(content)
    view = memoryview(content).cast("B")
    try:
        {"PNG": _check_png, "JPEG": _check_jpeg, "WEBP": _check_webp, "GIF": _check_gif}[header.format](view)
    except IndexError:
        raise DamagedImageError(f"the {header.format} ends too early") from None
    return header


def _slice(view: memoryview, start: int, length: int) -> memoryview:
    """Exactly ``length`` bytes; raises IndexError where the file ends before."""
    if start + length > len(view):
        raise IndexError
    return view[start : start + length]


def _big(view: memoryview, start: int, length: int) -> int:
    return int.from_bytes(_slice(view, start, length), "big")


def _little(view: memoryview, start: int, length: int) -> int:
    return int.from_bytes(_slice(view, start, length), "little")


def _png_header(view: memoryview) -> ImageHeader:
    if _big(view, 8, 4) != 13 or bytes(_slice(view, 12, 4)) != b"IHDR":
        raise DamagedImageError("the PNG does not begin with its header")
    if zlib.crc32(_slice(view, 12, 17)) != _big(view, 29, 4):
        raise DamagedImageError("the PNG's header has a wrong checksum")
    depth, colour_type = view[24], view[25]
    if depth not in _PNG_BIT_DEPTHS.get(colour_type, ()) or view[28] > 1:
        raise DamagedImageError("the PNG has an unknown colour mode")
    return ImageHeader("PNG", _big(view, 16, 4), _big(view, 20, 4))


def _check_png(view: memoryview) -> None:
    position, inflated = 8, 0
    inflate = zlib.decompressobj()
    while True:
        length = _big(view, position, 4)
        kind = bytes(_slice(view, position + 4, 4))
        if zlib.crc32(_slice(view, position + 4, length + 4)) != _big(view, position + 8 + length, 4):
            raise DamagedImageError(f"the PNG's block {kind.decode('latin-1')} has a wrong checksum")
        if kind == b"IDAT":
            try:
                waiting: bytes = bytes(view[position + 8 : position + 8 + length])
                while waiting and not inflate.eof:
                    inflated += len(inflate.decompress(waiting, _INFLATED_AT_ONCE))
                    waiting = inflate.unconsumed_tail
            except zlib.error:
                raise DamagedImageError("the PNG's image data cannot be inflated") from None
        elif kind == b"IEND":
            break
        position += length + 12
    try:
        inflated += len(inflate.flush())
    except zlib.error:
        raise DamagedImageError("the PNG's image data cannot be inflated") from None
    if inflated < _png_data_bytes(view):
        raise DamagedImageError("the PNG holds fewer pixels than its header says")


def _png_data_bytes(view: memoryview) -> int:
    """Bytes of all filtered rows: a filter byte and the packed samples of each."""
    width, height = _big(view, 16, 4), _big(view, 20, 4)
    bits = view[24] * _PNG_CHANNELS[view[25]]
    if not view[28]:
        return height * (1 + -(-width * bits // 8))
    total = 0
    for first_column, first_row, column_step, row_step in _ADAM7:
        columns = -(-max(0, width - first_column) // column_step)
        rows = -(-max(0, height - first_row) // row_step)
        total += rows * (1 + -(-columns * bits // 8)) if columns else 0
    return total


def _jpeg_segment(view: memoryview, position: int) -> tuple[int, int, int]:
    """Marker, start of its segment, and the position after it."""
    if _big(view, position, 1) != 0xFF:
        raise DamagedImageError("the JPEG's blocks do not follow each other")
    while _big(view, position, 1) == 0xFF:
        position += 1
    marker = view[position]
    if marker in _JPEG_WITHOUT_LENGTH or marker == _JPEG_END:
        return marker, position + 1, position + 1
    length = _big(view, position + 1, 2)
    if length < 2:
        raise DamagedImageError("the JPEG has a block of impossible length")
    return marker, position + 3, position + 1 + length


def _jpeg_header(view: memoryview) -> ImageHeader:
    position = 2
    while True:
        marker, start, position = _jpeg_segment(view, position)
        if marker in _JPEG_FRAMES:
            return ImageHeader("JPEG", _big(view, start + 3, 2), _big(view, start + 1, 2))
        if marker in (_JPEG_SCAN, _JPEG_END):
            raise DamagedImageError("the JPEG has no frame")


def _check_jpeg(view: memoryview) -> None:
    position = 2
    marker = 0
    while marker != _JPEG_SCAN:
        marker, _, position = _jpeg_segment(view, position)
        if marker == _JPEG_END:
            raise DamagedImageError("the JPEG has no image data")
    # Within image data FF is always followed by 00 or a restart mark, so the end mark can be searched for.
    if bytes(view[position:]).rfind(b"\xff\xd9") < 0:
        raise IndexError


def _webp_header(view: memoryview) -> ImageHeader:
    kind = bytes(_slice(view, 12, 4))
    if kind == b"VP8X":
        return ImageHeader("WEBP", 1 + _little(view, 24, 3), 1 + _little(view, 27, 3))
    if kind == b"VP8L":
        if view[20] != 0x2F:
            raise DamagedImageError("the WebP's lossless data has a wrong signature")
        bits = _little(view, 21, 4)
        return ImageHeader("WEBP", 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF))
    if kind == b"VP8 ":
        if bytes(_slice(view, 23, 3)) != b"\x9d\x01\x2a":
            raise DamagedImageError("the WebP's frame has a wrong start code")
        return ImageHeader("WEBP", _little(view, 26, 2) & 0x3FFF, _little(view, 28, 2) & 0x3FFF)
    raise DamagedImageError("the WebP begins with an unknown block")


def _check_webp(view: memoryview) -> None:
    end = 8 + _little(view, 4, 4)
    _slice(view, 0, end)
    position, has_image = 12, False
    while position < end:
        kind, length = bytes(_slice(view, position, 4)), _little(view, position + 4, 4)
        _slice(view, position + 8, length)
        has_image = has_image or kind in (b"VP8 ", b"VP8L", b"ANMF")
        position += 8 + length + length % 2
    if not has_image:
        raise DamagedImageError("the WebP has no image data")


def _check_gif(view: memoryview) -> None:
    position, has_image = 13, False
    if view[10] & 0x80:
        position += 3 << (view[10] & 7) + 1
    while (block := _big(view, position, 1)) != 0x3B:
        position += 1
        if block == 0x2C:
            has_image = True
            flags = _big(view, position + 8, 1)
            # Descriptor, local colours, and the byte before the image data.
            position += 10 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
        elif block == 0x21:
            position += 1
        else:
            raise DamagedImageError("the GIF has an unknown block")
        while length := _big(view, position, 1):
            position += 1 + length
        position += 1
    if not has_image:
        raise DamagedImageError("the GIF has no image data")
