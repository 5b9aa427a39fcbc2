"""Images in chat requests: what their data URLs hold, how many tokens each takes, and the cache that counts them."""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ais_bench_prefix_cache.datasets.images.decoding import DamagedImageError, ImageHeader, decode, read_header

PATCH_PIXELS = 28
"""An image takes one token for each square of so many pixels that its width and height begin."""
CACHED_IMAGES = 4096
REMEMBERED_URLS = 8
"""Recently seen data URLs whose decoding is not repeated: benchmarks send the same image again and again."""


@dataclass(frozen=True)
class PromptImage:
    """``identifier`` is the hash of the image's bytes, by which its blocks are told from those of another image."""

    identifier: str
    num_tokens: int


ImageReader = Callable[[str], PromptImage]
"""Reads a data URL as :func:`read_data_url` does."""


def image_tokens(header: ImageHeader) -> int:
    """``ceil(width / 28) * ceil(height / 28)``: 2,691 for 1920x1080, 1,196 for 1280x720. No upper limit."""
    return -(-header.width // PATCH_PIXELS) * -(-header.height // PATCH_PIXELS)


def read_data_url(url: str, max_tokens: int) -> PromptImage:
    """The image of a ``data:image/…;base64,…`` URL, which is decoded only if it takes at most ``max_tokens``.

    Raises:
        ValueError: it is no such URL, or its image is too large or does not decode; the message says which.
    """
    head, comma, encoded = url.partition(",")
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        raise ValueError("only data URLs of images, data:image/...;base64,..., are taken")
    try:
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("the data URL is not base64") from None
    try:
        header = read_header(content)
        tokens = image_tokens(header)
        if tokens > max_tokens:
            raise ValueError(
                f"its {header.width}x{header.height} pixels take {tokens} tokens, which are more than {max_tokens}"
            )
        decode(content)
    except DamagedImageError as error:
        raise ValueError(f"cannot identify image: {error}") from None
    return PromptImage(hashlib.sha256(content).hexdigest(), tokens)


def remembering_reader(max_tokens: int) -> ImageReader:
    """:func:`read_data_url` with a memory for the last few URLs."""
    return functools.lru_cache(REMEMBERED_URLS)(functools.partial(read_data_url, max_tokens=max_tokens))


class ImageCache:
    """vLLM's cache of processed images, as far as it counts: looked up item by item, filled on a miss, LRU.

    It belongs to the server's front end, so emptying the prefix cache leaves it as it is.
    """

    def __init__(self, capacity: int = CACHED_IMAGES) -> None:
        @functools.lru_cache(capacity)
        def look_up(_identifier: str) -> None:
            return None

        self._look_up = look_up

    def look_up(self, images: Sequence[PromptImage]) -> int:
        """How many of them are found; the second of two equal ones always is."""
        before = self._look_up.cache_info().hits
        for image in images:
            self._look_up(image.identifier)
        return self._look_up.cache_info().hits - before
