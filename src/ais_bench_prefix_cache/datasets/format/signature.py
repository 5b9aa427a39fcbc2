"""A detached signature of a manifest: who made it, where digests only say that nothing was changed by accident.

Anybody who edits a data set can make all its digests fit. An HMAC-SHA256 with a key that only trusted machines have
cannot be made to fit. It covers the manifest's bytes, which hold the digests of the files of rows. The same key signs
and checks, so whoever may check could also sign: for one CI that does both, that is all it takes, and it needs nothing
but the standard library. RFC 2104.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.foundation.regular_files import open_regular

SUFFIX = ".hmac"
LEAST_KEY_BYTES = 32
MOST_KEY_BYTES = 4096
_CONTEXT = b"ais-bench-prefix-cache manifest 1\n"
"""Set before the content, so that a signature of anything else, made with the same key, is none of a manifest."""


def signature_path(manifest: Path) -> Path:
    """Where the signature of a manifest lies."""
    return manifest.with_name(f"{manifest.name}{SUFFIX}")


def sign(manifest_content: bytes, key_file: Path) -> bytes:
    """What stands in the signature's file. Raises :class:`ArtifactError` for an unusable key."""
    digest = hmac.new(_key(key_file), _CONTEXT + manifest_content, hashlib.sha256).hexdigest()
    return f"hmac-sha256 {digest}\n".encode()


def check_signature(manifest: Path, manifest_content: bytes, key_file: Path) -> None:
    """Raises :class:`ArtifactError` where the signature beside ``manifest`` was not made of it with this key."""
    wanted, path = sign(manifest_content, key_file), signature_path(manifest)
    try:
        with open_regular(path) as stream:
            found = stream.read(len(wanted) + 1)
    except FileNotFoundError:
        message, hint = "the manifest has no signature", "validate --seal KEY_FILE writes one."
        raise ArtifactError.of(Code.SIGNATURE_INVALID, str(path), message, hint=hint) from None
    except OSError as error:
        raise ArtifactError.of(Code.UNREADABLE_FILE, str(path), f"it cannot be read: {error.strerror}") from None
    if not hmac.compare_digest(found, wanted):
        message = "it is not the signature of this manifest with this key"
        raise ArtifactError.of(Code.SIGNATURE_INVALID, str(path), message)


def _key(key_file: Path) -> bytes:
    try:
        with open_regular(key_file, follow_links=True) as stream:
            key = stream.read(MOST_KEY_BYTES + 1)
    except OSError as error:
        raise ArtifactError.of(Code.KEY_UNUSABLE, str(key_file), f"it cannot be read: {error.strerror}") from None
    if not LEAST_KEY_BYTES <= len(key) <= MOST_KEY_BYTES:
        allowed = f"{LEAST_KEY_BYTES} to {MOST_KEY_BYTES} bytes, as `openssl rand -hex 32` writes"
        raise ArtifactError.of(Code.KEY_UNUSABLE, str(key_file), "it is too short or too long", allowed=allowed)
    return key
