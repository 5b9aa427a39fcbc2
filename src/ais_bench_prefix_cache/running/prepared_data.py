"""The prepared data set that a run sends."""

from __future__ import annotations

from ais_bench_prefix_cache.datasets.format.manifest_search import FoundManifest, ManifestSearch, find_manifest
from ais_bench_prefix_cache.datasets.kinds import PREPARED_KINDS, sent_kinds
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.scenario.model import Scenario


def search_prepared(scenario: Scenario) -> ManifestSearch:
    """The newest prepared data set that the Scenario asks for; one that can be sent, where there is any.

    Of another kind, verifying says what to do with it: nothing else is prepared and sent in its place.
    """
    search = find_manifest(scenario, ("prepared",), benchmark_modes=sent_kinds())
    return search if search.found else find_manifest(scenario, ("prepared",), benchmark_modes=PREPARED_KINDS)


def find_prepared(scenario: Scenario) -> tuple[FoundManifest, tuple[str, ...]]:
    """As :func:`search_prepared`, with notes about newer ones that were passed over.

    Raises:
        ArtifactError: there is none.
    """
    search = search_prepared(scenario)
    if search.found is None:
        notes = [f"the newest one differs in {', '.join(search.differing)}"] if search.differing else []
        passed = " ".join(f"({note})" for note in (*notes, *search.notes))
        raise ArtifactError.of(
            Code.NOT_PREPARED,
            str(scenario.path),
            f"no prepared data set of this Scenario lies beside {scenario.run.output_dir} {passed}".rstrip(),
            hint="Run prepare with this Scenario first.",
        )
    return search.found, search.notes
