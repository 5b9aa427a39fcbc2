"""The files of a parent-copying data set: the requests, the audit file of their origins, and last the manifest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache import __version__
from ais_bench_prefix_cache.datasets.format.documents import sealed
from ais_bench_prefix_cache.datasets.format.writing import PARTIAL_SUFFIX, FileRecord, FileSet
from ais_bench_prefix_cache.datasets.text.rows import ANSWER, render_row
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError

if TYPE_CHECKING:
    from ais_bench_prefix_cache.datasets.copies.copied_prompts import CopiedPrompt, CopiedPrompts
    from ais_bench_prefix_cache.planning.plan import Int64Column

BENCHMARK_MODE = "distribution"
SCHEMA_VERSION = 1
COLD_SOURCE = "GSM8K"
"""The audit file's word for corpus text, whatever the corpus is called."""
MOST_NUMBERED_NAMES = 1_000_000

ROW_KEYS = (
    "question",
    "answer",
    "target_token_length",
    "actual_token_length",
    "max_tokens",
    "prefix_token_length",
    "constructed_prefix_token_length",
    "seed_token_length",
    "tail_token_length",
    "prefix_id",
    "parent_prompt_index",
    "seed_marker_token_id",
    "prefix_candidate_count",
    "prefix_pool_path",
)
ORIGIN_KEYS = ("prompt_index", "cached_input_token_length", "source")
MANIFEST_KEYS = (
    "schema_version",
    "plugin_version",
    "status",
    "benchmark_mode",
    "effective_config",
    "corpus_sha256",
    "tokenizer",
    "requests",
    "prefix_cache",
    "artifacts",
    "content_sha256",
)


@dataclass(frozen=True)
class DistributionPaths:
    """``requests`` is the main file, ``name.jsonl``; beside it ``name.prefixes.jsonl`` and ``name.manifest.json``."""

    requests: Path

    @property
    def _stem(self) -> str:
        return self.requests.name.removesuffix(".jsonl")

    @property
    def origins(self) -> Path:
        return self.requests.with_name(f"{self._stem}.prefixes.jsonl")

    @property
    def manifest(self) -> Path:
        return self.requests.with_name(f"{self._stem}.manifest.json")

    @property
    def files(self) -> tuple[Path, Path, Path]:
        return self.requests, self.origins, self.manifest

    def numbered(self, number: int) -> DistributionPaths:
        """The same with ``_number`` before the ending; 0 is the name as the user gave it."""
        if not number:
            return self
        suffix = self.requests.suffix
        return DistributionPaths(self.requests.with_name(f"{self.requests.name.removesuffix(suffix)}_{number}{suffix}"))

    @classmethod
    def of_manifest(cls, manifest: Path, requests_name: str) -> DistributionPaths:
        return cls(manifest.with_name(requests_name))


def claim_names(wanted: Path) -> DistributionPaths:
    """The first of ``name``, ``name_1``, ``name_2`` … of which none of the three files exists.

    The temporary file of the main one is made at once, so that two commands never take the same name; leaving the
    :class:`FileSet` that writes it removes it.
    """
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        for number in range(MOST_NUMBERED_NAMES):
            paths = DistributionPaths(wanted).numbered(number)
            if any(path.exists() for path in paths.files):
                continue
            partial = paths.requests.with_name(f".{paths.requests.name}{PARTIAL_SUFFIX}")
            with suppress(FileExistsError):
                os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
                return paths
    except OSError as error:
        raise ArtifactError.of(
            Code.CANNOT_WRITE, str(wanted), f"it cannot be written: {error.strerror or error}"
        ) from None
    raise ArtifactError.of(Code.NO_FREE_NAME, str(wanted), "a million numbered names are taken")


def request_row(
    prompt: CopiedPrompt, *, target_tokens: int, max_tokens: int, window: int, origins: Path
) -> dict[str, Any]:
    """The row of the main file."""
    tokens = len(prompt.token_ids)
    return {
        "question": prompt.text,
        "answer": ANSWER,
        "target_token_length": target_tokens,
        "actual_token_length": tokens,
        "max_tokens": max_tokens,
        "prefix_token_length": prompt.prefix_tokens,
        "constructed_prefix_token_length": prompt.prefix_tokens if prompt.parent >= 0 else tokens,
        "seed_token_length": prompt.seed_tokens,
        "tail_token_length": prompt.tail_tokens,
        "prefix_id": prompt.parent,
        "parent_prompt_index": prompt.parent,
        "seed_marker_token_id": prompt.marker_token_id,
        "prefix_candidate_count": window,
        "prefix_pool_path": str(origins),
    }


