"""The prepared data set that a run sends."""

from __future__ import annotations

from ais_bench_prefix_cache.datasets.format.manifest_search import FoundManifest, find_manifest
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.scenario.model import Scenario


def find_prepared(scenario: Scenario) -> tuple[FoundManifest, tuple[str, ...]]:
    """The newest prepared data set of exactly this Scenario, and notes about newer ones that were passed over.

    Raises ArtifactError where there is none.
    """
    search = find_manifest(scenario.run.output_dir, scenario.run.run_id, scenario.sha256, ("prepared",))
    if search.found is None:
        passed = " ".join(f"({note})" for note in search.notes)
        raise ArtifactError.of(
            Code.NOT_PREPARED,
            str(scenario.path),
            f"no prepared data set of this Scenario lies beside {scenario.run.output_dir} {passed}".rstrip(),
            hint="Run prepare with this Scenario first; after every edit of the Scenario prepare again.",
        )
    return search.found, search.notes
