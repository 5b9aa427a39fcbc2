"""What the server's own words and metrics show: unusable texts, resets, moments that were not quiet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ais_bench_prefix_cache.analysis.diagnosis.evidence import Evidence, Finding, Rule
from ais_bench_prefix_cache.counters.ranks import MetricsSnapshot
from ais_bench_prefix_cache.counters.reader import Engine
from ais_bench_prefix_cache.foundation.codes import Code

_MOMENTS = ("baseline", "after")
_QUIET_REMEDY = "Take the second snapshot only when no request runs any more."

_OF_PROBLEM: Mapping[Code, tuple[Code, str]] = {
    Code.SNAPSHOT_NO_ENGINE_METRICS: (
        Code.NO_LOG_STATS,
        "Start vLLM without --disable-log-stats (SGLang with --enable-metrics), or correct service.metrics_url.",
    ),
    Code.SNAPSHOT_GAUGE_ONLY: (
        Code.GAUGE_ONLY,
        "A momentary gauge cannot say what one run hit: use vLLM's V1 engine (0.7.3 or later) or SGLang's counters.",
    ),
    Code.SNAPSHOT_MISSING_RANKS: (
        Code.RANKS_MISSING,
        "Both snapshots must show every rank: with one port for each rank, give one text for each.",
    ),
    Code.SNAPSHOT_DIFFERENT_ENGINES: (
        Code.RANKS_MISSING,
        "Both snapshots must show the same engines: give the texts of several ports in the same order both times.",
    ),
    Code.SNAPSHOT_RESTART: (
        Code.SERVER_RESTARTED,
        "Find out whether the server restarted (memory, a crash) or several stand behind one address, and run again "
        "with one process.",
    ),
    Code.SNAPSHOT_SERIES_CHANGED: (
        Code.SERIES_CHANGED,
        "Run again while no worker is started, stopped or replaced; read a single server's own metrics URL.",
    ),
    Code.SNAPSHOT_COUNTER_FELL: (
        Code.COUNTERS_FELL,
        "Counters only fall when the server restarts or another one answers; or the two files are swapped.",
    ),
    Code.SNAPSHOT_HITS_ABOVE_QUERIES: (
        Code.HITS_ABOVE_QUERIES,
        "Take both snapshots while no request runs, each from one answer of the server.",
    ),
    Code.SNAPSHOT_BLOCKS: (
        Code.BLOCK_COUNTERS,
        "Keep vllm:cache_config_info in the saved text, or use vLLM 0.9.2 or later, which counts tokens.",
    ),
    Code.SNAPSHOT_UNIT: (
        Code.BLOCK_COUNTERS,
        "Keep the # HELP lines in the saved text, or use vLLM 0.9.2 or later, which counts tokens.",
    ),
    Code.SNAPSHOT_ROLES: (
        Code.ROLES_MIXED,
        "Use the metrics URL of the side that reads the prompts (prefill), one role in each text.",
    ),
    Code.SNAPSHOT_NO_DATA: (
        Code.NO_TRAFFIC,
        "Take the first snapshot before the requests and the second after them, from the server that got them.",
    ),
}


def unusable_snapshots(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each problem because of which nothing can be compared."""
    for problem in evidence.problems:
        code, remedy = _OF_PROBLEM.get(problem.code, (None, ""))
        if code == Code.NO_TRAFFIC and any(config.prefix_caching is False for config in evidence.configs.values()):
            continue
        if code is not None:
            yield Finding(
                code,
                "error",
                f"{problem.where}: {problem.message}",
                {"problem": problem.code, "counters": _counters(evidence)},
                remedy,
            )


def _counters(evidence: Evidence) -> dict[str, dict[str, dict[str, int]]]:
    return {
        name: {
            str(rank): {"queries": engine.counters.queries, "hits": engine.counters.hits}
            for rank, engine in snapshot.by_rank.items()
        }
        for name, snapshot in ((moment, _snapshot(evidence, moment)) for moment in _MOMENTS)
        if snapshot is not None
    }


