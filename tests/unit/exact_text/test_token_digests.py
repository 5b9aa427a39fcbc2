"""The digest of token ids."""

from __future__ import annotations

import hashlib
import struct

import numpy as np

from ais_bench_prefix_cache.exact_text.token_digests import token_ids_sha256


def test_ids_are_digested_as_little_endian_32_bit_integers() -> None:
    ids = [0, 1, 70_000, 2**32 - 1]
    expected = hashlib.sha256(struct.pack("<4I", *ids)).hexdigest()
    assert token_ids_sha256(ids) == expected
    assert token_ids_sha256(np.array(ids, dtype=np.uint32)) == expected
    assert token_ids_sha256([]) == hashlib.sha256(b"").hexdigest()
