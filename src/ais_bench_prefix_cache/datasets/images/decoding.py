"""Kind and size of an image, and whether it decodes: Pillow's answers, which are those of AISBench and of servers."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ScenarioError

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
Content = Union[bytes, memoryview]


class DamagedImageError(ValueError):
    """The bytes are no image of a known kind, or one that does not decode; the message says which."""


@dataclass(frozen=True)
class ImageHeader:
    """``format`` is one of :data:`FORMATS`; width and height are pixels as stored, before any orientation tag."""

    format: str
    width: int
    height: int

    @property
    def mime_type(self) -> str:
        return f"image/{self.format.lower()}"


def read_header(content: Content) -> ImageHeader:
    """The header of a PNG, JPEG, WebP or GIF; no pixel is decoded.

    Raises:
        DamagedImageError: it is none of these, or claims more pixels than Pillow's limit against decompression bombs.
        ScenarioError: Pillow is not installed.
    """
    with _opened(content) as image:
        return _header(image)


def decode(content: Content) -> ImageHeader:
    """The header of an image, after its pixels, of several frames those of the first, have been decoded.

    Raises:
        DamagedImageError: as :func:`read_header`, or does not decode; of a PNG every checksum counts, too.
        ScenarioError: Pillow is not installed.
    """
    with _opened(content) as image:
        # Decoding passes over a PNG's checksums; this reads them, and what stands after the pixels.
        image.verify()
    with _opened(content) as image:
        image.load()
        return _header(image)


@contextmanager
def _opened(content: Content) -> Iterator[ImageFile]:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise ScenarioError.of(
            Code.MULTIMODAL_EXTRA_MISSING,
            "images",
            "decoding images needs Pillow, which is not installed",
            hint="pip install 'ais-bench-prefix-cache[multimodal]'",
        ) from None
    if not content:
        raise DamagedImageError("no bytes")
    try:
        with warnings.catch_warnings():
            # Pillow warns from a limit on and refuses from twice that limit on; here the limit is one.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            # What else Pillow remarks about strange files is not for the user's terminal.
            warnings.simplefilter("ignore", UserWarning)
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                yield image
    except UnidentifiedImageError:
        raise DamagedImageError("neither PNG, JPEG, WebP nor GIF") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise DamagedImageError(f"it claims more than {Image.MAX_IMAGE_PIXELS} pixels") from None
    except Exception as error:
        # Pillow's readers raise whatever a broken file leads them to.
        raise DamagedImageError(f"it does not decode: {error}") from None


def _header(image: ImageFile) -> ImageHeader:
    # A JPEG with further pictures behind the first is read as its first one.
    kind = "JPEG" if image.format == "MPO" else str(image.format)
    return ImageHeader(kind, *image.size)
