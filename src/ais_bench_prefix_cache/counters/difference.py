"""What happened between two snapshots of one server, per rank, as integers of tokens.

A difference is only made where it is sound: the same engines, no restart, no falling counter, some traffic. "No data"
is an error, never a rate of 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ais_bench_prefix_cache.counters.snapshot import WHOLE_SERVER, CounterUnit, EngineCounters, MetricsSnapshot
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem, SnapshotError

QueriesSource = Literal["queries_counter", "prompt_tokens_counter", "blocks"]


@dataclass(frozen=True)
class RankDelta:
    """One rank's counts between the snapshots, in tokens. None is what the server does not show."""

    rank: int
    engine: str | None
    queries: int
    hits: int
    external_queries: int | None = None
    external_hits: int | None = None
    prompt_tokens: int | None = None
    prompt_tokens_cached: int | None = None
    preemptions: int | None = None
    requests: int | None = None
    speculative_drafts: int | None = None
    mm_queries: int | None = None
    mm_hits: int | None = None
    kv_cache_usage: float | None = None

    @property
    def hit_rate(self) -> float | None:
        """None where the rank counted no queries."""
        return self.hits / self.queries if self.queries else None


@dataclass(frozen=True)
class CounterDelta:
    """All ranks. ``by_rank`` is keyed as in the snapshots.

    ``queries_source`` says where the queries come from: vLLM 0.7.3 to 0.8.5 counts whole blocks, so ``blocks`` leaves
    out each prompt's last, incomplete block, and ``prompt_tokens_counter`` is the exact number instead.
    """

    by_rank: Mapping[int, RankDelta]
    unit: CounterUnit
    block_size: int | None
    queries_source: QueriesSource

    @property
    def whole_server(self) -> bool:
        """Whether the server counts for all its ranks together."""
        return WHOLE_SERVER in self.by_rank

    @property
    def queries(self) -> int:
        return sum(delta.queries for delta in self.by_rank.values())

    @property
    def hits(self) -> int:
        return sum(delta.hits for delta in self.by_rank.values())

    @property
    def hit_rate(self) -> float:
        return self.hits / self.queries

    def total(self, name: str) -> int | None:
        """Sum of an optional count over the ranks; None where no rank shows it."""
        values = [getattr(delta, name) for delta in self.by_rank.values()]
        shown = [value for value in values if value is not None]
        return sum(shown) if shown else None


def difference(baseline: MetricsSnapshot, after: MetricsSnapshot) -> CounterDelta:
    """``after`` minus ``baseline``. Raises SnapshotError, with every problem, where that means nothing."""
    problems = [*_other_server(baseline, after)]
    if problems:
        raise SnapshotError(problems)
    problems += _restarts(baseline, after)
    for rank, late in after.by_rank.items():
        problems += _fallen(baseline.by_rank[rank], late, after)
    if problems:
        raise SnapshotError(problems)
    for rank, late in after.by_rank.items():
        early = baseline.by_rank[rank]
        if late.hits - early.hits > late.queries - early.queries:
            problems.append(
                Problem(
                    Code.SNAPSHOT_HITS_ABOVE_QUERIES,
                    rank_name(rank),
                    f"{late.hits - early.hits} hits were counted for {late.queries - early.queries} queries",
                    hint="save both snapshots while no request is under way, each in one answer",
                )
            )
    if all(late.queries == baseline.by_rank[rank].queries for rank, late in after.by_rank.items()):
        problems.append(_no_data_problem(after))
    if problems:
        raise SnapshotError(problems)

    unit = _resolved_unit(baseline, after)
    block_size = _server_block_size(after)
    if unit == "blocks" and block_size is None:
        raise SnapshotError.of(
            Code.SNAPSHOT_BLOCKS,
            after.queries_metric,
            "this server counts cache blocks, not tokens (vLLM 0.7.3 to 0.8.5 do), and does not show its block size",
            hint="the text must hold vllm:cache_config_info with block_size; or use vLLM 0.9.2 or later",
        )
    if unit == "unknown":
        raise SnapshotError.of(
            Code.SNAPSHOT_UNIT,
            after.queries_metric,
            "vLLM 0.7.3 to 0.8.5 counts blocks under this name, 0.9.0 and 0.9.1 tokens; the text does not tell which",
            hint="keep the # HELP lines or vllm:prompt_tokens_total in the saved text",
        )
    factor = block_size if unit == "blocks" and block_size is not None else 1
    prompt_tokens_known = factor > 1 and all(
        _holds_blocks(baseline.by_rank[rank], late, factor) for rank, late in after.by_rank.items()
    )
    by_rank = {
        rank: _rank_delta(baseline.by_rank[rank], late, factor, prompt_tokens_known)
        for rank, late in after.by_rank.items()
    }
    source: QueriesSource = "queries_counter"
    if factor > 1:
        source = "prompt_tokens_counter" if prompt_tokens_known else "blocks"
    return CounterDelta(by_rank, unit, block_size, source)


def rank_name(rank: int) -> str:
    """How problems and findings name a rank."""
    return "server" if rank == WHOLE_SERVER else f"rank {rank}"


def _rank_delta(early: EngineCounters, late: EngineCounters, factor: int, queries_are_prompt_tokens: bool) -> RankDelta:
    prompt_tokens = _minus(late.prompt_tokens, early.prompt_tokens)
    queries = (late.queries - early.queries) * factor
    if queries_are_prompt_tokens and prompt_tokens is not None:
        queries = prompt_tokens
    return RankDelta(
        rank=late.rank,
        engine=late.engine,
        queries=queries,
        hits=(late.hits - early.hits) * factor,
        external_queries=_minus(late.external_queries, early.external_queries),
        external_hits=_minus(late.external_hits, early.external_hits),
        prompt_tokens=prompt_tokens,
        prompt_tokens_cached=_minus(late.prompt_tokens_cached, early.prompt_tokens_cached),
        preemptions=_minus(late.preemptions, early.preemptions),
        requests=_minus(late.requests, early.requests),
        speculative_drafts=_minus(late.speculative_drafts, early.speculative_drafts),
        mm_queries=_minus(late.mm_queries, early.mm_queries),
        mm_hits=_minus(late.mm_hits, early.mm_hits),
        kv_cache_usage=late.kv_cache_usage,
    )


