"""Filling the caches with the canonical prefixes, and the proof that every rank holds them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ais_bench_prefix_cache.counters.ranks import rank_name
from ais_bench_prefix_cache.counters.reader import EngineCounters
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import PrefixCacheError, Problem, ServiceError
from ais_bench_prefix_cache.foundation.names import NO_RANK
from ais_bench_prefix_cache.service.block_inference import BlockRule
from ais_bench_prefix_cache.service.client import Completion, ServiceClient
from ais_bench_prefix_cache.service.readings import EngineId, Reading
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
    """What a prompt of the second pass had to hit and, where the response says it, hit."""

    entry: WarmupEntry
    expected_hits: int
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
    expected = [rule.repeat_hits(entry.input_tokens) for entry in plan]
    return _two_passes(client, reader, plan, plan, expected, rank_of_engine, exact_hits, on_progress)


def warm_shorter_prefixes(
    client: ServiceClient,
    reader: CounterReader,
    sharers: Sequence[tuple[WarmupEntry, WarmupEntry]],
    rank_of_engine: Mapping[EngineId, int],
    *,
    on_progress: Callable[[int], None] = lambda _done: None,
) -> list[WarmedEntry]:
    """For hybrid models, after :func:`warm_and_prove`: make each shorter part of a warm prefix warm, too.

    Where only some layers keep all blocks, the first prompt that shares a shorter part of a cached one hits less, or
    nothing, and makes the next one hit in full (seen on vLLM 0.32 with sliding windows). ``sharers`` are pairs of
    prompts with the same ``shared_prefix_tokens`` and different ends: the first ones are sent, then the second ones,
    which must hit exactly what they share.
    """
    first, second = [pair[0] for pair in sharers], [pair[1] for pair in sharers]
    expected = [entry.shared_prefix_tokens for entry in second]
    return _two_passes(client, reader, first, second, expected, rank_of_engine, True, on_progress)


def _two_passes(
    client: ServiceClient,
    reader: CounterReader,
    first: Sequence[WarmupEntry],
    second: Sequence[WarmupEntry],
    expected: Sequence[int],
    rank_of_engine: Mapping[EngineId, int],
    exact_hits: bool,
    on_progress: Callable[[int], None],
) -> list[WarmedEntry]:
    start = reader.read()
    _check_lengths(client, first, _send_all(client, first, on_progress, 0))
    warmed, _ = _wait(client, reader, start, first)
    completions = _send_all(client, second, on_progress, len(first))
    _, moved = _wait(client, reader, warmed, second)
    proofs = [_Proof(*each) for each in zip(second, completions, expected, strict=True)]
    _prove(client, proofs, moved, rank_of_engine, exact_hits)
    return [WarmedEntry(proof.entry, proof.expected_hits, proof.completion.cached_tokens) for proof in proofs]


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
                        f"warm-up of {entry.group_id}: {problem.message}",
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
                Code.TOKEN_COUNT_DIFFERS,
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
) -> tuple[Reading, dict[EngineId, EngineCounters]]:
    tokens = sum(entry.input_tokens for entry in plan)
    return reader.wait_for_queries(before, tokens, client.config.timeout_seconds)


@dataclass(frozen=True)
class _Proof:
    """A prompt of the second pass, its answer, and what it must have hit."""

    entry: WarmupEntry
    completion: Completion
    expected_hits: int


def _prove(
    client: ServiceClient,
    proofs: Sequence[_Proof],
    moved: Mapping[EngineId, EngineCounters],
    rank_of_engine: Mapping[EngineId, int],
    exact_hits: bool,
) -> None:
    by_rank = {rank_of_engine[engine]: rise for engine, rise in moved.items() if engine in rank_of_engine}
    problems: list[Problem] = []
    where = ", ".join(client.config.metrics_urls)
    one_for_all = NO_RANK in rank_of_engine.values()
    for dp_rank in [NO_RANK] if one_for_all else sorted({proof.entry.dp_rank for proof in proofs}):
        of_rank = [proof for proof in proofs if one_for_all or proof.entry.dp_rank == dp_rank]
        queries = sum(proof.entry.input_tokens for proof in of_rank)
        expected = sum(proof.expected_hits for proof in of_rank)
        rise = by_rank.get(dp_rank, EngineCounters())
        if rise.queries != queries:
            problems.append(
                Problem(
                    Code.WARMUP_NOT_COUNTED,
                    where,
                    f"the warm-up's second pass sent {queries} tokens to {rank_name(dp_rank)}, whose counter rose by "
                    f"{rise.queries}",
                    hint="More: another client uses the server. Less: requests went to other ranks than their header "
                    "says.",
                )
            )
        elif rise.hits != expected and (exact_hits or rise.hits < expected):
            problems.append(_not_warm(where, dp_rank, rise.hits, expected, of_rank))
    if problems:
        raise ServiceError(problems)


def _not_warm(where: str, dp_rank: int, hits: int, expected: int, proofs: Sequence[_Proof]) -> Problem:
    cold = [
        f"{proof.entry.group_id} hit {proof.completion.cached_tokens} of {proof.expected_hits}"
        for proof in proofs
        if proof.completion.cached_tokens not in (None, proof.expected_hits)
    ]
    named = f" ({', '.join(cold[:5])}{', …' if len(cold) > 5 else ''})" if cold else ""
    groups = sorted({proof.entry.group_id for proof in proofs})
    return Problem(
        Code.NOT_WARM,
        where,
        f"{rank_name(dp_rank)} does not hold the canonical prefixes of "
        f"{groups[0] if len(groups) == 1 else f'{len(groups)} groups'}: sent again, they hit {hits} tokens, "
        f"not {expected}{named}",
        hint="A cache that is too small evicts them (fewer or shorter groups, or more KV memory); hybrid models with "
        "sliding windows or Mamba layers keep only parts of them (service.hybrid_warmup).",
    )
