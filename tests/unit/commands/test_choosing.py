"""A data set is named by its manifest, its Scenario or one of its runs; a mix-up is answered with what it is."""

from __future__ import annotations

import argparse
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ais_bench_prefix_cache import __version__
from ais_bench_prefix_cache.commands.choosing import Chosen, add_choice, chosen
from ais_bench_prefix_cache.datasets.format.documents import sealed
from ais_bench_prefix_cache.datasets.format.paths import RunDirectory, RunPaths
from ais_bench_prefix_cache.datasets.format.writing import write_document
from ais_bench_prefix_cache.foundation.errors import PrefixCacheError
from ais_bench_prefix_cache.scenario.loading import load_scenario

NOW = datetime(2026, 8, 25, 12, 34, 56)


def scenario_file(directory: Path, **sections: Any) -> Path:
    path = directory / "s.json"
    path.write_text(json.dumps({"run": {"run_id": "job", "output_dir": "./out"}, **sections}), encoding="utf-8")
    return path


@pytest.fixture
def data_set(tmp_path: Path) -> RunPaths:
    """A prepared manifest of :func:`scenario_file`'s Scenario, without its data."""
    scenario = load_scenario(scenario_file(tmp_path), environment={})
    paths = RunPaths.create(scenario.run.output_dir, "job", NOW)
    run = {**scenario.effective["run"], "run_id": paths.run_id, "output_dir": str(paths.directory)}
    document = {
        "schema_version": "1.0",
        "plugin_version": __version__,
        "status": "prepared",
        "benchmark_mode": "text",
        "run_id": paths.run_id,
        "scenario_path": str(scenario.path),
        "scenario_sha256": "0" * 64,
        "effective_config": {**scenario.effective, "run": run},
    }
    write_document(paths.manifest, sealed(document))
    return paths


def choose(*arguments: object) -> Chosen:
    parser = argparse.ArgumentParser()
    add_choice(parser, what="report")
    return chosen(parser.parse_args([str(argument) for argument in arguments]))


def refusal(*arguments: object) -> str:
    with pytest.raises(PrefixCacheError) as caught:
        choose(*arguments)
    (problem,) = caught.value.problems
    return f"[{problem.code}] {problem}"


def test_three_ways_to_one_data_set(data_set: RunPaths, tmp_path: Path) -> None:
    run = RunDirectory.create(data_set, NOW)
    write_document(run.record, {"run": run.name})
    assert choose("--manifest", data_set.manifest) == Chosen(data_set.manifest)
    assert choose("--scenario", tmp_path / "s.json") == Chosen(data_set.manifest)
    assert choose("--run", run.path) == choose("--run", run.analysis) == Chosen(data_set.manifest, run)


def test_settings_choose_among_data_sets(data_set: RunPaths, tmp_path: Path) -> None:
    path = scenario_file(tmp_path, requests={"count": 7}, aisbench={"model": {"batch_size": 9}})
    assert choose("--scenario", path, "--set", "requests.count=100") == Chosen(data_set.manifest)
    assert "(the newest one differs in requests)" in refusal("--scenario", path)
    assert refusal("--manifest", data_set.manifest, "--set", "requests.count=1") == (
        "[WRONG_OPTION] --set: means nothing without --scenario"
    )


def test_mix_ups_are_named(data_set: RunPaths, tmp_path: Path) -> None:
    scenario = tmp_path / "s.json"
    run = RunDirectory.create(data_set, NOW)
    write_document(run.record, {"run": run.name})
    assert refusal("--manifest", tmp_path / "none") == f"[MISSING_FILE] {tmp_path}/none: the manifest does not exist"
    assert refusal("--manifest", scenario) == (
        f"[WRONG_KIND] {scenario}: this is a Scenario, not a manifest\n    Name it with --scenario {scenario}."
    )
    assert refusal("--manifest", run.record) == (
        f"[WRONG_KIND] {run.record}: this is a file of a run, not a manifest\n    Name it with --run {run.path}."
    )
    assert refusal("--scenario", data_set.manifest) == (
        f"[WRONG_KIND] {data_set.manifest.name}: this is a manifest, not a Scenario\n"
        f"    name the Scenario that it was made from: {scenario}"
    )
    assert refusal("--run", data_set.directory).startswith("[MISSING_FILE]")


def test_exactly_one_must_be_named(data_set: RunPaths, capsys: Any) -> None:
    for arguments in ([], ["--manifest", "a", "--scenario", "b"]):
        with pytest.raises(SystemExit):
            choose(*arguments)
