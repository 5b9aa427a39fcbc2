"""``manifest.json`` and ``analysis.json`` of an image data set."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.datasets.format.documents import sealed
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.images.image_scenarios import IMAGE_SCENARIOS
from ais_bench_prefix_cache.datasets.text.manifest import artifacts_section, manifest_identity, tokenizer_section
from ais_bench_prefix_cache.foundation.names import verdict

if TYPE_CHECKING:
    from ais_bench_prefix_cache.datasets.format.writing import FileRecord
    from ais_bench_prefix_cache.datasets.images.mmmu_parquet import ChosenImage, SearchRecord
    from ais_bench_prefix_cache.scenario.model import Scenario

MULTIMODAL_SCHEMA_VERSION = "1.0"
CONTENT_ORDER = "images_before_text"
IMAGE_ENCODING = "base64_data_url"

IMAGE_MANIFEST_KEYS = (
    "schema_version",
    "plugin_version",
    "status",
    "benchmark_mode",
    "multimodal_schema_version",
    "run_id",
    "scenario_path",
    "scenario_sha256",
    "effective_config",
    "effective_config_sha256",
    "corpus_sha256",
    "tokenizer",
    "requests",
    "content_order",
    "image_encoding",
    "datasets",
    "image_search",
    "artifacts",
    "content_sha256",
)
IMAGE_KEYS = (
    "ref",
    "data_url",
    "byte_length",
    "sha256",
    "format",
    "mime_type",
    "width",
    "height",
    "parquet_path",
    "row_index",
    "sample_id",
    "image_column",
)
DATASET_KEYS = ("path", "sha256", "rows", "image_count_per_request", "image")
SEARCH_KEYS = ("files", "damaged_cells", "cells_without_bytes", "unreadable_files")


def image_reference(sha256: str) -> str:
    """What rows call an image."""
    return f"image-{sha256[:16]}"


def image_section(image: ChosenImage) -> dict[str, Any]:
    """``datasets.<name>.image``: the untouched bytes as a data URL, and where they come from."""
    sha256 = image.sha256
    encoded = base64.b64encode(image.content).decode("ascii")
    values = (
        image_reference(sha256),
        f"data:{image.header.mime_type};base64,{encoded}",
        len(image.content),
        sha256,
        image.header.format,
        image.header.mime_type,
        image.header.width,
        image.header.height,
        str(image.parquet_path),
        image.row_index,
        image.sample_id,
        image.image_column,
    )
    return dict(zip(IMAGE_KEYS, values, strict=True))


def requests_section(count: int, text_tokens: int, max_tokens: int) -> dict[str, Any]:
    """``manifest.requests``. Image tokens are the server's: nobody else can count them."""
    return {
        "count": count,
        "text_tokens": text_tokens,
        "output_tokens": max_tokens,
        "total_text_tokens": count * text_tokens,
    }


def image_manifest(
    scenario: Scenario,
    paths: RunPaths,
    *,
    name: str,
    image: Mapping[str, Any],
    record: SearchRecord,
    text_tokens: int,
    max_tokens: int,
    corpus_sha256: str,
    tokenizer: Mapping[str, Any],
    artifacts: Mapping[str, FileRecord],
) -> dict[str, Any]:
    """The manifest that ``prepare --mode mm`` writes last. ``image`` is :func:`image_section`'s."""
    identity = manifest_identity(scenario, paths, "prepared")
    head = {key: identity.pop(key) for key in ("schema_version", "plugin_version", "status")}
    rows = artifacts["requests"]
    dataset = (str(rows.path), rows.sha256, rows.rows, IMAGE_SCENARIOS[name].images, dict(image))
    search = (record.files, len(record.damaged), record.without_bytes, len(record.unreadable_files))
    return sealed(
        {
            **head,
            "benchmark_mode": "mm",
            "multimodal_schema_version": MULTIMODAL_SCHEMA_VERSION,
            **identity,
            "corpus_sha256": corpus_sha256,
            "tokenizer": tokenizer_section(tokenizer, "mm", scenario.block_size),
            "requests": requests_section(rows.rows, text_tokens, max_tokens),
            "content_order": CONTENT_ORDER,
            "image_encoding": IMAGE_ENCODING,
            "datasets": {name: dict(zip(DATASET_KEYS, dataset, strict=True))},
            "image_search": dict(zip(SEARCH_KEYS, search, strict=True)),
            "artifacts": artifacts_section(artifacts),
        }
    )


def image_analysis(run_id: str, warnings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``analysis.json`` as ``prepare --mode mm`` writes it (without its digest): there is no theory to compare with."""
    return {
        "schema_version": "1.0",
        "run_id": run_id,
        "status": "prepared",
        "benchmark_mode": "mm",
        "validation": {
            "status": verdict(warnings),
            "warning_only": True,
            "affects_exit_code": False,
        },
        "warnings": [dict(warning) for warning in warnings],
    }
