"""One replay of a trace for one block size, and the report of it. Everything in the report is JSON-ready."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ais_bench_prefix_cache.datasets.traces.reading import TraceRow
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import CalculationError
from ais_bench_prefix_cache.kvcache.radix_replay import replay_of
from ais_bench_prefix_cache.kvcache.trace_replay import RankTotals, RoutingRule, TraceReplay

ReplayedEngine = Literal["vllm", "sglang"]

CURVE_POINTS = 40
TRAJECTORY_POINTS = 100


class Simulation:
    """Caches of ``num_blocks`` blocks (None: unbounded) on each of ``ranks`` ranks; see :class:`TraceReplay`.

    ``capacity_curve`` measures hits for all numbers of blocks as well, ``per_request`` keeps those of each request.

    Raises:
        CalculationError: a number below 1, or a capacity curve where requests run side by side or are routed by it.
    """

    def __init__(
        self,
        *,
        block_size: int,
        num_blocks: int | None = None,
        ranks: int = 1,
        routing: RoutingRule = "round-robin",
        concurrency: int = 1,
        capacity_curve: bool = False,
        per_request: bool = False,
        engine: ReplayedEngine = "vllm",
    ) -> None:
        self.block_size = block_size
        self._engine = engine
        replay = replay_of(engine)
        self.concurrency = concurrency
        self.replay: TraceReplay = replay(
            block_size=block_size, num_blocks=num_blocks, ranks=ranks, routing=routing, concurrency=concurrency
        )
        self._measured: TraceReplay | None = None
        if capacity_curve:
            self._measured = replay(block_size=block_size, ranks=ranks, routing=routing, concurrency=concurrency)
            self._measured.capacity_curve()  # Refused now, not after hours.
            if num_blocks is None:
                self._measured = self.replay
        self._groups: dict[str, RankTotals] = {}
        self._requests: list[dict[str, Any]] | None = [] if per_request else None
        self._trajectory = _Trajectory()
        self._total = RankTotals()
        self._sum_of_request_rates = 0.0

    def warm(self, row: TraceRow) -> None:
        """Send a request to its rank that is not counted."""
        for replay in self._replays():
            replay.send(row.request(self.block_size), rank=row.rank, counted=False)

    def send(self, row: TraceRow) -> None:
        """Send a request."""
        request = row.request(self.block_size)
        replayed = self.replay.send(request)
        if self._measured is not None and self._measured is not self.replay:
            self._measured.send(request)
        _count(self._total, row.prompt_tokens, replayed.hit_tokens)
        self._sum_of_request_rates += replayed.hit_tokens / row.prompt_tokens
        if row.group is not None:
            _count(self._groups.setdefault(row.group, RankTotals()), row.prompt_tokens, replayed.hit_tokens)
        if self._requests is not None:
            self._requests.append(
                {
                    "line": row.line,
                    "group": row.group,
                    "rank": replayed.rank,
                    "queries": row.prompt_tokens,
                    "hits": replayed.hit_tokens,
                }
            )
        self._trajectory.add(self._total)

    def document(self, *, curve_sizes: Sequence[int] | None = None) -> dict[str, Any]:
        """The report. ``curve_sizes``: the numbers of blocks for the capacity curve; None leaves the choice to it."""
        replay, total = self.replay, self._total
        document: dict[str, Any] = {
            "engine": self._engine,
            "block_size": self.block_size,
            "blocks": replay.num_blocks,
            "ranks": len(replay.totals),
            "route": replay.routing,
            "concurrency": self.concurrency,
            **_share(total),
            "mean_of_request_hit_rates": self._sum_of_request_rates / total.requests if total.requests else 0.0,
            "evictions": sum(replay.evictions),
            "by_rank": {
                str(rank): {**_share(totals), "evictions": evictions}
                for rank, (totals, evictions) in enumerate(zip(replay.totals, replay.evictions, strict=True))
            },
        }
        if self._groups:
            document["by_group"] = {group: _share(totals) for group, totals in self._groups.items()}
        document["cumulative"] = self._trajectory.points()
        if self._measured is not None:
            document["capacity_curve"] = self._curve(self._measured, curve_sizes)
        if self._requests is not None:
            document["per_request"] = self._requests
        return document

    def _replays(self) -> list[TraceReplay]:
        second = self._measured is not None and self._measured is not self.replay
        return [self.replay, self._measured] if second and self._measured is not None else [self.replay]

    def _curve(self, measured: TraceReplay, sizes: Sequence[int] | None) -> dict[str, Any]:
        curve = measured.capacity_curve()
        for size in sizes or ():
            if size < curve.smallest_num_blocks:
                raise CalculationError.of(
                    Code.REQUEST_TOO_LARGE,
                    "--capacity-curve",
                    f"the largest request does not fit into {size} blocks",
                    allowed=f"{curve.smallest_num_blocks} or more",
                )
        return {
            "smallest_blocks": curve.smallest_num_blocks,
            "largest_useful_blocks": curve.largest_num_blocks,
            "points": [
                {"blocks": size, "hits": curve.hit_tokens(size), "hit_rate": curve.hit_rate(size)}
                for size in sizes or curve.sizes(CURVE_POINTS)
            ],
        }


class _Trajectory:
    """The cumulative hit rate at up to twice ``TRAJECTORY_POINTS`` requests, evenly apart, whatever their number."""

    def __init__(self) -> None:
        self._every = 1
        self._points: list[dict[str, Any]] = []
        self._last: RankTotals | None = None

    def add(self, total: RankTotals) -> None:
        self._last = total
        if total.requests % self._every:
            return
        self._points.append(_share(total))
        if len(self._points) >= 2 * TRAJECTORY_POINTS:
            self._points = self._points[1::2]
            self._every *= 2

    def points(self) -> list[dict[str, Any]]:
        """The last one is the whole."""
        if self._last is not None and self._last.requests % self._every:
            return [*self._points, _share(self._last)]
        return self._points


def _count(totals: RankTotals, queries: int, hits: int) -> None:
    totals.requests += 1
    totals.queries += queries
    totals.hits += hits


def _share(totals: RankTotals) -> dict[str, Any]:
    return {
        "requests": totals.requests,
        "queries": totals.queries,
        "hits": totals.hits,
        "hit_rate": totals.hits / totals.queries if totals.queries else 0.0,
    }
