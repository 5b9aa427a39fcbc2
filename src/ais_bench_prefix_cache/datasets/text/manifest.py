"""``manifest.json``: how a data set was made, what it must look like, and how to find its files.

Two kinds: ``inspected`` (a plan, no data) and ``prepared`` (a data set). Keys and their order are those of the
contract; ``benchmark_mode``, ``prefix_cache.trajectory`` and ``content_sha256`` are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ais_bench_prefix_cache import __version__
from ais_bench_prefix_cache.datasets.format.documents import digest_problems, read_document, sealed
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.text.theory import (
    Theory,
    divergence_section,
    group_section,
    length_summary,
    prefix_cache_section,
    warmup_section,
)
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError, Problem
from ais_bench_prefix_cache.foundation.names import group_name
from ais_bench_prefix_cache.foundation.strict_json import canonical_sha256

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from typing import Any

    from ais_bench_prefix_cache.datasets.format.writing import FileRecord
    from ais_bench_prefix_cache.datasets.text.prompt_set import PromptSet
    from ais_bench_prefix_cache.scenario.model import Scenario

SCHEMA_VERSION = "1.0"
COLD_ROUTE_STRATEGY = "group_round_robin"

INSPECTED_KEYS = (
    "schema_version",
    "plugin_version",
    "status",
    "run_id",
    "scenario_path",
    "scenario_sha256",
    "effective_config",
    "effective_config_sha256",
    "inspect",
    "content_sha256",
)
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
"""What prepared data sets of text and of traces begin with: who made them, from what."""
PREPARED_KEYS = (
    *SOURCE_KEYS,
    "requests",
    "prefix_cache",
    "groups",
    "dp",
    "warmup",
    "divergence",
    "artifacts",
    "content_sha256",
)


def stamped_effective_config(scenario: Scenario, paths: RunPaths) -> dict[str, Any]:
    """The effective configuration with ``run.run_id`` and ``run.output_dir`` as this run has them. Holds no secret."""
    run = {**scenario.effective["run"], "run_id": paths.run_id, "output_dir": str(paths.directory)}
    return {**scenario.effective, "run": run}


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


def prepared_manifest(
    scenario: Scenario,
    paths: RunPaths,
    *,
    theory: Theory,
    trajectory: Mapping[str, Any],
    prompts: PromptSet,
    corpus_sha256: str,
    tokenizer: Mapping[str, Any],
    artifacts: Mapping[str, FileRecord],
) -> dict[str, Any]:
    """The manifest that ``prepare`` writes last.

    ``tokenizer`` holds path, revision, class, vocab_size, special_token_ids and fingerprint_sha256; ``artifacts`` the
    written files under ``full``, ``requests`` and ``analysis``.
    """
    identity = manifest_identity(scenario, paths, "prepared")
    head = {key: identity.pop(key) for key in ("schema_version", "plugin_version", "status")}
    prefixes = [
        {
            "canonical_prefix_sha256": prefix.sha256,
            "gsm_indices": list(prefix.corpus_indices),
            "gsm_question_sha256": list(prefix.corpus_sha256),
        }
        for prefix in prompts.canonical_prefixes
    ]
    warmup = [(each.group, each.text, each.input_tokens, each.shared_prefix_tokens) for each in prompts.warmup_prompts]
    return sealed(
        {
            **head,
            "benchmark_mode": "text",
            **identity,
            "corpus_sha256": corpus_sha256,
            "tokenizer": tokenizer_section(tokenizer, "text", scenario.block_size),
            "requests": requests_section(theory),
            "prefix_cache": prefix_cache_section(theory, trajectory, scenario.validation.target_warning_pp),
            "groups": groups_section(theory, prefixes),
            "dp": dp_section(theory.mode, scenario.service.dp_size),
            "warmup": warmup_section(theory.mode, scenario.service.dp_size, warmup),
            "divergence": divergence_section(theory.requests),
            "artifacts": artifacts_section(artifacts),
        }
    )


def tokenizer_keys(benchmark_mode: str) -> tuple[str, ...]:
    """The keys of ``manifest.tokenizer``: image data sets have no blocks."""
    block_size = () if benchmark_mode == "mm" else ("block_size",)
    return ("path", "revision", "class", "vocab_size", "special_token_ids", *block_size, "fingerprint_sha256")


def tokenizer_section(identity: Mapping[str, Any], benchmark_mode: str, block_size: int) -> dict[str, Any]:
    """``manifest.tokenizer`` from a tokenizer's identity."""
    known = {**identity, "block_size": block_size}
    return {key: known[key] for key in tokenizer_keys(benchmark_mode)}


def requests_section(theory: Theory) -> dict[str, Any]:
    """``manifest.requests``."""
    return {
        "count": theory.requests,
        "total_input_tokens": theory.input_tokens,
        "input_length_summary": length_summary(theory.input_lengths),
        "output_length_summary": length_summary(theory.output_lengths),
    }


def groups_section(theory: Theory, prefixes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``manifest.groups``, in the groups' numeric order."""
    return {
        group_name(number): group_section(group, prefix)
        for number, (group, prefix) in enumerate(zip(theory.groups, prefixes, strict=True))
    }


def dp_section(mode: str, dp_size: int) -> dict[str, Any]:
    """``manifest.dp``."""
    return {"size": dp_size, "cold_route_strategy": COLD_ROUTE_STRATEGY if mode == "cold" else None}


def artifacts_section(records: Mapping[str, FileRecord]) -> dict[str, Any]:
    """``manifest.artifacts``. The analysis carries ``sha256_at_prepare``: run and analyze rewrite it."""
    section: dict[str, Any] = {}
    for key, record in records.items():
        if key == "analysis":
            continue
        section[key] = {
            "name": record.path.name,
            "path": str(record.path),
            "rows": record.rows,
            "bytes": record.bytes,
            "sha256": record.sha256,
        }
    analysis = records["analysis"]
    section["analysis"] = {
        "name": analysis.path.name,
        "path": str(analysis.path),
        "bytes": analysis.bytes,
        "sha256_at_prepare": analysis.sha256,
    }
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


def stated_benchmark_mode(path: Path) -> str | None:
    """The kind of data set that a manifest says it belongs to; None where it cannot be read or does not say."""
    try:
        document, _ = read_document(path, what="manifest")
    except ArtifactError:
        return None
    mode = document.get("benchmark_mode")
    return mode if isinstance(mode, str) else None


def identity_problems(path: Path, document: Mapping[str, Any]) -> list[Problem]:
    """Whether ``document`` is a manifest that this version can read at all."""
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


def manifest_identity(scenario: Scenario, paths: RunPaths, status: str) -> dict[str, Any]:
    """The keys that every manifest begins with."""
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
