"""The new content of ``analysis.json``: one function for ``run`` and ``analyze``, on the same two texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ais_bench_prefix_cache.analysis.comparison import compare
from ais_bench_prefix_cache.analysis.diagnosis import Evidence, Finding, diagnose
from ais_bench_prefix_cache.analysis.planned_traffic import PlannedTraffic, RequestColumns
from ais_bench_prefix_cache.analysis.request_comparison import RequestComparison
from ais_bench_prefix_cache.analysis.run_facts import FACTS_KEY, CachePrediction, RunFacts
from ais_bench_prefix_cache.counters.difference import difference
from ais_bench_prefix_cache.counters.snapshot import MetricsSnapshot, parse_snapshots
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem, SnapshotError
from ais_bench_prefix_cache.foundation.names import verdict
from ais_bench_prefix_cache.scenario.model import ServiceConfig, ValidationConfig

PLANNING_WARNINGS = frozenset(
    {Code.TARGET_UNREACHABLE, Code.TARGET_DEVIATION, Code.TRAJECTORY_BEST_EFFORT, Code.CACHE_TOO_SMALL}
)
"""Warnings of the data set itself: they stay; every other warning is made anew."""

_TRAFFIC_FINDINGS = frozenset(
    {
        Code.TOKENS_ADDED,
        Code.TOKENS_MISSING,
        Code.TOKENIZER_DIFFERS,
        Code.REQUESTS_MISSING,
        Code.AISBENCH_WARMUPS,
        Code.RETRIES,
        Code.FOREIGN_TRAFFIC,
        Code.CACHE_BYPASSED,
    }
)


@dataclass(frozen=True)
class SnapshotTexts:
    """One look at ``/metrics``: one text, or one a port in the order of the ranks; ``names`` say where from."""

    texts: tuple[str, ...]
    names: tuple[str, ...]


def analyze_run(
    *,
    manifest: Mapping[str, Any],
    previous_analysis: Mapping[str, Any],
    baseline: SnapshotTexts,
    after: SnapshotTexts,
    service: ServiceConfig,
    validation: ValidationConfig,
    status: Literal["complete", "analyzed"],
    columns: RequestColumns | None = None,
    requests: RequestComparison | None = None,
    runtime: Mapping[str, Any] | None = None,
    facts: RunFacts | None = None,
) -> dict[str, Any]:
    """Theory against the two looks at the counters, in the keys of ``analysis.json`` (without its digest).

    ``run`` hands in its ``runtime``, its ``facts`` and the comparison of its ``requests``; ``analyze`` leaves them out,
    and what an earlier run left in ``previous_analysis`` is kept. Warnings and findings are made from scratch.

    Raises SnapshotError where the texts cannot be compared; :func:`explain_unusable` then says why.
    """
    kept_runtime = dict(previous_analysis.get("runtime", {})) if runtime is None else dict(runtime)
    facts = RunFacts.from_json(kept_runtime.get(FACTS_KEY, {})) if facts is None else facts
    if requests is None and runtime is None and "requests" in previous_analysis:
        requests = RequestComparison.from_json(previous_analysis["requests"])
    kept_facts = facts
    planned = PlannedTraffic.from_documents(manifest, previous_analysis, columns)
    early, late = parse_both(baseline, after, service, facts)
    delta = difference(early, late)
    if facts.cache_prediction is None and delta.hits < planned.hit_tokens and columns is not None:
        facts = replace(facts, cache_prediction=_prediction(manifest, columns, planned, late, service))
    comparison = compare(planned, delta, validation)
    findings = diagnose(Evidence(planned, early, late, delta, requests=requests, facts=facts))

    actual_warnings = [_with_suggestions(warning, findings) for warning in comparison.warnings]
    warnings = [dict(w) for w in previous_analysis.get("warnings", ()) if w.get("code") in PLANNING_WARNINGS]
    if facts.assumed_empty:
        warnings.append(
            {
                "code": Code.ASSUME_EMPTY_CACHE.value,
                "message": "the prefix cache was not reset; it was assumed to be empty (service.assume_empty_cache)",
            }
        )
    warnings += actual_warnings
    document = {
        key: value for key, value in previous_analysis.items() if key not in ("content_sha256", "requests", "findings")
    }
    document["status"] = status
    document["validation"] = {
        **previous_analysis["validation"],
        "status": verdict(warnings),
        "actual_status": verdict(actual_warnings),
    }
    document["warnings"] = warnings
    document["runtime"] = {
        **kept_runtime,
        FACTS_KEY: kept_facts.as_json(),
        "metrics_baseline": snapshot_section(early, baseline),
        "metrics_after": snapshot_section(late, after),
    }
    document["actual"] = dict(comparison.actual)
    document["theory_actual_difference_pp"] = comparison.absolute_difference_pp
    document["theory_actual_signed_difference_pp"] = comparison.signed_difference_pp
    document["theory_actual_absolute_difference_pp"] = comparison.absolute_difference_pp
    if requests is not None:
        document["requests"] = requests.as_json(delta.hits)
    document["findings"] = [finding.as_json() for finding in findings]
    return document


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
        facts = RunFacts.from_json(previous_analysis.get("runtime", {}).get(FACTS_KEY, {}))
    parsed: list[MetricsSnapshot | None] = []
    for looks in (baseline, after):
        try:
            parsed.append(_parse(looks, service, facts))
        except SnapshotError:
            parsed.append(None)
    planned = PlannedTraffic.from_documents(manifest, previous_analysis)
    return diagnose(Evidence(planned, parsed[0], parsed[1], problems=error.problems, facts=facts))


def parse_both(
    baseline: SnapshotTexts, after: SnapshotTexts, service: ServiceConfig, facts: RunFacts
) -> tuple[MetricsSnapshot, MetricsSnapshot]:
    """Both looks; the problems of both at once."""
    problems: list[Problem] = []
    parsed = []
    for looks in (baseline, after):
        try:
            parsed.append(_parse(looks, service, facts))
        except SnapshotError as error:
            problems.extend(error.problems)
    if problems:
        raise SnapshotError(problems)
    return parsed[0], parsed[1]


def _parse(looks: SnapshotTexts, service: ServiceConfig, facts: RunFacts) -> MetricsSnapshot:
    return parse_snapshots(
        looks.texts,
        dp_size=service.dp_size,
        engine_label_map={**facts.engine_label_map, **service.engine_label_map},
        model=service.model,
        engine=service.engine,
        where=looks.names,
    )


def _prediction(
    manifest: Mapping[str, Any],
    columns: RequestColumns,
    planned: PlannedTraffic,
    snapshot: MetricsSnapshot,
    service: ServiceConfig,
) -> CachePrediction | None:
    """What a cache of the size that the server (or ``service.kv_cache_blocks``) tells would have hit; None without."""
    # Only here: the block pool's module brings numpy along, which reading two texts does not need.
    from ais_bench_prefix_cache.analysis.cache_prediction import WarmupRequest, predict_hits

    configs = [c.config for c in snapshot.by_rank.values() if c.config is not None]
    sizes = {config.kv_cache_size_tokens for config in configs}
    capacity = sizes.pop() if len(sizes) == 1 else None
    if service.kv_cache_blocks is not None:
        capacity = service.kv_cache_blocks * planned.block_size
    if capacity is None or any(config.block_size != planned.block_size for config in configs):
        return None
    warmup = [
        WarmupRequest(entry["group_id"], entry["dp_rank"], entry["input_tokens"], entry["shared_prefix_tokens"])
        for entry in manifest.get("warmup", {}).get("plan", ())
    ]
    return predict_hits(
        columns, block_size=planned.block_size, capacity_tokens=capacity, dp_size=planned.dp_size, warmup=warmup
    )


def _with_suggestions(warning: dict[str, Any], findings: Sequence[Finding]) -> dict[str, Any]:
    """QUERIES_MISMATCH says what the difference suggests."""
    if warning["code"] != Code.QUERIES_MISMATCH:
        return warning
    reasons = [finding for finding in findings if finding.code in _TRAFFIC_FINDINGS]
    suggested = "; ".join(finding.message for finding in reasons)
    return {
        **warning,
        "message": warning["message"] + (f" - {suggested}" if suggested else ""),
        "suggests": [finding.code for finding in reasons],
    }


def snapshot_section(snapshot: MetricsSnapshot, looks: SnapshotTexts) -> dict[str, Any]:
    """``runtime.metrics_baseline`` and ``metrics_after``. Several ports: ``raw_prometheus`` is a list of texts."""
    return {
        "server": snapshot.family,
        "queries_metric": snapshot.queries_metric,
        "hits_metric": snapshot.hits_metric,
        "unit": snapshot.unit,
        "by_dp": {
            "all" if snapshot.whole_server else str(rank): {
                "engine": counters.engine,
                "queries": counters.queries,
                "hits": counters.hits,
                "kv_cache_usage": counters.kv_cache_usage,
            }
            for rank, counters in snapshot.by_rank.items()
        },
        "raw_prometheus": looks.texts[0] if len(looks.texts) == 1 else list(looks.texts),
    }
