"""Whether what a data set was made from, corpus and tokenizer, is still the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem
from ais_bench_prefix_cache.foundation.regular_files import open_regular

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer


def corpus_warning(manifest: Mapping[str, Any], path: Path) -> dict[str, Any] | None:
    """A warning object where the corpus at ``path`` is not the one that the data set was made from; else None.

    The data set stays valid; it could just not be made again.
    """
    try:
        current = file_sha256(path)
    except OSError as error:
        return {
            "code": Code.CORPUS_MISSING.value,
            "message": f"the corpus {path} cannot be read any more ({error.strerror or error}); "
            "the data set is intact, but could not be made again",
        }
    if current == manifest["corpus_sha256"]:
        return None
    return {
        "code": Code.CORPUS_CHANGED.value,
        "message": f"the corpus {path} has changed since the data set was made; prepare would make another one now",
        "sha256_at_prepare": manifest["corpus_sha256"],
        "sha256": current,
    }


def tokenizer_problem(manifest: Mapping[str, Any], tokenizer: PromptTokenizer) -> Problem | None:
    """A problem where ``tokenizer`` does not encode as the one that the data set was made with; else None."""
    recorded = manifest["tokenizer"]["fingerprint_sha256"]
    current = tokenizer.identity()["fingerprint_sha256"]
    if recorded == current:
        return None
    return Problem(
        Code.TOKENIZER_CHANGED,
        manifest["tokenizer"]["path"],
        f"the tokenizer is not the one that the data set was made with: its fingerprint is {current}, "
        f"the manifest says {recorded}",
        hint="Prepare the data set again with the tokenizer that the server uses.",
    )


def file_sha256(path: Path) -> str:
    """The digest of a file's bytes, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open_regular(path, follow_links=True) as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