def _holds_blocks(early: EngineCounters, late: EngineCounters, block_size: int) -> bool:
    """Whether the prompt tokens are shown and at least those of the counted blocks."""
    prompt_tokens = _minus(late.prompt_tokens, early.prompt_tokens)
    return prompt_tokens is not None and prompt_tokens >= (late.queries - early.queries) * block_size


def _minus(late: int | None, early: int | None) -> int | None:
    """A counter that appears only between the snapshots began at 0."""
    return None if late is None else max(0, late - (early or 0))


def _other_server(baseline: MetricsSnapshot, after: MetricsSnapshot) -> list[Problem]:
    where = "baseline and after"
    if (baseline.family, baseline.queries_metric) != (after.family, after.queries_metric):
        return [
            Problem(
                Code.SNAPSHOT_DIFFERENT_SERVERS,
                where,
                f"the baseline shows {baseline.queries_metric}, the other {after.queries_metric}",
                hint="both snapshots must come from the same server process",
            )
        ]
    if baseline.model_names and after.model_names and baseline.model_names != after.model_names:
        return [
            Problem(
                Code.SNAPSHOT_DIFFERENT_SERVERS,
                where,
                f"the baseline is of model {', '.join(baseline.model_names)}, the other of "
                f"{', '.join(after.model_names)}",
                hint="both snapshots must come from the same server process",
            )
        ]
    early = {rank: counters.engine for rank, counters in baseline.by_rank.items()}
    late = {rank: counters.engine for rank, counters in after.by_rank.items()}
    if early != late:
        return [
            Problem(
                Code.SNAPSHOT_DIFFERENT_ENGINES,
                where,
                f"the baseline shows the engines {_engines(early)}, the other {_engines(late)}",
                hint="give the texts of several ports in the same order both times",
            )
        ]
    return []


def _engines(engines: Mapping[int, str | None]) -> str:
    return ", ".join("(no label)" if engine is None else engine for engine in engines.values())


def _restarts(baseline: MetricsSnapshot, after: MetricsSnapshot) -> list[Problem]:
    problems = []
    hint = "both snapshots must come from one life of the server: run again without a restart in between"
    early, late = baseline.process_starts, after.process_starts
    if early and late and early != late:
        problems.append(
            Problem(
                Code.SNAPSHOT_RESTART,
                "process_start_time_seconds",
                f"the server was restarted between the snapshots: it was {_times(early)}, it is {_times(late)}",
                hint=hint,
            )
        )
        return problems
    for rank, counters in after.by_rank.items():
        before = baseline.by_rank[rank].created
        if before is not None and counters.created is not None and before != counters.created:
            problems.append(
                Problem(
                    Code.SNAPSHOT_RESTART,
                    rank_name(rank),
                    f"the counters were created anew between the snapshots: at {before:.3f}, then at "
                    f"{counters.created:.3f}",
                    hint=hint,
                )
            )
    return problems


def _times(times: tuple[float, ...]) -> str:
    return ", ".join(f"{time:.3f}" for time in times)


def _fallen(early: EngineCounters, late: EngineCounters, after: MetricsSnapshot) -> list[Problem]:
    problems = []
    for name, before, now in (
        (after.queries_metric, early.queries, late.queries),
        (after.hits_metric, early.hits, late.hits),
    ):
        if now < before:
            problems.append(
                Problem(
                    Code.SNAPSHOT_COUNTER_FELL,
                    rank_name(late.rank),
                    f"{name} fell from {before} to {now}",
                    hint="the server was restarted in between, or the two files are swapped",
                )
            )
    return problems


def _no_data_problem(after: MetricsSnapshot) -> Problem:
    configs = [counters.config for counters in after.by_rank.values() if counters.config is not None]
    hint = "no request was counted between the snapshots: save the second one after the requests, from the same server"
    if any(config.prefix_caching is False for config in configs):
        hint = "prefix caching is off (cache_config_info says so): start the server with --enable-prefix-caching"
    return Problem(
        Code.SNAPSHOT_NO_DATA,
        after.queries_metric,
        f"no queries between the snapshots (it is {sum(c.queries for c in after.by_rank.values())} in both); that is "
        "no data, not a hit rate of 0",
        hint=hint,
    )


def _server_block_size(after: MetricsSnapshot) -> int | None:
    sizes = {c.config.block_size for c in after.by_rank.values() if c.config is not None}
    return sizes.pop() if len(sizes) == 1 else None


def _resolved_unit(baseline: MetricsSnapshot, after: MetricsSnapshot) -> CounterUnit:
    """Where neither name nor help tells, the prompt tokens do: a block holds at least 8 tokens."""
    units = {baseline.unit, after.unit} - {"unknown"}
    if len(units) == 1:
        return units.pop()
    prompt_tokens = [_minus(c.prompt_tokens, baseline.by_rank[rank].prompt_tokens) for rank, c in after.by_rank.items()]
    if any(tokens is None for tokens in prompt_tokens):
        return "unknown"
    queries = sum(c.queries - baseline.by_rank[rank].queries for rank, c in after.by_rank.items())
    return "tokens" if 2 * queries > sum(tokens or 0 for tokens in prompt_tokens) else "blocks"
