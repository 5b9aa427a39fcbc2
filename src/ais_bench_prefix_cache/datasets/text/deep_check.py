"""``validate --deep``: encodes every prompt again and replays it through a cache that knows nothing of the plan.

What is compared: every length; that a request's shared tokens are its group's canonical ones; the digests of prefix,
seed and first unshared block; the hits of every request. In warm-up mode the warm-up prompts are replayed first, and
all formal requests go to one cache: that is the strictest case, because there they could hit each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ais_bench_prefix_cache.datasets.format.sources import tokenizer_problem
from ais_bench_prefix_cache.datasets.format.verified_data_set import VerifiedDataSet
from ais_bench_prefix_cache.datasets.text.rows import read_full_rows
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.findings import Findings
from ais_bench_prefix_cache.kvcache.replay import SequentialReplay

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer

BATCH_PROMPTS = 128

TokenIds = npt.NDArray[np.uint32]


def check_deeply(data_set: VerifiedDataSet, tokenizer: PromptTokenizer) -> dict[str, Any]:
    """Prove a verified data set with its tokenizer; returns what was counted.

    Raises :class:`ArtifactError` with everything that differs from what the files claim.
    """
    findings = Findings()
    manifest = data_set.manifest
    problem = tokenizer_problem(manifest, tokenizer)
    findings.extend([problem] if problem else [])
    check = _DeepCheck(data_set, findings)
    plan = manifest["warmup"]["plan"]
    for entry, token_ids in _encoded(plan, "prompt", tokenizer):
        check.warm(entry, token_ids)
    for row, token_ids in _encoded(read_full_rows(data_set.paths.full), "question", tokenizer):
        check.request(row, token_ids)
    check.finish()
    findings.raise_if_any()
    return {
        "prompts": data_set.rows,
        "warmup_prompts": len(plan),
        "tokens": check.tokens,
        "hit_tokens": check.hit_tokens,
        "hit_rate": check.hit_tokens / check.tokens,
        "tokenizer_fingerprint_sha256": manifest["tokenizer"]["fingerprint_sha256"],
    }


class _DeepCheck:
    def __init__(self, data_set: VerifiedDataSet, findings: Findings) -> None:
        manifest = data_set.manifest
        self.tokens = 0
        self.hit_tokens = 0
        self._findings = findings
        self._manifest_name = data_set.paths.manifest.name
        self._full_name = data_set.paths.full.name
        self._groups: Mapping[str, Any] = manifest["groups"]
        self._block_size: int = manifest["tokenizer"]["block_size"]
        self._replay = SequentialReplay(block_size=self._block_size, ranks=manifest["dp"]["size"])
        self._prefixes: dict[str, TokenIds] = {}

    def warm(self, entry: Mapping[str, Any], token_ids: TokenIds) -> None:
        """Send one warm-up prompt."""
        where = f"{self._manifest_name}: warmup.plan {entry['request_id']}"
        self._compare(where, "input_tokens", entry["input_tokens"], len(token_ids))
        self._check_prefix(where, entry["group_id"], token_ids[: entry["shared_prefix_tokens"]])
        self._replay.run(entry["dp_rank"], token_ids, counted=False)

    def request(self, row: Mapping[str, Any], token_ids: TokenIds) -> None:
        """Send one formal request."""
        where = f"{self._full_name} line {row['sequence_index'] + 1}"
        shared, seed = row["shared_prefix_tokens"], row["seed_tokens"]
        self._compare(where, "actual_input_tokens", row["actual_input_tokens"], len(token_ids))
        self._check_prefix(where, row["group_id"], token_ids[:shared])
        seed_sha256 = _sha256(token_ids[shared : shared + seed])
        block_sha256 = _sha256(token_ids[shared : shared + self._block_size])
        self._compare(where, "seed_sha256", row["seed_sha256"], seed_sha256)
        self._compare(where, "divergence_block_sha256", row["divergence_block_sha256"], block_sha256)
        hits = self._replay.run(row["dp_rank"] or 0, token_ids)
        self._compare(where, "theoretical_hit_tokens", row["theoretical_hit_tokens"], hits)
        self.tokens += len(token_ids)
        self.hit_tokens += hits

    def finish(self) -> None:
        """The canonical prefixes as they were seen against the manifest's."""
        for name, group in self._groups.items():
            seen = self._prefixes.get(name, np.empty(0, dtype=np.uint32))
            where = f"{self._manifest_name}: groups.{name}"
            self._compare(where, "canonical_prefix_tokens", group["canonical_prefix_tokens"], len(seen))
            if group["canonical_prefix_tokens"] == len(seen):
                self._compare(where, "canonical_prefix_sha256", group["canonical_prefix_sha256"], _sha256(seen))

    def _check_prefix(self, where: str, group: str, shared: TokenIds) -> None:
        """``shared`` against what the group has shared so far; the longer one is kept."""
        known = self._prefixes.get(group)
        if known is None or len(shared) > len(known):
            self._prefixes[group] = shared.copy()
        if known is not None:
            common = min(len(known), len(shared))
            different = np.flatnonzero(known[:common] != shared[:common])
            if different.size:
                message = f"its token {int(different[0])} is not that of the canonical prefix of {group}"
                self._findings.add(Code.PREFIX_DIFFERS, where, message)

    def _compare(self, where: str, key: str, claimed: object, found: object) -> None:
        if claimed != found:
            message = f"the file says {claimed}, but encoding and replaying the prompts gives {found}"
            self._findings.add(Code.DEEP_CHECK, f"{where}: {key}", message)


def _encoded(
    entries: Iterable[Mapping[str, Any]], key: str, tokenizer: PromptTokenizer
) -> Iterator[tuple[Mapping[str, Any], TokenIds]]:
    """Each entry with the token ids of its text. The next batch is encoded while the caller works on this one."""
    remaining = iter(entries)

    def next_batch() -> list[tuple[Mapping[str, Any], TokenIds]]:
        batch = list(islice(remaining, BATCH_PROMPTS))
        encoded = tokenizer.encode_batch([entry[key] for entry in batch])
        return [(entry, np.array(ids, dtype=np.uint32)) for entry, ids in zip(batch, encoded, strict=True)]

    with ThreadPoolExecutor(max_workers=1) as executor:
        batch = executor.submit(next_batch)
        while encoded := batch.result():
            batch = executor.submit(next_batch)
            yield from encoded


def _sha256(token_ids: TokenIds) -> str:
    """The digest of token ids as :mod:`ais_bench_prefix_cache.exact_text.token_digests` defines it."""
    return hashlib.sha256(token_ids.astype("<u4").tobytes()).hexdigest()
