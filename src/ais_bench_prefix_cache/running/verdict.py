"""The phase ``analysis``: what was counted and seen, compared with what was planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ais_bench_prefix_cache.analysis.analysis_document import SnapshotTexts
from ais_bench_prefix_cache.analysis.data_set_analysis import analyze_data_set
from ais_bench_prefix_cache.analysis.image_analysis import ServerUsage
from ais_bench_prefix_cache.analysis.run_facts import ResetFact, RunFacts
from ais_bench_prefix_cache.analysis.seen_request import SeenRequest
from ais_bench_prefix_cache.datasets.format.engine import VerifiedDataSet
from ais_bench_prefix_cache.datasets.format.sources import corpus_warning
from ais_bench_prefix_cache.foundation.errors import ServiceError, SnapshotError
from ais_bench_prefix_cache.foundation.names import PASS_WITH_WARNING
from ais_bench_prefix_cache.foundation.telling import Note
from ais_bench_prefix_cache.running.traffic import FormalTraffic
from ais_bench_prefix_cache.running.understanding import UnderstoodServer
from ais_bench_prefix_cache.scenario.model import Scenario
from ais_bench_prefix_cache.service.readings import Reading
from ais_bench_prefix_cache.service.resetting import ResetOutcome

_SECONDS_TO_TELL = 2.0


@dataclass(frozen=True)
class Observations:
    """Everything that a run saw.

    ``seen`` is empty where the sender kept no record of single requests; ``senders`` is what sending cost each process
    (:attr:`~ais_bench_prefix_cache.aisbench.job.AISBenchResult.senders`).
    """

    server: UnderstoodServer
    reset: ResetOutcome
    baseline: Reading
    after: Reading
    seen: Sequence[SeenRequest]
    senders: Sequence[Mapping[str, Any]]


def planned_queries(traffic: FormalTraffic, seen: Sequence[SeenRequest]) -> int | None:
    """The prompt tokens by which the counters must have risen; None where nobody knows."""
    if traffic.columns is not None:
        return sum(traffic.columns.input_tokens)
    return ServerUsage.of_seen(seen).prompt_tokens if seen else None


def analysis_of_run(
    scenario: Scenario,
    data: VerifiedDataSet,
    traffic: FormalTraffic,
    observed: Observations,
    runtime: Mapping[str, Any],
    note: Note,
) -> dict[str, Any]:
    """The new content of ``analysis.json``.

    Raises ServiceError where the two looks at the counters cannot be compared: they are this run's own, so that it is
    the server's doing; ``note`` then hears what explains it.
    """
    urls = scenario.service.metrics_urls
    try:
        document = analyze_data_set(
            data,
            traffic.columns,
            SnapshotTexts(observed.baseline.texts, urls),
            SnapshotTexts(observed.after.texts, urls),
            service=scenario.service,
            validation=scenario.validation,
            status="complete",
            note=note,
            seen=observed.seen,
            runtime=runtime,
            facts=_facts(scenario, traffic, observed),
        )
    except SnapshotError as error:
        raise ServiceError(error.problems) from error
    changed_corpus = corpus_warning(data.manifest, scenario.corpus.path)
    if changed_corpus is not None:
        document["warnings"].append(changed_corpus)
        document["validation"]["status"] = PASS_WITH_WARNING
    return document


def _facts(scenario: Scenario, traffic: FormalTraffic, observed: Observations) -> RunFacts:
    server, reset, seen = observed.server, observed.reset, observed.seen
    return RunFacts(
        reset=ResetFact(reset.accepted, attempts=reset.attempts, hits_after=reset.hits_after),
        assumed_empty=reset.warning is not None,
        probed_block_size=server.probed.rule.block_size,
        dropped_blocks=server.probed.rule.dropped_blocks,
        hybrid_warmup=scenario.service.hybrid_warmup,
        retried_requests=sum(row.attempts > 1 for row in seen) if seen else None,
        failed_requests=sum(not row.success for row in seen) if seen else None,
        aisbench_warmups=_aisbench_warmups(scenario.aisbench.extra_args),
        engine_label_map=server.engine_label_map,
        senders=len(observed.senders) or None,
        busiest_sender=_busiest(observed.senders),
        history=traffic.history,
    )


def _busiest(senders: Sequence[Mapping[str, Any]]) -> float | None:
    """The largest share of a core that one used; None where all of them sent for too short a time to tell."""
    shares = [
        sender["processor_seconds"] / sender["seconds"] for sender in senders if sender["seconds"] >= _SECONDS_TO_TELL
    ]
    return round(max(shares), 3) if shares else None


def _aisbench_warmups(extra_args: Mapping[str, Any]) -> int | None:
    """AISBench's own warm-up requests: one unless it is told otherwise."""
    value = extra_args.get("--num-warmups", 1)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
