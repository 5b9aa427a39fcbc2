"""Theory against the counters: ``analysis.actual``, the differences, and the warnings that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ais_bench_prefix_cache.analysis.planned_traffic import PlannedTraffic
from ais_bench_prefix_cache.counters.difference import CounterDelta
from ais_bench_prefix_cache.counters.ranks import MetricsSnapshot
from ais_bench_prefix_cache.counters.reader import Engine, EngineCounters
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.token_share import TokenShare
from ais_bench_prefix_cache.scenario.model import ValidationConfig


@dataclass(frozen=True)
class Comparison:
    """JSON-ready parts of the analysis. ``warnings`` are ACTUAL_DEVIATION and QUERIES_MISMATCH (ours)."""

    actual: Mapping[str, Any]
    signed_difference_pp: float
    warnings: tuple[dict[str, Any], ...]

    @property
    def absolute_difference_pp(self) -> float:
        return abs(self.signed_difference_pp)


def compare(
    planned: PlannedTraffic, delta: CounterDelta, after: MetricsSnapshot, validation: ValidationConfig
) -> Comparison:
    """Per rank where each request's rank is planned, otherwise over all ranks.

    Where theory is a range, the difference is that to its nearer end, and 0 within it. Expected and counted tokens are
    compared as integers; the rate is a division made last. A rank without queries has the hit rate None.
    """
    bounded = planned.least_hits is not None and planned.most_hits is not None
    expected = planned.tokens
    if bounded:
        expected = TokenShare(expected.total, delta.hits + planned.hits_short(delta.hits))
    signed = (delta.hit_rate - expected.rate) * 100
    exact = delta.queries_source != "blocks"
    queries_difference = delta.queries - planned.tokens.total
    actual = counted_section(delta, after)
    for rank, share in planned.by_rank.items():
        if str(rank) in actual["by_dp"]:
            actual["by_dp"][str(rank)] |= _expected(delta.by_rank[rank], share)
    actual |= {
        "expected_queries": planned.tokens.total,
        "expected_hits": planned.tokens.shared,
        "queries_difference": queries_difference,
        "hits_difference": delta.hits - planned.tokens.shared,
    }
    if bounded:
        actual["hits_range"] = {"least": planned.least_hits, "most": planned.most_hits}
    warnings: list[dict[str, Any]] = []
    if abs(signed) > validation.actual_warning_pp:
        warnings.append(
            {
                "code": Code.ACTUAL_DEVIATION.value,
                "message": f"the counted hit rate {delta.hit_rate:.4f} is {abs(signed):.2f} percentage points away "
                f"from the theoretical {expected.rate:.4f} (warning above {validation.actual_warning_pp:g})",
                "theoretical_hit_rate": expected.rate,
                "actual_hit_rate": delta.hit_rate,
                "difference_pp": abs(signed),
                "threshold_pp": validation.actual_warning_pp,
            }
        )
    # A server that counts blocks leaves out the incomplete block at the end of each prompt.
    allowed = 0 if exact else planned.requests * (delta.block_size or 1)
    if queries_difference > 0 or -queries_difference > allowed:
        warnings.append(
            {
                "code": Code.QUERIES_MISMATCH.value,
                "message": f"the server counted {delta.queries} prompt tokens, planned were {planned.tokens.total}: "
                f"{abs(queries_difference)} too {'many' if queries_difference > 0 else 'few'}",
                "expected_queries": planned.tokens.total,
                "counted_queries": delta.queries,
                "difference": queries_difference,
            }
        )
    return Comparison(actual, signed, tuple(warnings))


def counted_section(delta: CounterDelta, after: MetricsSnapshot) -> dict[str, Any]:
    """``analysis.actual`` as far as no theory is needed for it. ``after`` is the later snapshot of ``delta``."""
    section: dict[str, Any] = {
        "by_dp": {}
        if delta.whole_server
        else {str(rank): _rank(delta.by_rank[rank], after.by_rank[rank]) for rank in sorted(delta.by_rank)},
        "global_queries": delta.queries,
        "global_hits": delta.hits,
        "global_hit_rate": delta.hit_rate,
        "queries_source": delta.queries_source,
    }
    external_hits = delta.total(lambda counted: counted.external_hits)
    if external_hits is not None:
        section["external_tier"] = {
            "queries": delta.total(lambda counted: counted.external_queries),
            "hits": external_hits,
        }
    return section


def _rank(counted: EngineCounters, engine: Engine) -> dict[str, Any]:
    return {
        "engine": engine.label,
        "queries": counted.queries,
        "hits": counted.hits,
        "hit_rate": counted.hit_rate,
        "kv_cache_usage": engine.kv_cache_usage,
    }


def _expected(counted: EngineCounters, share: TokenShare) -> dict[str, Any]:
    return {
        "expected_queries": share.total,
        "expected_hits": share.shared,
        "queries_difference": counted.queries - share.total,
        "hits_difference": counted.hits - share.shared,
    }
