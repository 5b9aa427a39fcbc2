"""The prepared data set that a run sends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
from ais_bench_prefix_cache.datasets.format.engine import VerifiedDataSet
from ais_bench_prefix_cache.datasets.format.manifest_search import FoundManifest, find_manifest
from ais_bench_prefix_cache.datasets.format.rows import read_rows
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.scenario.model import Scenario
from ais_bench_prefix_cache.service.preflight import SamplePrompt, Workload


@dataclass(frozen=True)
class FormalRequests:
    """One pass over ``full.jsonl``: the columns that an analysis compares, and what preflight asks a server for."""

    columns: RequestColumns
    workload: Workload


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


def read_formal_requests(data: VerifiedDataSet) -> FormalRequests:
    """Columns and workload of a verified data set."""
    samples: dict[str, SamplePrompt] = {}
    longest = 0

    def rows() -> Any:
        nonlocal longest
        for row in read_rows(data.paths.full):
            longest = max(longest, row["actual_input_tokens"] + row["max_tokens"])
            group = row["group_id"]
            # The longest prompt of a group shows the most of the tokenizer.
            if group not in samples or samples[group].input_tokens < row["actual_input_tokens"]:
                samples[group] = SamplePrompt(group, row["question"], row["actual_input_tokens"])
            yield row

    columns = RequestColumns.from_rows(rows())
    manifest = data.manifest
    return FormalRequests(
        columns,
        Workload(
            mode=manifest["prefix_cache"]["mode"],
            block_size=manifest["tokenizer"]["block_size"],
            longest_request_tokens=longest,
            canonical_prefix_tokens={
                group: entry["canonical_prefix_tokens"] for group, entry in manifest["groups"].items()
            },
            samples=tuple(samples.values()),
        ),
    )
