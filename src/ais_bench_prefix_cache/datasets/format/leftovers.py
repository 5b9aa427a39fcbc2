"""What killed commands left beside a data set's directory: nobody's files, which the next command clears away."""

from __future__ import annotations

import time
from pathlib import Path
from shutil import rmtree

from ais_bench_prefix_cache.datasets.format.manifest_search import stamped_directories
from ais_bench_prefix_cache.datasets.format.paths import RunPaths, split_timestamp
from ais_bench_prefix_cache.datasets.format.writing import PARTIAL_SUFFIX, claimed
from ais_bench_prefix_cache.scenario.model import Scenario

_SECONDS_TO_BEGIN = 60.0


def clear_leftovers(scenario: Scenario) -> list[str]:
    """Remove what killed ``prepare`` commands of this Scenario left beside ``run.output_dir``; says what, in notes.

    That are directories with nothing but data files, whole or partial, and no manifest, which is always written last,
    in which no process is at work. A directory that holds anything else stays.
    """
    notes = []
    for directory in stamped_directories(scenario.run.output_dir):
        paths = RunPaths(directory, f"{scenario.run.run_id}_{split_timestamp(directory.name)[2]}")
        if _is_leftover(paths):
            with claimed(paths.result_dir) as mine:
                if mine and not paths.manifest.exists():
                    rmtree(directory)
                    notes.append(f"removed {directory}, which a killed command left without a manifest")
    return notes


def _is_leftover(paths: RunPaths) -> bool:
    if paths.manifest.exists() or not paths.result_dir.is_dir() or paths.result_dir.is_symlink():
        return False
    if {entry.name for entry in paths.directory.iterdir()} - {"log", "result"}:
        return False
    written = [entry.name for entry in paths.result_dir.iterdir()]
    ours = (f"{paths.run_id}.", f".{paths.run_id}.")
    whole_or_partial = all(
        name.startswith(ours) and (not name.startswith(".") or name.endswith(PARTIAL_SUFFIX)) for name in written
    )
    return whole_or_partial and (bool(written) or _is_old(paths.result_dir))


def _is_old(directory: Path) -> bool:
    """A new directory is empty until the command that made it has claimed it and begun to write."""
    return time.time() - directory.stat().st_mtime > _SECONDS_TO_BEGIN
