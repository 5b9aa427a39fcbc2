"""``manifest.json``: how a data set was made, what it must look like, and how to find its files.

Two statuses: ``inspected`` (a plan, no data) and ``prepared`` (a data set). Keys and their order are those of the
contract; ``benchmark_mode`` and ``content_sha256`` are ours. What a kind of data set adds is said in its own file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache import __version__
from ais_bench_prefix_cache.datasets.format.documents import digest_problems, read_document, sealed
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.format.writing import FileRecord
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError, Problem
from ais_bench_prefix_cache.foundation.strict_json import canonical_sha256
from ais_bench_prefix_cache.scenario.model import Scenario

SCHEMA_VERSION = "1.0"

SOURCE_KEYS = (
    "schema_version",
    "plugin_version",
    "status",
    "benchmark_mode",
    "run_id",
    "scenario_path",
    "scenario_sha256",
    "effective_config",
    "effective_config_sha256",
    "corpus_sha256",
    "tokenizer",
)
"""What data sets that were prepared from a Scenario begin with: who made them, from what."""
TOKENIZER_KEYS = (
    "path",
    "revision",
    "class",
    "vocab_size",
    "special_token_ids",
    "block_size",
    "fingerprint_sha256",
)
ROW_FILE_KEYS = ("name", "path", "rows", "bytes", "sha256")
ANALYSIS_FILE_KEYS = ("name", "path", "bytes", "sha256_at_prepare")


def stamped_effective_config(scenario: Scenario, paths: RunPaths) -> dict[str, Any]:
    """The effective configuration with ``run.run_id`` and ``run.output_dir`` as this run has them. Holds no secret."""
    run = {**scenario.effective["run"], "run_id": paths.run_id, "output_dir": str(paths.directory)}
    return {**scenario.effective, "run": run}


def manifest_identity(scenario: Scenario, paths: RunPaths, status: str) -> dict[str, Any]:
    """The keys of every manifest that was made from a Scenario."""
    config = stamped_effective_config(scenario, paths)
    return {
        "schema_version": SCHEMA_VERSION,
        "plugin_version": __version__,
        "status": status,
        "run_id": paths.run_id,
        "scenario_path": str(scenario.path),
        "scenario_sha256": scenario.sha256,
        "effective_config": config,
        "effective_config_sha256": canonical_sha256(config),
    }


def scenario_origin(
    scenario: Scenario,
    paths: RunPaths,
    corpus_sha256: str,
    tokenizer: Mapping[str, Any],
    tokenizer_keys: Sequence[str],
) -> dict[str, Any]:
    """What the manifest of a data set says of the Scenario, corpus and tokenizer that it was prepared from.

    ``tokenizer`` is :meth:`~ais_bench_prefix_cache.exact_text.tokenizer.PromptTokenizer.identity`.
    """
    known = {**tokenizer, "block_size": scenario.block_size}
    return {
        **manifest_identity(scenario, paths, "prepared"),
        "corpus_sha256": corpus_sha256,
        "tokenizer": {key: known[key] for key in tokenizer_keys},
    }


def inspected_manifest(
    scenario: Scenario, paths: RunPaths, output_dir: Path, summary: Mapping[str, Any]
) -> dict[str, Any]:
    """The manifest that ``inspect`` writes. ``output_dir`` is the Scenario's, without a time stamp."""
    return sealed(
        {
            **manifest_identity(scenario, paths, "inspected"),
            "inspect": {
                "timestamp": paths.timestamp,
                "base_run_id": paths.base_run_id,
                "base_output_dir": str(output_dir),
                "sends_requests": False,
                "summary": dict(summary),
            },
        }
    )


def artifacts_section(records: Mapping[str, FileRecord]) -> dict[str, Any]:
    """``manifest.artifacts``. The analysis carries ``sha256_at_prepare``: run and analyze rewrite it."""
    section: dict[str, Any] = {}
    for key, record in records.items():
        size: tuple[object, ...] = (record.rows, record.bytes) if key != "analysis" else (record.bytes,)
        keys = ROW_FILE_KEYS if key != "analysis" else ANALYSIS_FILE_KEYS
        values = (record.path.name, str(record.path), *size, record.sha256)
        section[key] = dict(zip(keys, values, strict=True))
    return section


def read_manifest(path: Path) -> dict[str, Any]:
    """A manifest whose digest holds and whose identity (version, status, run, Scenario) is well-formed.

    Enough to choose a manifest by; :func:`~ais_bench_prefix_cache.datasets.kinds.verify_data_set` proves the
    rest. Raises :class:`ArtifactError`.
    """
    document, content = read_document(path, what="manifest")
    problems = identity_problems(path, document) or digest_problems(path, document, content, what="manifest")
    if problems:
        raise ArtifactError(problems)
    return document


def identity_problems(path: Path, document: Mapping[str, Any]) -> list[Problem]:
    """Whether ``document`` is a manifest of a Scenario that this version can read at all."""
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        return [
            Problem(
                Code.SCHEMA_VERSION,
                f"{path}: schema_version",
                f"the manifest has schema version {version!r}",
                allowed=repr(SCHEMA_VERSION),
                hint="It was written by another version of this program; prepare the data set again.",
            )
        ]
    status = document.get("status")
    if status not in ("inspected", "prepared"):
        return [
            Problem(Code.STATUS, f"{path}: status", f"{status!r} is no status", allowed="'inspected' or 'prepared'")
        ]
    problems = [
        Problem(Code.WRONG_TYPE, f"{path}: {key}", f"{document.get(key)!r} is not a string")
        for key in ("run_id", "scenario_path", "scenario_sha256")
        if not isinstance(document.get(key), str)
    ]
    if not isinstance(document.get("effective_config"), dict):
        problems.append(Problem(Code.WRONG_TYPE, f"{path}: effective_config", "it is not an object"))
    return problems
