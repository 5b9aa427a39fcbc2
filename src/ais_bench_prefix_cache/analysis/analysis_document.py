"""The new content of ``analysis.json``: one way for ``run`` and ``analyze``, on the same two texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from ais_bench_prefix_cache.analysis.cache_prediction import predict_conversation_hits, predict_hits
from ais_bench_prefix_cache.analysis.comparison import compare
from ais_bench_prefix_cache.analysis.diagnosis import traffic
from ais_bench_prefix_cache.analysis.diagnosis.diagnose import diagnose
from ais_bench_prefix_cache.analysis.diagnosis.evidence import Evidence, Finding
from ais_bench_prefix_cache.analysis.planned_traffic import PlannedTraffic, RequestColumns
from ais_bench_prefix_cache.analysis.request_comparison import RequestComparison
from ais_bench_prefix_cache.analysis.run_facts import FACTS_KEY, CachePrediction, RunFacts
from ais_bench_prefix_cache.counters.difference import CounterDelta, difference
from ais_bench_prefix_cache.counters.ranks import MetricsSnapshot, read_snapshot
from ais_bench_prefix_cache.datasets.text.plan_replay import PlannedRequest
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError, Problem, SnapshotError
from ais_bench_prefix_cache.foundation.names import verdict
from ais_bench_prefix_cache.scenario.model import ServiceConfig, ValidationConfig

USAGE_KEY = "server_usage"
REQUESTS_KEY = "requests"

_MADE_ANEW = frozenset({"content_sha256", "findings", REQUESTS_KEY, USAGE_KEY})
_WARNINGS_OF_THE_DATA_SET = frozenset(
    {
        Code.TARGET_UNREACHABLE,
        Code.TARGET_DEVIATION,
        Code.TRAJECTORY_BEST_EFFORT,
        Code.CACHE_TOO_SMALL,
        Code.DAMAGED_IMAGES,
        Code.DAMAGED_PARQUET_FILES,
        Code.IMAGE_COLUMN_TYPE,
    }
)
"""They stay; every other warning is made anew."""

Status = Literal["complete", "analyzed"]
_T = TypeVar("_T")


@dataclass(frozen=True)
class SnapshotTexts:
    """One look at ``/metrics``: one text, or one a port in the order of the ranks; ``names`` say where from."""

    texts: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class KnownRun:
    """What is known of a run besides the counters.

    ``runtime`` is the section of that name, ``facts`` are also kept in it, ``per_request`` is what the responses said
    (``analysis.requests`` of text, ``analysis.server_usage`` of images).
    """

    runtime: Mapping[str, Any]
    facts: RunFacts
    per_request: Mapping[str, Any] | None = None

    @classmethod
    def of_analysis(cls, analysis: Mapping[str, Any]) -> KnownRun:
        """What an earlier run left in its analysis; nothing where there was none.

        Raises:
            ArtifactError: the facts in it are none that a run writes.
        """
        runtime = analysis.get("runtime", {})
        facts = restored(RunFacts.from_json, runtime.get(FACTS_KEY, {}), f"runtime.{FACTS_KEY}")
        return cls(runtime, facts, analysis.get(REQUESTS_KEY, analysis.get(USAGE_KEY)))


@dataclass(frozen=True)
class Measured:
    """Two looks at the counters, read and subtracted."""

    baseline: MetricsSnapshot
    after: MetricsSnapshot
    delta: CounterDelta
    texts: tuple[SnapshotTexts, SnapshotTexts]


def measure(baseline: SnapshotTexts, after: SnapshotTexts, service: ServiceConfig, facts: RunFacts) -> Measured:
    """Read both looks and subtract them.

    Raises:
        SnapshotError: the problems of both texts at once, or because they cannot be compared.
    """
    problems: list[Problem] = []
    read = []
    for look in (baseline, after):
        try:
            read.append(_read(look, service, facts))
        except SnapshotError as error:
            problems.extend(error.problems)
    if problems:
        raise SnapshotError(problems)
    return Measured(read[0], read[1], difference(read[0], read[1]), (baseline, after))


def analyze_run(
    *,
    manifest: Mapping[str, Any],
    previous_analysis: Mapping[str, Any],
    baseline: SnapshotTexts,
    after: SnapshotTexts,
    service: ServiceConfig,
    validation: ValidationConfig,
    status: Status,
    columns: RequestColumns | None = None,
    requests: RequestComparison | None = None,
    sent_order: Sequence[int] = (),
    runtime: Mapping[str, Any] | None = None,
    facts: RunFacts | None = None,
) -> dict[str, Any]:
    """Theory against the two looks at the counters, in the keys of ``analysis.json`` (without its digest).

    ``run`` hands in its ``runtime``, its ``facts`` and the comparison of its ``requests``; ``analyze`` leaves them out,
    and what an earlier run left in ``previous_analysis`` is kept. ``sent_order`` has the numbers of all requests as
    they were sent, where that is known. Warnings and findings are made from scratch.

    Raises:
        SnapshotError: the texts cannot be compared; :func:`explain_unusable` then says why.
        ArtifactError: ``previous_analysis`` holds what no run writes.
    """
    known = known_run(previous_analysis, runtime, facts)
    if requests is None and known.per_request is not None:
        requests = restored(RequestComparison.from_json, known.per_request, REQUESTS_KEY)
    planned = PlannedTraffic.from_documents(manifest, previous_analysis, columns)
    if known.facts.history is not None:
        planned = planned.as_told(known.facts.history.shares())
    measured = measure(baseline, after, service, known.facts)
    delta, facts = measured.delta, known.facts
    if facts.cache_prediction is None and delta.hits < planned.tokens.shared and columns is not None:
        at_once = known.runtime.get("aisbench", {}).get("batch_size", 1)
        prediction = _prediction(manifest, columns, planned, measured.after, service, at_once, sent_order)
        facts = replace(facts, cache_prediction=prediction)
    comparison = compare(planned, delta, measured.after, validation)
    findings = diagnose(Evidence(planned, measured.baseline, measured.after, delta, requests=requests, facts=facts))
    results = {
        "actual": dict(comparison.actual),
        "theory_actual_difference_pp": comparison.absolute_difference_pp,
        "theory_actual_signed_difference_pp": comparison.signed_difference_pp,
        "theory_actual_absolute_difference_pp": comparison.absolute_difference_pp,
    }
    if requests is not None:
        results[REQUESTS_KEY] = requests.as_json(delta.hits)
    warnings = [_with_suggestions(warning, findings) for warning in comparison.warnings]
    return finish_document(previous_analysis, status, known, measured, results, warnings, findings)


def _add_usage(actual: dict[str, Any], polling: Any) -> None:
    """Average and peak of the KV cache while requests were sent, where the contract has them, too."""
    if not isinstance(polling, Mapping):
        return
    by_rank = polling.get("by_dp")
    of_ranks = by_rank if isinstance(by_rank, Mapping) else {}
    for section, usage in (
        (actual, polling),
        *((actual["by_dp"][rank], of_ranks.get(rank)) for rank in actual["by_dp"]),
    ):
        if isinstance(usage, Mapping):
            section["kv_cache_usage_avg"], section["kv_cache_usage_peak"] = usage.get("average"), usage.get("peak")


def known_run(
    previous_analysis: Mapping[str, Any], runtime: Mapping[str, Any] | None, facts: RunFacts | None
) -> KnownRun:
    """What ``run`` hands in, or what an earlier one left where it hands in nothing."""
    previous = KnownRun.of_analysis(previous_analysis)
    if runtime is not None:
        return KnownRun(runtime, facts or RunFacts())
    return previous if facts is None else replace(previous, facts=facts)


def restored(build: Callable[[Mapping[str, Any]], _T], section: Mapping[str, Any], name: str) -> _T:
    """A record that a run wrote into its analysis.

    Raises:
        ArtifactError: the section is none that a run writes.
    """
    try:
        return build(section)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ArtifactError.of(
            Code.ANALYSIS_DAMAGED,
            f"analysis.json: {name}",
            "it is not what a run writes there",
            hint="Run it again, which writes the section anew.",
        ) from None


def finish_document(
    previous_analysis: Mapping[str, Any],
    status: Status,
    known: KnownRun,
    measured: Measured,
    results: Mapping[str, Any],
    warnings: Sequence[Mapping[str, Any]],
    findings: Sequence[Finding],
) -> dict[str, Any]:
    """``previous_analysis`` with what was measured. ``warnings`` are those of the comparison with the counters."""
    kept = [dict(w) for w in previous_analysis.get("warnings", ()) if w.get("code") in _WARNINGS_OF_THE_DATA_SET]
    if known.facts.assumed_empty:
        kept.append(
            {
                "code": Code.ASSUME_EMPTY_CACHE.value,
                "message": "the prefix cache was not reset; it was assumed to be empty (service.assume_empty_cache)",
            }
        )
    all_warnings = [*kept, *warnings]
    _add_usage(results["actual"], known.runtime.get("kv_cache_polling"))
    document = {key: value for key, value in previous_analysis.items() if key not in _MADE_ANEW}
    return {
        **document,
        "status": status,
        "validation": {
            **previous_analysis["validation"],
            "status": verdict(all_warnings),
            "actual_status": verdict(warnings),
        },
        "warnings": all_warnings,
        "runtime": {
            **known.runtime,
            FACTS_KEY: known.facts.as_json(),
            "metrics_baseline": _snapshot_section(measured.baseline, measured.texts[0]),
            "metrics_after": _snapshot_section(measured.after, measured.texts[1]),
        },
        **results,
        "findings": [finding.as_json() for finding in findings],
    }


def explain_unusable(
    error: SnapshotError,
    *,
    manifest: Mapping[str, Any],
    previous_analysis: Mapping[str, Any],
    baseline: SnapshotTexts,
    after: SnapshotTexts,
    service: ServiceConfig,
    facts: RunFacts | None = None,
) -> list[Finding]:
    """The findings of two looks that :func:`analyze_run` refused with ``error``."""
    if facts is None:
        facts = KnownRun.of_analysis(previous_analysis).facts
    read: list[MetricsSnapshot | None] = []
    for look in (baseline, after):
        try:
            read.append(_read(look, service, facts))
        except SnapshotError:
            read.append(None)
    planned = PlannedTraffic.from_documents(manifest, previous_analysis)
    return diagnose(Evidence(planned, read[0], read[1], problems=error.problems, facts=facts))


def _read(look: SnapshotTexts, service: ServiceConfig, facts: RunFacts) -> MetricsSnapshot:
    return read_snapshot(
        look.texts,
        dp_size=service.dp_size,
        engine_label_map={**facts.engine_label_map, **service.engine_label_map},
        model=service.model,
        engine=service.engine,
        where=look.names,
    )


def _prediction(
    manifest: Mapping[str, Any],
    columns: RequestColumns,
    planned: PlannedTraffic,
    snapshot: MetricsSnapshot,
    service: ServiceConfig,
    at_once: int,
    sent_order: Sequence[int],
) -> CachePrediction | None:
    """What a cache of the size that the server (or ``service.kv_cache_blocks``) tells would have hit; None without.

    ``at_once`` is how many requests may have been in flight; ``sent_order`` may be empty.
    """
    configs = [engine.config for engine in snapshot.by_rank.values() if engine.config is not None]
    sizes = {config.kv_cache_size_tokens for config in configs}
    capacity = sizes.pop() if len(sizes) == 1 else None
    if service.kv_cache_blocks is not None:
        capacity = service.kv_cache_blocks * planned.block_size
    told = {config.block_size for config in configs} or {planned.block_size}
    block_size = told.pop() if len(told) == 1 else None
    if capacity is None or not block_size:
        return None
    # A page of SGLang's may be a part of our block: what is shared ends at a page all the same.
    whole_pages = snapshot.family == "sglang" and planned.block_size % block_size == 0
    if planned.block_size != block_size and not whole_pages:
        return None
    if columns.are_turns:
        if snapshot.family == "sglang":
            return None  # What its tree keeps of histories is not replayed.
        return predict_conversation_hits(
            columns,
            scripted=manifest["conversations"]["answers"] == "scripted",
            system_prompt_tokens=planned.canonical_prefix_tokens,
            at_once=at_once,
            block_size=planned.block_size,
            capacity_tokens=capacity,
            dp_size=planned.dp_size,
            order=sent_order,
        )
    warmup = [
        PlannedRequest(
            entry["group_id"], entry["dp_rank"], entry["input_tokens"], entry["shared_prefix_tokens"], counted=False
        )
        for entry in manifest.get("warmup", {}).get("plan", ())
    ]
    return predict_hits(
        columns,
        block_size=block_size,
        capacity_tokens=capacity,
        dp_size=planned.dp_size,
        engine=snapshot.family,
        warmup=warmup,
    )


def _with_suggestions(warning: dict[str, Any], findings: Sequence[Finding]) -> dict[str, Any]:
    """QUERIES_MISMATCH says what the difference suggests."""
    if warning["code"] != Code.QUERIES_MISMATCH:
        return warning
    reasons = [finding for finding in findings if finding.code in traffic.CODES]
    suggested = "; ".join(finding.message for finding in reasons)
    return {
        **warning,
        "message": warning["message"] + (f" - {suggested}" if suggested else ""),
        "suggests": [finding.code for finding in reasons],
    }


def _snapshot_section(snapshot: MetricsSnapshot, look: SnapshotTexts) -> dict[str, Any]:
    """``runtime.metrics_baseline`` and ``metrics_after``. Several ports: ``raw_prometheus`` is a list of texts."""
    return {
        "server": snapshot.family,
        "queries_metric": snapshot.queries_metric,
        "hits_metric": snapshot.hits_metric,
        "unit": snapshot.unit,
        **({"notes": list(snapshot.notes)} if snapshot.notes else {}),
        "by_dp": {
            "all" if snapshot.whole_server else str(rank): {
                "engine": engine.label,
                "queries": engine.counters.queries,
                "hits": engine.counters.hits,
                "kv_cache_usage": engine.kv_cache_usage,
            }
            for rank, engine in snapshot.by_rank.items()
        },
        "raw_prometheus": look.texts[0] if len(look.texts) == 1 else list(look.texts),
    }
