"""Which data set or run a command is about: its manifest, its Scenario, or one of its runs."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from ais_bench_prefix_cache.commands.console import note
from ais_bench_prefix_cache.datasets.format.paths import MANIFEST_SUFFIX, RunDirectory
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError

SET_HELP = "set a field of the Scenario for this command, as in requests.count=200; may be given several times"


@dataclass(frozen=True)
class Chosen:
    """A data set's manifest, and the run of it that was named, if one was."""

    manifest: Path
    run: RunDirectory | None = None


def add_choice(parser: argparse.ArgumentParser, *, what: str) -> None:
    """Declare ``--manifest``, ``--scenario`` and ``--run``, of which exactly one must be given."""
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--manifest", type=Path, metavar="FILE", help=f"{what} of the data set with this manifest.json")
    choice.add_argument("--scenario", type=Path, metavar="FILE", help=f"{what} of the newest data set of this Scenario")
    choice.add_argument("--run", type=Path, metavar="DIR", help=f"{what} of this run, a directory that `runs` lists")
    add_settings(parser)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Declare ``--set``."""
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="FIELD=VALUE", help=SET_HELP)


def chosen(arguments: argparse.Namespace) -> Chosen:
    """What the options of :func:`add_choice` name.

    Raises:
        ArtifactError: there is no such file or run, it is of another kind, or the Scenario has no data set yet.
        ScenarioError: the Scenario cannot be used.
    """
    if arguments.settings and arguments.scenario is None:
        raise ArtifactError.of(Code.WRONG_OPTION, "--set", "means nothing without --scenario")
    if arguments.run is not None:
        run = RunDirectory.named(arguments.run)
        return Chosen(run.data_set().manifest, run)
    if arguments.manifest is not None:
        return Chosen(_manifest(arguments.manifest))
    # Scenarios bring jsonschema and numpy; a manifest alone needs neither.
    from ais_bench_prefix_cache.running.prepared_data import find_prepared
    from ais_bench_prefix_cache.scenario.loading import load_scenario

    scenario = load_scenario(arguments.scenario, rules=None, settings=arguments.settings)
    return Chosen(find_prepared(scenario, note).paths.manifest)


def _manifest(path: Path) -> Path:
    if not path.exists():
        raise ArtifactError.of(Code.MISSING_FILE, str(path), "the manifest does not exist")
    run = RunDirectory.containing(path)
    if run is not None and run.record.is_file():
        raise ArtifactError.of(
            Code.WRONG_KIND,
            str(path),
            "this is a file of a run, not a manifest",
            hint=f"Name it with --run {run.path}.",
        )
    if not path.name.endswith(MANIFEST_SUFFIX) and _looks_like_a_scenario(path):
        raise ArtifactError.of(
            Code.WRONG_KIND, str(path), "this is a Scenario, not a manifest", hint=f"Name it with --scenario {path}."
        )
    return path


def _looks_like_a_scenario(path: Path) -> bool:
    from ais_bench_prefix_cache.datasets.format.documents import read_document
    from ais_bench_prefix_cache.scenario.schema import scenario_schema

    try:
        document, _ = read_document(path, what="manifest")
    except ArtifactError:
        return False
    return set(document) <= set(scenario_schema()["properties"])
