"""The hash chain of a request's full blocks, with the extra keys that vLLM mixes in.

Block ``i`` is named by its own tokens, its extra keys and the name of block ``i - 1``, so two requests share block
``i`` only if they agree on everything before it, too. Unfinished blocks have no name and are never shared. The rules
are those of vLLM's ``kv_cache_utils`` (0.32); the digest is BLAKE2b with 128 bits instead of SHA-256 over pickled
objects: several times faster, as deterministic, and just as free of collisions at any size that fits a machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

BlockHash = bytes
"""A digest of 16 bytes."""

ROOT_HASH: BlockHash = bytes(16)
"""What the first block has instead of a parent."""

MAX_TOKEN_ID = 2**32 - 1


@dataclass(frozen=True)
class MultimodalItem:
    """One image, video or audio clip: ``identifier`` is the hash of its content; the place is in tokens."""

    identifier: str
    offset: int
    length: int


@dataclass(frozen=True)
class ExtraKeys:
    """What, besides token ids, makes blocks of two requests different.

    ``lora`` (name and path) counts in every block, ``cache_salt`` in the first one only (the chain carries it on), a
    multimodal item in each block that it touches, together with its offset from the start of that block. ``model`` is
    not a key of vLLM, whose cache belongs to one model; it keeps the models of a mixed trace apart, from the first
    block on.
    """

    lora: tuple[str, str] | None = None
    cache_salt: str | None = None
    multimodal_items: tuple[MultimodalItem, ...] = ()
    model: str | None = None

    def of_block(self, start: int, end: int) -> tuple[tuple[str | int, ...], ...]:
        """The keys of the block that holds tokens ``start`` … ``end - 1``."""
        keys: list[tuple[str | int, ...]] = []
        if self.lora is not None:
            keys.append(("lora", *self.lora))
        for item in self.multimodal_items:
            if item.offset < end and item.offset + item.length > start:
                keys.append(("mm", item.identifier, item.offset - start))
        if self.cache_salt and start == 0:
            keys.append(("cache_salt", self.cache_salt))
        if self.model is not None and start == 0:
            keys.append(("model", self.model))
        return tuple(keys)


def token_bytes(token_ids: Sequence[int] | npt.NDArray[np.integer[Any]]) -> bytes:
    """Token ids as little-endian unsigned 32-bit integers, one after another.

    Raises :class:`ValueError` for an id below 0 or above ``MAX_TOKEN_ID``.
    """
    ids = np.asarray(token_ids, dtype=np.int64)
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) > MAX_TOKEN_ID):
        raise ValueError(f"token ids lie between 0 and {MAX_TOKEN_ID}")
    return ids.astype("<u4").tobytes()


def block_hashes(
    token_ids: Sequence[int] | npt.NDArray[np.integer[Any]],
    block_size: int,
    *,
    extra_keys: ExtraKeys | None = None,
    known: Sequence[BlockHash] = (),
) -> list[BlockHash]:
    """The hashes of the full blocks of ``token_ids`` that follow the ``known`` ones.

    ``token_ids`` are all tokens of the request, from position 0; ``known`` are the hashes of its first blocks, so a
    request that has grown hashes only what is new. About 1 µs a block.
    """
    first = len(known)
    parent = known[-1] if known else ROOT_HASH
    data = token_bytes(token_ids[first * block_size :])
    width = 4 * block_size
    blake2b = hashlib.blake2b
    hashes = []
    if extra_keys is None:
        for start in range(0, len(data) - width + 1, width):
            parent = blake2b(parent + data[start : start + width], digest_size=16).digest()
            hashes.append(parent)
        return hashes
    for start in range(0, len(data) - width + 1, width):
        position = (first + start // width) * block_size
        keys = extra_keys.of_block(position, position + block_size)
        # Parent and tokens have fixed lengths, so whatever follows them cannot be mistaken for either.
        suffix = repr(keys).encode() if keys else b""
        parent = blake2b(parent + data[start : start + width] + suffix, digest_size=16).digest()
        hashes.append(parent)
    return hashes