def origin_row(index: int, prefix_tokens: int, parent: int) -> dict[str, Any]:
    """The row of the audit file."""
    return {
        "prompt_index": index,
        "cached_input_token_length": prefix_tokens,
        "source": COLD_SOURCE if parent < 0 else f"prompt:{parent}",
    }


def cache_section(
    *, rate: float, requested: int, reachable: int, prefix_tokens: int, total: int, hits: int, unique_markers: bool
) -> dict[str, Any]:
    """``manifest.prefix_cache``. Rates are divided last."""
    return {
        "requested_repeat_rate": rate,
        "requested_prefix_tokens": requested,
        "reachable_prefix_tokens": reachable,
        "prefix_tokens": prefix_tokens,
        "repeat_rate": prefix_tokens / total,
        "replay_hit_tokens": hits,
        "replay_hit_rate": hits / total,
        "unique_seed_marker_tokens": unique_markers,
    }


def write_distribution(
    prompts: CopiedPrompts,
    max_tokens: Int64Column,
    paths: DistributionPaths,
    *,
    rate: float,
    effective_config: Mapping[str, Any],
    corpus_sha256: str,
    tokenizer: Mapping[str, Any],
    progress: Callable[[Iterable[CopiedPrompt]], Iterator[CopiedPrompt]],
) -> dict[str, Any]:
    """Write the three files together, the manifest last; returns the manifest.

    ``tokenizer`` is :meth:`~ais_bench_prefix_cache.exact_text.tokenizer.PromptTokenizer.identity`.
    """
    from ais_bench_prefix_cache.kvcache.replay import SequentialReplay

    block_size = effective_config["tokenizer"]["block_size"]
    replay = SequentialReplay(block_size=block_size)
    targets, plan = prompts.plan.input_tokens.tolist(), prompts.plan
    with FileSet(replace=False) as files:
        requests, origins = files.open(paths.requests), files.open(paths.origins)
        for prompt in progress(prompts):
            row = request_row(
                prompt,
                target_tokens=targets[prompt.index],
                max_tokens=int(max_tokens[prompt.index]),
                window=effective_config["prefix_count"],
                origins=paths.origins,
            )
            requests.write(render_row(row))
            origins.write(render_row(origin_row(prompt.index, prompt.prefix_tokens, prompt.parent)))
            replay.run(0, prompt.token_ids)
        records = {"requests": requests.finish(), "prefixes": origins.finish()}
        manifest = sealed(
            {
                "schema_version": SCHEMA_VERSION,
                "plugin_version": __version__,
                "status": "prepared",
                "benchmark_mode": BENCHMARK_MODE,
                "effective_config": dict(effective_config),
                "corpus_sha256": corpus_sha256,
                "tokenizer": {**tokenizer, "block_size": block_size},
                "requests": requests_section(len(targets), replay.queries[0], int(max_tokens.sum())),
                "prefix_cache": cache_section(
                    rate=rate,
                    requested=plan.requested_tokens,
                    reachable=plan.reachable_tokens,
                    prefix_tokens=int(plan.prefix_tokens.sum()),
                    total=replay.queries[0],
                    hits=replay.hits[0],
                    unique_markers=prompts.unique_marker_tokens,
                ),
                "artifacts": {key: _artifact(record) for key, record in records.items()},
            }
        )
        files.write_document(paths.manifest, manifest)
        files.commit()
    return manifest


def requests_section(count: int, input_tokens: int, output_tokens: int) -> dict[str, int]:
    """``manifest.requests``."""
    return {"count": count, "total_input_tokens": input_tokens, "total_max_tokens": output_tokens}


def _artifact(record: FileRecord) -> dict[str, Any]:
    return {
        "name": record.path.name,
        "path": str(record.path),
        "rows": record.rows,
        "bytes": record.bytes,
        "sha256": record.sha256,
    }
