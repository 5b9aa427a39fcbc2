"""Filling the caches with the canonical prefixes, and the proof that every rank holds them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ais_bench_prefix_cache.errors import PrefixCacheError, Problem, ServiceError
from ais_bench_prefix_cache.service.block_inference import BlockRule
from ais_bench_prefix_cache.service.client import Completion, ServiceClient
from ais_bench_prefix_cache.service.counters import Counter, EngineId, Reading
from ais_bench_prefix_cache.service.scraping import CounterReader

_IN_FLIGHT_PER_RANK = 4


@dataclass(frozen=True)
class WarmupEntry:
    """One line of the manifest's ``warmup.plan``: a prompt for one group on one rank."""

    request_id: str
    group_id: str
    dp_rank: int
    prompt: str
    input_tokens: int
    shared_prefix_tokens: int
    max_tokens: int

    @classmethod
    def from_plan(cls, entry: Mapping[str, Any]) -> WarmupEntry:
        return cls(**{name: entry[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class WarmedEntry:
    """What a warm-up prompt's repetition hit; ``cached_tokens`` is None where the response does not say."""

    entry: WarmupEntry
    cached_tokens: int | None


def warm_and_prove(
    client: ServiceClient,
    reader: CounterReader,
    plan: Sequence[WarmupEntry],
    rank_of_engine: Mapping[EngineId, int],
    rule: BlockRule,
    *,
    exact_hits: bool = True,
    on_progress: Callable[[int], None] = lambda _done: None,
) -> list[WarmedEntry]:
    """Send every prompt to its rank, then all of them once more, and judge the second pass by its hits.

    The second pass of a rank must hit exactly what its prompts, all cached, hit by ``rule``: a sum that is right proves
    each part, because none can hit more. Raises ServiceError that names group, rank and numbers. ``on_progress`` hears
    how many requests are done, ``2 * len(plan)`` at the end.
    """
    start = reader.read()
    _check_lengths(client, plan, _send_all(client, plan, on_progress, 0))
    warmed, _ = _wait(client, reader, start, plan)
    completions = _send_all(client, plan, on_progress, len(plan))
    _, moved = _wait(client, reader, warmed, plan)
    _prove(client, plan, completions, moved, rank_of_engine, rule, exact_hits)
    return [WarmedEntry(entry, completion.cached_tokens) for entry, completion in zip(plan, completions, strict=True)]


def _send_all(
    client: ServiceClient, plan: Sequence[WarmupEntry], on_progress: Callable[[int], None], done_before: int
) -> list[Completion]:
    """All prompts, several at a time, results in the plan's order; the first error stops the rest.

    The threads are daemons: an interrupted run must end at once, not after the server has answered.
    """
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(plan)):
        todo.put(index)
    done: queue.SimpleQueue[tuple[int, Completion | Exception]] = queue.SimpleQueue()
    stopped = threading.Event()

    def work() -> None:
        while not stopped.is_set():
            try:
                index = todo.get_nowait()
            except queue.Empty:
                return
            entry = plan[index]
            try:
                done.put((index, client.complete(entry.prompt, dp_rank=entry.dp_rank, max_tokens=entry.max_tokens)))
            except Exception as error:
                done.put((index, error))
                return

    workers = min(len(plan), _IN_FLIGHT_PER_RANK * client.config.dp_size)
    for _ in range(workers):
        threading.Thread(target=work, name="warm-up", daemon=True).start()
    completions: dict[int, Completion] = {}
    try:
        while len(completions) < len(plan):
            index, outcome = done.get()
            if isinstance(outcome, PrefixCacheError):
                entry = plan[index]
                raise ServiceError(
                    Problem(
                        problem.code,
                        problem.where,
                        f"warm-up of {entry.group_id} on rank {entry.dp_rank}: {problem.message}",
                        problem.allowed,
                        problem.hint,
                    )
                    for problem in outcome.problems
                )
            if isinstance(outcome, Exception):
                raise outcome
            completions[index] = outcome
            on_progress(done_before + len(completions))
    finally:
        stopped.set()
    return [completions[index] for index in range(len(plan))]


def _check_lengths(client: ServiceClient, plan: Sequence[WarmupEntry], completions: Sequence[Completion]) -> None:
    """The server must count the tokens that we counted: otherwise no block boundary lies where the theory puts it."""
    problems = []
    seen_groups = set()
    for entry, completion in zip(plan, completions, strict=True):
        counted = completion.prompt_tokens
        if counted is None or counted == entry.input_tokens or entry.group_id in seen_groups:
            continue
        seen_groups.add(entry.group_id)
        difference = counted - entry.input_tokens
        problems.append(
            Problem(
                "TOKEN_COUNT_DIFFERS",
                client.inference_url(entry.dp_rank),
                f"the server counts {counted} tokens in the warm-up prompt of {entry.group_id}, "
                f"tokenizer.path counts {entry.input_tokens} ({difference:+d})",
                hint="The server adds a BOS that our tokenizer does not (or the reverse)."
                if abs(difference) == 1
                else "tokenizer.path is not the server's tokenizer. Correct it and prepare again.",
            )
        )
    if problems:
        raise ServiceError(problems)


def _wait(
    client: ServiceClient, reader: CounterReader, before: Reading, plan: Sequence[WarmupEntry]
) -> tuple[Reading, dict[EngineId, Counter]]:
    tokens = sum(entry.input_tokens for entry in plan)
    return reader.wait_for_queries(before, tokens, client.config.timeout_seconds)


def _prove(
    client: ServiceClient,
    plan: Sequence[WarmupEntry],
    completions: Sequence[Completion],
    moved: Mapping[EngineId, Counter],
    rank_of_engine: Mapping[EngineId, int],
    rule: BlockRule,
    exact_hits: bool,
) -> None:
    by_rank = {rank_of_engine[engine]: rise for engine, rise in moved.items() if engine in rank_of_engine}
    problems: list[Problem] = []
    where = ", ".join(client.config.metrics_urls)
    for dp_rank in sorted({entry.dp_rank for entry in plan}):
        entries = [
            (entry, completion) for entry, completion in zip(plan, completions, strict=True) if entry.dp_rank == dp_rank
        ]
        queries = sum(entry.input_tokens for entry, _ in entries)
        expected = sum(rule.repeat_hits(entry.input_tokens) for entry, _ in entries)
        rise = by_rank.get(dp_rank, Counter(0, 0))
        if rise.queries != queries:
            problems.append(
                Problem(
                    "WARMUP_NOT_COUNTED",
                    where,
                    f"the warm-up's second pass sent {queries} tokens to rank {dp_rank}, whose counter rose by "
                    f"{rise.queries}",
                    hint="More: another client uses the server. Less: requests went to other ranks than their header "
                    "says.",
                )
            )
        elif rise.hits != expected and (exact_hits or rise.hits < expected):
            problems.append(_not_warm(where, dp_rank, rise.hits, expected, entries, rule))
    if problems:
        raise ServiceError(problems)


def _not_warm(
    where: str,
    dp_rank: int,
    hits: int,
    expected: int,
    entries: Sequence[tuple[WarmupEntry, Completion]],
    rule: BlockRule,
) -> Problem:
    cold = [
        f"{entry.group_id} hit {completion.cached_tokens} of {rule.repeat_hits(entry.input_tokens)}"
        for entry, completion in entries
        if completion.cached_tokens is not None and completion.cached_tokens != rule.repeat_hits(entry.input_tokens)
    ]
    named = f" ({', '.join(cold[:5])}{', …' if len(cold) > 5 else ''})" if cold else ""
    groups = entries[0][0].group_id if len(entries) == 1 else f"{len(entries)} groups"
    return Problem(
        "NOT_WARM",
        where,
        f"rank {dp_rank} does not hold the canonical prefixes of {groups}: sent again, they hit {hits} tokens, "
        f"not {expected}{named}",
        hint="A cache that is too small evicts them (fewer or shorter groups, or more KV memory); hybrid models with "
        "sliding windows or Mamba layers keep only parts of them.",
    )
