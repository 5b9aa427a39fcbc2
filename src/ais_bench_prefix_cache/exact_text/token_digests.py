"""Digests of token sequences, the same for canonical prefixes, seeds and blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def token_ids_sha256(token_ids: Sequence[int] | npt.NDArray[np.uint32]) -> str:
    """SHA-256, in hex, of the ids as little-endian unsigned 32-bit integers, one after another."""
    return hashlib.sha256(np.asarray(token_ids, dtype="<u4").tobytes()).hexdigest()
