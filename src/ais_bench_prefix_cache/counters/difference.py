"""What happened between two snapshots of one server, per rank, as integers of tokens.

A difference is only made where it is sound: the same engines, every series still the one it was, some traffic. "No
data" is an error, never a rate of 0. Each series is held against itself, by its whole label set, before any sum counts:
a restart of one of several workers hides behind the others in the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ais_bench_prefix_cache.counters.names import SUMMED_LABELS
from ais_bench_prefix_cache.counters.ranks import MetricsSnapshot, rank_name
from ais_bench_prefix_cache.counters.reader import CounterUnit, Engine, EngineCounters, Series
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem, SnapshotError
from ais_bench_prefix_cache.foundation.names import NO_RANK
from ais_bench_prefix_cache.foundation.quoting import plain

QueriesSource = Literal["queries_counter", "prompt_tokens_counter", "blocks"]

_ONE_LIFE = "both snapshots must come from one life of the server: run again without a restart in between"


@dataclass(frozen=True)
class CounterDelta:
    """What each rank counted between the snapshots, in tokens. ``by_rank`` is keyed as in the snapshots.

    ``queries_source`` says where the queries come from: vLLM 0.7.3 to 0.8.5 counts whole blocks, so ``blocks`` leaves
    out each prompt's last, incomplete block, and ``prompt_tokens_counter`` is the exact number instead. ``server_hits``
    is what SGLang counted for all ranks together, where the ranks' own counts are taken.
    """

    by_rank: Mapping[int, EngineCounters]
    unit: CounterUnit
    block_size: int | None
    queries_source: QueriesSource
    server_hits: int | None = None

    @property
    def whole_server(self) -> bool:
        """Whether the server counts for all its ranks together."""
        return NO_RANK in self.by_rank

    @property
    def queries(self) -> int:
        """Tokens of all ranks."""
        return sum(counted.queries for counted in self.by_rank.values())

    @property
    def hits(self) -> int:
        """Tokens of all ranks."""
        return sum(counted.hits for counted in self.by_rank.values())

    @property
    def hit_rate(self) -> float:
        """A fraction of 1."""
        return self.hits / self.queries

    def total(self, count: Callable[[EngineCounters], int | None]) -> int | None:
        """Sum of an optional ``count`` over the ranks; None where no rank shows it."""
        values = [count(counted) for counted in self.by_rank.values()]
        shown = [value for value in values if value is not None]
        return sum(shown) if shown else None


def difference(baseline: MetricsSnapshot, after: MetricsSnapshot) -> CounterDelta:
    """``after`` minus ``baseline``, rank by rank.

    A server that had counted nothing yet (``baseline.fresh``) began at 0, whatever engines it shows since.

    Raises:
        SnapshotError: with every problem, where the difference means nothing.
    """
    if baseline.fresh and not after.fresh:
        empty = {rank: Engine(late.label, late.source, EngineCounters()) for rank, late in after.by_rank.items()}
        baseline = replace(baseline, queries_metric=after.queries_metric, by_rank=empty)
    _raise_any(_other_server(baseline, after))
    _raise_any([*_restarts(baseline, after), *_changed_series(baseline, after)])
    rises = {rank: late.counters - baseline.by_rank[rank].counters for rank, late in after.by_rank.items()}
    _raise_any(_impossible(rises, after))

    unit = _resolved_unit(baseline, after, rises)
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
    source: QueriesSource = "queries_counter"
    if unit == "blocks" and block_size is not None:
        rises, source = _blocks_to_tokens(rises, block_size)
    server_hits = after.server_hits
    if server_hits is not None:
        server_hits -= baseline.server_hits or 0
    return CounterDelta(rises, unit, block_size, source, server_hits)


def _raise_any(problems: Iterable[Problem]) -> None:
    found = list(problems)
    if found:
        raise SnapshotError(found)


def _other_server(baseline: MetricsSnapshot, after: MetricsSnapshot) -> Iterator[Problem]:
    where = "baseline and after"
    hint = "both snapshots must come from the same server process"
    if (baseline.family, baseline.queries_metric) != (after.family, after.queries_metric):
        yield Problem(
            Code.SNAPSHOT_DIFFERENT_SERVERS,
            where,
            f"the baseline shows {baseline.queries_metric}, the other {after.queries_metric}",
            hint=hint,
        )
        return
    if baseline.model_names and after.model_names and baseline.model_names != after.model_names:
        yield Problem(
            Code.SNAPSHOT_DIFFERENT_SERVERS,
            where,
            plain(
                f"the baseline is of model {', '.join(baseline.model_names)}, the other of "
                f"{', '.join(after.model_names)}"
            ),
            hint=hint,
        )
        return
    early = {rank: engine.label for rank, engine in baseline.by_rank.items()}
    late = {rank: engine.label for rank, engine in after.by_rank.items()}
    if early != late:
        yield Problem(
            Code.SNAPSHOT_DIFFERENT_ENGINES,
            where,
            f"the baseline shows the engines {_engines(early)}, the other {_engines(late)}",
            hint="give the texts of several ports in the same order both times",
        )


def _engines(labels: Mapping[int, str | None]) -> str:
    return ", ".join("(no label)" if label is None else label for label in labels.values())


def _restarts(baseline: MetricsSnapshot, after: MetricsSnapshot) -> Iterator[Problem]:
    """A process, or a single series of it, that began anew."""
    early, late = baseline.process_starts, after.process_starts
    if early and late and early != late:
        yield Problem(
            Code.SNAPSHOT_RESTART,
            "process_start_time_seconds",
            "the snapshots are of different processes: it was restarted in between, or another server answered"
            f" (it was {_times(early)}, it is {_times(late)})"
            if late > early
            else "the snapshots are of different processes, and the second was started before the first: the files are "
            f"swapped, or another server answered (it was {_times(early)}, it is {_times(late)})",
            hint=_ONE_LIFE,
        )
        return
    for rank, engine in after.by_rank.items():
        created = baseline.by_rank[rank].created
        for series, now in engine.created.items():
            if created.get(series, now) != now:
                yield Problem(
                    Code.SNAPSHOT_RESTART,
                    rank_name(rank),
                    f"{series} changed: what it counts was created anew between the snapshots, at "
                    f"{created[series]:.3f}, then at {now:.3f}",
                    hint=_ONE_LIFE,
                )
                break


def _times(times: tuple[float, ...]) -> str:
    return ", ".join(f"{time:.3f}" for time in times)


def _changed_series(baseline: MetricsSnapshot, after: MetricsSnapshot) -> Iterator[Problem]:
    """Series that fell, went away, or came from a process that the baseline does not know."""
    for rank, late in after.by_rank.items():
        early = baseline.by_rank[rank]
        for series, before in early.series.items():
            now = late.series.get(series)
            if now is None:
                yield Problem(
                    Code.SNAPSHOT_SERIES_CHANGED,
                    rank_name(rank),
                    f"{series} went away between the snapshots; it was {before}",
                    hint="a worker was stopped or replaced in between: run again while all workers stay",
                )
            elif now < before:
                yield Problem(
                    Code.SNAPSHOT_COUNTER_FELL,
                    rank_name(rank),
                    f"{series} fell from {before} to {now}",
                    hint="the server was restarted in between, or the two files are swapped",
                )
        writers = [_writer(series) for series in early.series]
        for series, now in late.series.items():
            # A process may show a source or a finish reason only once it occurs; a new process is something else.
            if writers and not any(_agree(_writer(series), writer) for writer in writers):
                yield Problem(
                    Code.SNAPSHOT_SERIES_CHANGED,
                    rank_name(rank),
                    f"{series} appeared between the snapshots; it is {now}",
                    hint="a worker was started or replaced in between: run again while all workers stay",
                )


def _writer(series: Series) -> dict[str, str]:
    """The labels by which a series tells its process from others."""
    return {key: value for key, value in series.labels if key == "pid" or key not in SUMMED_LABELS}


def _agree(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    return all(other.get(key, value) == value for key, value in one.items())


def _impossible(rises: Mapping[int, EngineCounters], after: MetricsSnapshot) -> Iterator[Problem]:
    for rank, rise in rises.items():
        if rise.hits > rise.queries:
            yield Problem(
                Code.SNAPSHOT_HITS_ABOVE_QUERIES,
                rank_name(rank),
                f"{rise.hits} hits were counted for {rise.queries} queries",
                hint="save both snapshots while no request is under way, each in one answer",
            )
    if not any(rise.queries for rise in rises.values()):
        yield _no_data_problem(after)


def _no_data_problem(after: MetricsSnapshot) -> Problem:
    configs = [engine.config for engine in after.by_rank.values() if engine.config is not None]
    hint = "no request was counted between the snapshots: save the second one after the requests, from the same server"
    if any(config.prefix_caching is False for config in configs):
        hint = "prefix caching is off (cache_config_info says so): start the server with --enable-prefix-caching"
    elif after.fresh:
        hint = "this server shows its counters once a request has finished: save the second text after the requests"
    return Problem(
        Code.SNAPSHOT_NO_DATA,
        after.queries_metric,
        f"no queries between the snapshots (it is {sum(e.counters.queries for e in after.by_rank.values())} in both); "
        "that is no data, not a hit rate of 0",
        hint=hint,
    )


def _server_block_size(after: MetricsSnapshot) -> int | None:
    sizes = {engine.config.block_size for engine in after.by_rank.values() if engine.config is not None}
    return sizes.pop() if len(sizes) == 1 else None


def _resolved_unit(
    baseline: MetricsSnapshot, after: MetricsSnapshot, rises: Mapping[int, EngineCounters]
) -> CounterUnit:
    """Where neither name nor help tells, the prompt tokens do: a block holds at least 8 tokens."""
    units = {baseline.unit, after.unit} - {"unknown"}
    if len(units) == 1:
        return units.pop()
    queries, prompt_tokens = 0, 0
    for rise in rises.values():
        if rise.prompt_tokens is None:
            return "unknown"
        queries += rise.queries
        prompt_tokens += rise.prompt_tokens
    return "tokens" if 2 * queries > prompt_tokens else "blocks"


def _blocks_to_tokens(
    rises: Mapping[int, EngineCounters], block_size: int
) -> tuple[dict[int, EngineCounters], QueriesSource]:
    """Hits and queries times the block size; the prompt tokens as queries where they can be the whole prompts'."""
    known = all(r.prompt_tokens is not None and r.prompt_tokens >= r.queries * block_size for r in rises.values())
    in_tokens = {
        rank: replace(
            rise,
            queries=rise.prompt_tokens if known and rise.prompt_tokens is not None else rise.queries * block_size,
            hits=rise.hits * block_size,
        )
        for rank, rise in rises.items()
    }
    return in_tokens, "prompt_tokens_counter" if known else "blocks"
