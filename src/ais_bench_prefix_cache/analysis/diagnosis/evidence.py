"""What a diagnosis looks at, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ais_bench_prefix_cache.analysis.planned_traffic import PlannedTraffic
from ais_bench_prefix_cache.analysis.request_comparison import RequestComparison
from ais_bench_prefix_cache.analysis.run_facts import RunFacts
from ais_bench_prefix_cache.counters.difference import CounterDelta
from ais_bench_prefix_cache.counters.ranks import MetricsSnapshot
from ais_bench_prefix_cache.counters.reader import CacheConfig, EngineCounters
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """``code`` is stable, ``evidence`` JSON-ready numbers, ``remedy`` what to do.

    ``message`` states a cause only where its own evidence shows it; where the numbers only fit, it says "consistent
    with" and names the rivals.
    """

    code: Code
    severity: Severity
    message: str
    evidence: Mapping[str, Any]
    remedy: str

    def as_json(self) -> dict[str, Any]:
        """One entry of ``analysis.findings``."""
        return {**asdict(self), "code": self.code.value}


@dataclass(frozen=True)
class Evidence:
    """All that is known of one run. Everything but the plan may be missing.

    ``delta`` is None where the snapshots cannot be compared; then ``problems`` say why.
    """

    planned: PlannedTraffic
    baseline: MetricsSnapshot | None = None
    after: MetricsSnapshot | None = None
    delta: CounterDelta | None = None
    problems: tuple[Problem, ...] = ()
    requests: RequestComparison | None = None
    facts: RunFacts = field(default_factory=RunFacts)

    @property
    def configs(self) -> dict[int, CacheConfig]:
        """What the engines tell about their caches, by rank, where shown."""
        snapshot = self.after or self.baseline
        if snapshot is None:
            return {}
        return {rank: engine.config for rank, engine in snapshot.by_rank.items() if engine.config is not None}

    @property
    def hits_short(self) -> int:
        """Hits that theory promises and the counters lack; negative where there are more, 0 within its range."""
        return 0 if self.delta is None else self.planned.hits_short(self.delta.hits)

    @property
    def as_planned(self) -> bool:
        """Whether queries and hits were counted exactly as theory says, on each rank where it says so of each."""
        delta, planned = self.delta, self.planned
        if delta is None or self.hits_short or delta.queries != planned.tokens.total:
            return False
        counted = {rank: (rise.queries, rise.hits) for rank, rise in delta.by_rank.items()}
        return delta.whole_server or all(
            counted.get(rank) == (share.total, share.shared) for rank, share in planned.by_rank.items()
        )

    def fits_blocks_of(self, size: int) -> bool:
        """Whether the hits can be those of blocks of ``size``: whole ones, and none lacks more than a part of one."""
        with_hits = self.planned.requests_with_hits
        if self.delta is None or self.hits_short <= 0 or self.delta.hits % size:
            return False
        if self.planned.block_size % size == 0:
            return False  # Parts of our blocks hit all that ours do.
        return with_hits is None or self.hits_short < size * with_hits

    @property
    def excess_queries(self) -> int:
        """Prompt tokens counted beyond the plan; negative where some are missing."""
        if self.delta is None or self.delta.queries_source == "blocks":
            return 0
        return self.delta.queries - self.planned.tokens.total

    @property
    def bypassed_tokens(self) -> int:
        """Prompt tokens that were processed without asking the cache; 0 where that cannot be told."""
        delta = self.delta
        prompt_tokens = None if delta is None else delta.total(lambda counted: counted.prompt_tokens)
        if (
            delta is None
            or prompt_tokens is None
            or delta.unit != "tokens"
            or delta.total(lambda counted: counted.preemptions)
        ):
            return 0
        return max(0, prompt_tokens - delta.queries)

    @property
    def busy_at_first(self) -> bool:
        """Whether requests were under way at the first snapshot."""
        baseline = self.baseline
        return baseline is not None and any((e.running or 0) + (e.waiting or 0) for e in baseline.by_rank.values())

    @property
    def proven_empty(self) -> bool:
        """Whether every rank was seen to hit nothing of what had been cached before the run."""
        reset = self.facts.reset
        return reset is not None and bool(reset.hits_after) and not any((reset.hits_after or {}).values())

    def total(self, count: Callable[[EngineCounters], int | None]) -> int | None:
        """Sum of an optional ``count`` over the ranks; None where nothing can be compared or no rank shows it."""
        return None if self.delta is None else self.delta.total(count)


Rule = Callable[[Evidence], Finding | None]
