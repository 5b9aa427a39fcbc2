"""Finds the manifest that an earlier command made of the same data set, among the time-stamped directories."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ais_bench_prefix_cache import __version__
from ais_bench_prefix_cache.datasets.format.manifest import read_manifest
from ais_bench_prefix_cache.datasets.format.paths import TIMESTAMP_FORMAT, RunPaths, split_timestamp
from ais_bench_prefix_cache.datasets.kinds import kind_named
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.scenario.identity import differing_fields, same_data_set
from ais_bench_prefix_cache.scenario.model import Scenario

ManifestStatus = Literal["inspected", "prepared"]


class FoundManifest(NamedTuple):
    """A manifest that fits a Scenario: its files and its content (read, not yet verified)."""

    paths: RunPaths
    document: dict[str, Any]


class ManifestSearch(NamedTuple):
    """``found`` is the newest fitting manifest; ``notes`` say which newer ones were passed over, and why.

    ``differing`` are the fields in which the newest one that does not fit differs, where ``found`` is None.
    """

    found: FoundManifest | None
    notes: tuple[str, ...]
    differing: tuple[str, ...] = ()


def find_manifest(
    scenario: Scenario,
    statuses: tuple[ManifestStatus, ...],
    *,
    benchmark_modes: tuple[str, ...],
    second_choice: tuple[str, ...] = (),
) -> ManifestSearch:
    """The newest manifest beside ``run.output_dir``, in one of ``statuses``, of the Scenario's data set.

    A manifest fits when the fields that shape a data set agree (:mod:`~ais_bench_prefix_cache.scenario.identity`);
    all others belong to a run. ``benchmark_modes`` passes over the other kinds, but for those of ``second_choice``
    where nothing else fits; a plan has none yet and is taken for the first. One that differs is passed over silently,
    a damaged or foreign one with a note.
    """
    output_dir = scenario.run.output_dir
    notes: list[str] = _from_the_future(output_dir)
    differing: tuple[str, ...] = ()
    second: FoundManifest | None = None
    for directory in stamped_directories(output_dir):
        timestamp = split_timestamp(directory.name)[2]
        paths = RunPaths(directory, f"{scenario.run.run_id}_{timestamp}")
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
        mode = document.get("benchmark_mode", benchmark_modes[0])
        if document["status"] not in statuses or mode not in benchmark_modes + second_choice:
            continue
        if document["status"] == "prepared" and document.get("plugin_version") != __version__:
            notes.append(f"passed over {paths.manifest}: version {document.get('plugin_version')} wrote it")
            continue
        if document["run_id"] != paths.run_id or _output_name(document) != directory.name:
            notes.append(f"passed over {paths.manifest}: it was made for another run or output directory")
            continue
        config, rules = document["effective_config"], kind_named(mode).scenario_rules
        made_of = {**config, "run": {**config["run"], "run_id": scenario.run.run_id}}
        made_in = Path(document["scenario_path"]).parent
        if same_data_set(scenario.effective, scenario.path.parent, made_of, made_in, rules):
            found = FoundManifest(paths, document)
            if mode in benchmark_modes:
                return ManifestSearch(found, tuple(notes))
            second = second or found
        else:
            differing = differing or tuple(differing_fields(scenario.effective, made_of, rules))
    return ManifestSearch(second, tuple(notes), () if second else differing)


def _from_the_future(output_dir: Path) -> list[str]:
    """A note where a directory is stamped later than the clock: a data set that is made now would not be the newest."""
    latest = datetime.now() + timedelta(seconds=_SECONDS_AHEAD)
    ahead = [
        each.name
        for each in stamped_directories(output_dir)
        if split_timestamp(each.name)[2] > f"{latest:{TIMESTAMP_FORMAT}}"
    ]
    if not ahead:
        return []
    return [
        f"{ahead[0]} has a later time stamp than this computer's clock: it counts as the newest, whatever is made now. "
        "Was the clock set back?"
    ]


_SECONDS_AHEAD = 120
"""Commands that start faster than one a second take stamps ahead of the clock."""


def data_sets_beside(scenario: Scenario) -> list[RunPaths]:
    """Every data set beside ``run.output_dir`` under the Scenario's ``run_id``, whatever it holds, oldest first."""
    stamped = stamped_directories(scenario.run.output_dir)
    sets = [RunPaths(each, f"{scenario.run.run_id}_{split_timestamp(each.name)[2]}") for each in reversed(stamped)]
    return [each for each in sets if each.manifest.is_file()]


def stamped_directories(output_dir: Path) -> list[Path]:
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
