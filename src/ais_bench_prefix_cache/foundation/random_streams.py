"""Random numbers that are the same on every machine, hash seed and supported numpy.

Numpy promises stable output only for its *bit generators*, not for the distributions built on them, so a stream
takes raw 64-bit words from PCG64 and turns them into what is wanted with exact integer arithmetic. A stream is
named by the user's seed and a list of labels; streams with different names are independent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt


def derive_seed(random_seed: int, *labels: str | int) -> int:
    """A 128-bit seed from the user's seed and a stream name, by SHA-256."""
    name = "\x1f".join([str(random_seed), *(str(label) for label in labels)])
    return int.from_bytes(hashlib.sha256(name.encode("utf-8")).digest()[:16], "big")


def numbered_seeds(random_seed: int, *labels: str | int) -> Callable[[int], int]:
    """``derive_seed(random_seed, *labels, number)`` as a function of the number, for a great many of them."""
    name = "\x1f".join([str(random_seed), *(str(label) for label in labels), ""])
    common = hashlib.sha256(name.encode("utf-8"))

    def seed(number: int) -> int:
        digest = common.copy()
        digest.update(b"%d" % number)
        return int.from_bytes(digest.digest()[:16], "big")

    return seed


class RandomStream:
    """One named stream of random numbers."""

    def __init__(self, random_seed: int, *labels: str | int) -> None:
        self._bits = np.random.PCG64(derive_seed(random_seed, *labels))

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """``count`` uniform 64-bit words."""
        return np.asarray(self._bits.random_raw(count), dtype=np.uint64)

    def integers(self, low: int, high: int, count: int) -> npt.NDArray[np.int64]:
        """``count`` integers, uniform on ``low`` … ``high`` (both included), without modulo bias."""
        span = high - low + 1
        if span < 1 or span > 1 << 62:
            raise ValueError("need low <= high and a span of at most 2**62")
        # Words at or above the largest multiple of the span would favour small remainders: draw those again.
        limit = (1 << 64) - (1 << 64) % span
        drawn = self.words(count)
        if limit < 1 << 64:
            rejected = np.flatnonzero(drawn >= np.uint64(limit))
            while rejected.size:
                drawn[rejected] = self.words(rejected.size)
                rejected = rejected[drawn[rejected] >= np.uint64(limit)]
        return (drawn % np.uint64(span)).astype(np.int64) + low

    def permutation(self, count: int) -> npt.NDArray[np.int64]:
        """A permutation of ``0`` … ``count - 1``: the stable order of ``count`` random 64-bit keys."""
        return np.argsort(self.words(count), kind="stable").astype(np.int64)