def _snapshot(evidence: Evidence, moment: str) -> MetricsSnapshot | None:
    return evidence.baseline if moment == "baseline" else evidence.after


def _ranks_where(snapshot: MetricsSnapshot | None, holds: Callable[[Engine], bool]) -> list[int]:
    return [] if snapshot is None else [rank for rank, engine in snapshot.by_rank.items() if holds(engine)]


def _caching_off(evidence: Evidence) -> Finding | None:
    off = sorted(rank for rank, config in evidence.configs.items() if config.prefix_caching is False)
    if not off or evidence.as_planned:
        return None
    delta = evidence.delta
    hit = delta is not None and any(rank in delta.by_rank and delta.by_rank[rank].hits for rank in off)
    return Finding(
        Code.PREFIX_CACHING_OFF,
        "note" if hit else "error",
        "the server says that prefix caching is off (cache_config_info: enable_prefix_caching)"
        + (", and counted hits all the same" if hit else ""),
        {"ranks": off, "counted_queries": delta.queries if delta else 0},
        "Start the server with --enable-prefix-caching.",
    )


def _reset(evidence: Evidence) -> Finding | None:
    reset = evidence.facts.reset
    if reset is None or reset.attempts == 0:
        return None
    hits_after = dict(reset.hits_after or {})
    full = {str(rank): hits for rank, hits in sorted(hits_after.items()) if hits > 0}
    numbers: dict[str, Any] = {"attempts": reset.attempts, "hits_after": full}
    again = "Let the server be idle and reset again; vLLM needs VLLM_SERVER_DEV_MODE=1 for /reset_prefix_cache."
    if full and len(full) < len(hits_after):
        return Finding(
            Code.RESET_PARTIAL,
            "error",
            f"after the reset the {'rank' if len(full) == 1 else 'ranks'} {', '.join(full)} still hit what was cached "
            "before; the others do not",
            numbers,
            again,
        )
    if not reset.accepted:
        return Finding(
            Code.RESET_REFUSED,
            "note" if hits_after and not full else "error",
            f"the server refused to reset its cache ({reset.attempts} {'try' if reset.attempts == 1 else 'tries'})",
            numbers,
            again,
        )
    if full:
        return Finding(
            Code.RESET_IGNORED,
            "error",
            "the server answered that the cache was reset, and still hits what was cached before",
            numbers,
            again + " An external KV tier needs reset_external=true.",
        )
    return None


def _shown_twice(evidence: Evidence) -> Finding | None:
    """One server's text in the place of two: its engines then count twice."""
    first: dict[tuple[Any, ...], int] = {}
    for rank, engine in (evidence.after.by_rank if evidence.after is not None else {}).items():
        # No two processes create their counters in the same instant and count the same.
        look = (tuple(sorted(engine.series.items())), tuple(sorted(engine.created.items())))
        if not engine.created or not any(engine.series.values()):
            continue
        other = first.setdefault(look, rank)
        if other != rank and evidence.after is not None and evidence.after.by_rank[other].source != engine.source:
            return Finding(
                Code.RANKS_MISSING,
                "warning",
                f"two texts show the same series, values and times of creation for the ranks {other} and {rank}, which "
                "is consistent with one server's text given twice",
                {"ranks": [other, rank], "texts": [evidence.after.by_rank[other].source, engine.source]},
                "Give the text of each port once; look whether two metrics URLs are names of one server.",
            )
    return None


def _block_counters(evidence: Evidence) -> Finding | None:
    delta = evidence.delta
    if delta is None or delta.unit != "blocks":
        return None
    return Finding(
        Code.BLOCK_COUNTERS,
        "warning",
        f"this server counts blocks of {delta.block_size} tokens (vLLM 0.7.3 to 0.8.5); they were multiplied"
        + (
            "; each prompt's incomplete last block is not counted, so the rate is a little too high"
            if delta.queries_source == "blocks"
            else ", and the queries are its prompt tokens"
        ),
        {"block_size": delta.block_size, "counted_queries": delta.queries, "counted_hits": delta.hits},
        "Use vLLM 0.9.2 or later for counts to the token.",
    )


