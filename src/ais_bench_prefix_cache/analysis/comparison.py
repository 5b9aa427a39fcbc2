"""Theory against the counters: ``analysis.actual``, the differences, and the warnings that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ais_bench_prefix_cache.analysis.planned_traffic import PlannedShare, PlannedTraffic
from ais_bench_prefix_cache.counters.difference import CounterDelta, RankDelta
from ais_bench_prefix_cache.foundation.codes import Code
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


def compare(planned: PlannedTraffic, delta: CounterDelta, validation: ValidationConfig) -> Comparison:
    """Per rank in cold mode, where each request's rank is planned; over all ranks in warm-up mode.

    Expected and counted tokens are compared as integers; the rate is a division made last. A rank without queries has
    the hit rate None.
    """
    signed = (delta.hit_rate - planned.hit_rate) * 100
    exact = delta.queries_source != "blocks"
    queries_difference = delta.queries - planned.input_tokens
    actual = counted_section(delta)
    for rank, share in planned.by_rank.items():
        if str(rank) in actual["by_dp"]:
            actual["by_dp"][str(rank)] |= _expected(delta.by_rank[rank], share)
    actual |= {
        "expected_queries": planned.input_tokens,
        "expected_hits": planned.hit_tokens,
        "queries_difference": queries_difference,
        "hits_difference": delta.hits - planned.hit_tokens,
    }
    warnings: list[dict[str, Any]] = []
    if abs(signed) > validation.actual_warning_pp:
        warnings.append(
            {
                "code": Code.ACTUAL_DEVIATION.value,
                "message": f"the counted hit rate {delta.hit_rate:.4f} is {abs(signed):.2f} percentage points away "
                f"from the theoretical {planned.hit_rate:.4f} (warning above {validation.actual_warning_pp:g})",
                "theoretical_hit_rate": planned.hit_rate,
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
                "message": f"the server counted {delta.queries} prompt tokens, planned were {planned.input_tokens}: "
                f"{abs(queries_difference)} too {'many' if queries_difference > 0 else 'few'}",
                "expected_queries": planned.input_tokens,
                "counted_queries": delta.queries,
                "difference": queries_difference,
            }
        )
    return Comparison(actual, signed, tuple(warnings))


def counted_section(delta: CounterDelta) -> dict[str, Any]:
    """``analysis.actual`` as far as no theory is needed for it."""
    section: dict[str, Any] = {
        "by_dp": {}
        if delta.whole_server
        else {str(rank): _rank(delta.by_rank[rank]) for rank in sorted(delta.by_rank)},
        "global_queries": delta.queries,
        "global_hits": delta.hits,
        "global_hit_rate": delta.hit_rate,
        "queries_source": delta.queries_source,
    }
    external_hits = delta.total("external_hits")
    if external_hits is not None:
        section["external_tier"] = {"queries": delta.total("external_queries"), "hits": external_hits}
    return section


def _rank(counted: RankDelta) -> dict[str, Any]:
    return {
        "engine": counted.engine,
        "queries": counted.queries,
        "hits": counted.hits,
        "hit_rate": counted.hit_rate,
        "kv_cache_usage": counted.kv_cache_usage,
    }


def _expected(counted: RankDelta, share: PlannedShare) -> dict[str, Any]:
    return {
        "expected_queries": share.input_tokens,
        "expected_hits": share.hit_tokens,
        "queries_difference": counted.queries - share.input_tokens,
        "hits_difference": counted.hits - share.hit_tokens,
    }
