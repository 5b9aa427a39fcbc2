"""Finds the manifest that an earlier command made from the same Scenario, among the time-stamped directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

from ais_bench_prefix_cache.datasets.format.manifest import read_manifest
from ais_bench_prefix_cache.datasets.format.paths import RunPaths, split_timestamp
from ais_bench_prefix_cache.foundation.errors import ArtifactError

ManifestStatus = Literal["inspected", "prepared"]


class FoundManifest(NamedTuple):
    """A manifest that fits a Scenario: its files and its content (read, not yet verified)."""

    paths: RunPaths
    document: dict[str, Any]


class ManifestSearch(NamedTuple):
    """``found`` is the newest fitting manifest; ``notes`` say which newer ones were passed over, and why."""

    found: FoundManifest | None
    notes: tuple[str, ...]


def find_manifest(
    output_dir: Path,
    base_run_id: str,
    scenario_sha256: str,
    statuses: tuple[ManifestStatus, ...],
    *,
    benchmark_mode: str | None = None,
) -> ManifestSearch:
    """The newest manifest beside ``output_dir`` that was made from exactly this Scenario, in one of ``statuses``.

    ``benchmark_mode`` passes over data sets of the other mode. A manifest fits when its schema version, status, time
    stamp, run and output names and Scenario digest do. One that was made from an earlier edition
    of the Scenario is passed over silently, a damaged or foreign one with a note.
    """
    notes: list[str] = []
    for directory in _stamped_directories(output_dir):
        timestamp = split_timestamp(directory.name)[2]
        paths = RunPaths(directory, f"{base_run_id}_{timestamp}")
        if not paths.manifest.is_file():
            continue
        try:
            document = read_manifest(paths.manifest)
        except ArtifactError as error:
            notes.append(f"passed over {paths.manifest}: {error.problems[0].message}")
            continue
        except OSError as error:
            notes.append(f"passed over {paths.manifest}: {error.strerror or error}")
            continue
        if document["scenario_sha256"] != scenario_sha256 or document["status"] not in statuses:
            continue
        if benchmark_mode is not None and document.get("benchmark_mode", benchmark_mode) != benchmark_mode:
            continue
        if document["run_id"] != paths.run_id or _output_name(document) != directory.name:
            notes.append(f"passed over {paths.manifest}: it was made for another run or output directory")
            continue
        return ManifestSearch(FoundManifest(paths, document), tuple(notes))
    return ManifestSearch(None, tuple(notes))


def _stamped_directories(output_dir: Path) -> list[Path]:
    """``output_dir_<time stamp>`` directories, newest first."""
    if not output_dir.parent.is_dir():
        return []
    stamped = [
        entry
        for entry in output_dir.parent.iterdir()
        if split_timestamp(entry.name)[0] == output_dir.name and entry.is_dir()
    ]
    return sorted(stamped, key=lambda entry: entry.name, reverse=True)


def _output_name(document: dict[str, Any]) -> str | None:
    run = document["effective_config"].get("run")
    output_dir = run.get("output_dir") if isinstance(run, dict) else None
    return Path(output_dir).name if isinstance(output_dir, str) else None