def _no_hit_series(evidence: Evidence) -> Finding | None:
    after = evidence.after
    if after is None or evidence.delta is None or not evidence.planned.tokens.shared:
        return None
    if not _ranks_where(after, lambda engine: not engine.hits_shown):
        return None
    return Finding(
        Code.NO_HIT_SERIES,
        "warning",
        f"{after.hits_metric} is not shown: either nothing was hit, or this version does not count hits",
        {"planned_hits": evidence.planned.tokens.shared, "counted_hits": evidence.delta.hits},
        "Send one prompt twice and look again; SGLang shows the series only once something was hit.",
    )


def _busy_at(moment: str) -> Rule:
    def rule(evidence: Evidence) -> Finding | None:
        snapshot = _snapshot(evidence, moment)
        busy = _ranks_where(snapshot, lambda engine: bool((engine.running or 0) + (engine.waiting or 0)))
        if snapshot is None or not busy:
            return None
        return Finding(
            Code.SERVER_BUSY,
            "warning",
            f"requests were under way when the {moment} snapshot was taken",
            {
                "snapshot": moment,
                "running": {str(rank): snapshot.by_rank[rank].running for rank in busy},
                "waiting": {str(rank): snapshot.by_rank[rank].waiting for rank in busy},
            },
            "Take both snapshots while no request runs.",
        )

    return rule


def _asleep_at(moment: str) -> Rule:
    def rule(evidence: Evidence) -> Finding | None:
        asleep = _ranks_where(_snapshot(evidence, moment), lambda engine: engine.asleep is True)
        if not asleep:
            return None
        return Finding(
            Code.SERVER_ASLEEP,
            "warning",
            f"the server was asleep when the {moment} snapshot was taken; falling asleep empties the cache",
            {"snapshot": moment, "ranks": asleep},
            "Wake the server before the run, and do not let it sleep until the end.",
        )

    return rule


def _second_count_differs(evidence: Evidence) -> Finding | None:
    """vLLM counts cached prompt tokens a second time, SGLang for all ranks together; the two must agree."""
    delta = evidence.delta
    if (
        delta is None
        or delta.unit != "tokens"
        or delta.total(lambda counted: counted.external_hits)
        or delta.total(lambda counted: counted.preemptions)
    ):
        return None
    cached = (
        delta.total(lambda counted: counted.prompt_tokens_cached) if delta.server_hits is None else delta.server_hits
    )
    if cached is None or cached == delta.hits:
        return None
    return Finding(
        Code.COUNTERS_DISAGREE,
        "warning",
        f"the server counted {delta.hits} hits, and {cached} cached prompt tokens",
        {"counted_hits": delta.hits, "prompt_tokens_cached": cached},
        _QUIET_REMEDY,
    )


def _responses_differ(evidence: Evidence) -> Finding | None:
    delta, requests = evidence.delta, evidence.requests
    if (
        delta is None
        or delta.unit != "tokens"
        or delta.total(lambda counted: counted.external_hits)
        or delta.total(lambda counted: counted.preemptions)
    ):
        return None
    if requests is None or not requests.complete or evidence.excess_queries or requests.seen_hits == delta.hits:
        return None
    return Finding(
        Code.COUNTERS_DISAGREE,
        "warning",
        f"the server counted {delta.hits} hits, and reported {requests.seen_hits} in its responses",
        {"counted_hits": delta.hits, "reported_hits": requests.seen_hits},
        _QUIET_REMEDY,
    )


RULES: tuple[Rule, ...] = (
    _caching_off,
    _reset,
    _shown_twice,
    _block_counters,
    _no_hit_series,
    _busy_at("baseline"),
    _busy_at("after"),
    _asleep_at("baseline"),
    _asleep_at("after"),
    _second_count_differs,
    _responses_differ,
)
