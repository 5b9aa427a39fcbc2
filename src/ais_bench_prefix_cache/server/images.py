"""Images in chat requests: what their data URLs hold, how many tokens each takes, and the cache that counts them."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections import OrderedDict
from dataclasses import dataclass

from ais_bench_prefix_cache.datasets.images.image_header import DamagedImageError, ImageHeader, read_header

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


def image_tokens(header: ImageHeader) -> int:
    """``ceil(width / 28) * ceil(height / 28)``: 2,691 for 1920x1080, 1,196 for 1280x720. No upper limit."""
    return -(-header.width // PATCH_PIXELS) * -(-header.height // PATCH_PIXELS)


def read_data_url(url: str) -> PromptImage:
    """The image of a ``data:image/…;base64,…`` URL; raises ValueError with what is wrong with it."""
    head, comma, encoded = url.partition(",")
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        raise ValueError("only data URLs of images, data:image/...;base64,..., are taken")
    try:
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("the data URL is not base64") from None
    try:
        header = read_header(content)
    except DamagedImageError as error:
        raise ValueError(f"cannot identify image: {error}") from None
    return PromptImage(hashlib.sha256(content).hexdigest(), image_tokens(header))


class ImageReader:
    """:func:`read_data_url` that remembers the last few URLs."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, PromptImage] = OrderedDict()

    def read(self, url: str) -> PromptImage:
        if (image := self._known.get(url)) is None:
            image = self._known[url] = read_data_url(url)
            if len(self._known) > REMEMBERED_URLS:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(url)
        return image


class ImageCache:
    """vLLM's cache of processed images, as far as it counts: looked up item by item, filled on a miss, LRU.

    It belongs to the server's front end, so emptying the prefix cache leaves it as it is.
    """

    def __init__(self, capacity: int = CACHED_IMAGES) -> None:
        self._capacity = capacity
        self._identifiers: OrderedDict[str, None] = OrderedDict()

    def look_up(self, images: tuple[PromptImage, ...]) -> int:
        """How many of them are found; the second of two equal ones always is."""
        hits = 0
        for image in images:
            hits += image.identifier in self._identifiers
            self._identifiers[image.identifier] = None
            self._identifiers.move_to_end(image.identifier)
            if len(self._identifiers) > self._capacity:
                self._identifiers.popitem(last=False)
        return hits
