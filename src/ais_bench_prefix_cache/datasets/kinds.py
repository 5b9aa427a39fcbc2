"""Verifies a data set that can be run, by the rules of its kind: text or images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ais_bench_prefix_cache.datasets.format.documents import read_document
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.format.verified_data_set import VerifiedDataSet
from ais_bench_prefix_cache.datasets.text import manifest as manifest_format
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError, Problem
from ais_bench_prefix_cache.foundation.findings import shown

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from typing import Any


def verify_data_set(manifest_path: Path) -> VerifiedDataSet:
    """Verify a data set that ``run`` can send, text or images, wherever its directory lies now.

    Raises :class:`ArtifactError` with everything that is wrong; for a manifest of another kind it says what to do.
    """
    paths = RunPaths.of_manifest(manifest_path)
    manifest, content = read_document(paths.manifest, what="manifest")
    problems = manifest_format.identity_problems(paths.manifest, manifest) or _kind_problems(paths, manifest)
    if problems:
        raise ArtifactError(problems)
    if manifest["benchmark_mode"] == "mm":
        from ais_bench_prefix_cache.datasets.images.verifying import verify_image_data_set

        return verify_image_data_set(paths, manifest, content)
    from ais_bench_prefix_cache.datasets.text.verifying import verify_text_data_set

    return verify_text_data_set(paths, manifest, content)


def _kind_problems(paths: RunPaths, manifest: Mapping[str, Any]) -> list[Problem]:
    where = str(paths.manifest)
    if manifest["status"] == "inspected":
        return [
            Problem(
                Code.NOT_PREPARED,
                where,
                "this manifest only holds a plan (status inspected); there is no data set yet",
                hint="Run prepare with the same Scenario.",
            )
        ]
    mode = manifest.get("benchmark_mode")
    if mode == "distribution":
        message = "this is a data set of the command distribution; it has no ranks, warm-up or analysis"
        return [Problem(Code.DISTRIBUTION, where, message, hint="Of this kind, validate checks the files.")]
    if mode == "trace":
        return [
            Problem(
                Code.TRACE,
                where,
                "this data set was made from a trace",
                hint="Only validate reads it; send its requests with a client that keeps the times of full.jsonl.",
            )
        ]
    if mode not in ("text", "mm"):
        return [
            Problem(Code.WRONG_VALUE, f"{where}: benchmark_mode", f"it says {shown(mode)}", allowed="'text' or 'mm'")
        ]
    return []
