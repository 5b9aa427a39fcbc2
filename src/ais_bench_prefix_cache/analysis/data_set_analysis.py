"""A verified data set against two looks at the counters: what ``run`` and ``analyze`` have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ais_bench_prefix_cache.analysis.analysis_document import SnapshotTexts, Status, analyze_run, explain_unusable
from ais_bench_prefix_cache.analysis.image_analysis import ServerUsage, analyze_image_run
from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
from ais_bench_prefix_cache.analysis.request_comparison import compare_requests
from ais_bench_prefix_cache.analysis.run_facts import RunFacts
from ais_bench_prefix_cache.analysis.seen_request import SeenRequest, sent_order
from ais_bench_prefix_cache.datasets.format.engine import VerifiedDataSet
from ais_bench_prefix_cache.foundation.errors import SnapshotError
from ais_bench_prefix_cache.foundation.telling import Note
from ais_bench_prefix_cache.scenario.model import ServiceConfig, ValidationConfig


def analyze_data_set(
    data: VerifiedDataSet,
    columns: RequestColumns | None,
    baseline: SnapshotTexts,
    after: SnapshotTexts,
    *,
    service: ServiceConfig,
    validation: ValidationConfig,
    status: Status,
    note: Note,
    seen: Sequence[SeenRequest] = (),
    runtime: Mapping[str, Any] | None = None,
    facts: RunFacts | None = None,
) -> dict[str, Any]:
    """The new content of ``analysis.json``, without its digest. ``columns`` are None where there is no theory.

    A run hands in what its sender saw, its ``runtime`` and ``facts``; otherwise an earlier run's are kept.

    Raises:
        SnapshotError: the looks cannot be compared; ``note`` has then heard the findings that explain it.
        ArtifactError: the analysis of the data set holds what no run writes.
    """
    if columns is None:
        return analyze_image_run(
            previous_analysis=data.analysis,
            baseline=baseline,
            after=after,
            service=service,
            status=status,
            usage=ServerUsage.of_seen(seen) if seen else None,
            runtime=runtime,
            facts=facts,
        )
    try:
        return analyze_run(
            manifest=data.manifest,
            previous_analysis=data.analysis,
            baseline=baseline,
            after=after,
            service=service,
            validation=validation,
            status=status,
            columns=columns,
            requests=compare_requests(columns, seen) if seen else None,
            sent_order=sent_order(seen, len(columns)),
            runtime=runtime,
            facts=facts,
        )
    except SnapshotError as error:
        for finding in explain_unusable(
            error,
            manifest=data.manifest,
            previous_analysis=data.analysis,
            baseline=baseline,
            after=after,
            service=service,
            facts=facts,
        ):
            note(f"finding [{finding.code}] {finding.message}\n    {finding.remedy}")
        raise
