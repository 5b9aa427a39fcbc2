"""Which engine answers for which rank: seen in the counters, never taken from a status code.

A probe is a completion with a text that nobody has sent before. Sent twice to one rank it must move one engine's
queries by exactly its tokens, both times the same engine, and hit the second time all whole blocks before its last
token. A server that ignores the rank header, a metrics URL of another server, a cache that is switched off, another
block size and foreign traffic each look different, and each gets its own error.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ais_bench_prefix_cache.counters.reader import EngineCounters
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem, ServiceError
from ais_bench_prefix_cache.foundation.names import NO_RANK, RANK_HEADER
from ais_bench_prefix_cache.prompts import MIN_CONTROLLED_TOKENS, UNIQUE, PromptSource, PromptSpec, WordEstimate
from ais_bench_prefix_cache.service.block_inference import BlockRule, rules_that_explain
from ais_bench_prefix_cache.service.client import ServiceClient
from ais_bench_prefix_cache.service.readings import EngineId, Reading
from ais_bench_prefix_cache.service.scraping import CounterReader

_FIRST_CHARACTERS_PER_TOKEN = 2.0
"""A low guess, so that the first probe is not too long; its own count replaces it."""
_TELLING_BLOCKS = (5, 7, 11, 13)
"""Whole blocks of a repeated prompt whose hits tell a block size from its double, its triple and its half."""
_MOST_ATTEMPTS = 6
_EXTRA_PROBE_BLOCKS = (4, 7, 11, 19, 37, 67)
_LONG_PROBE_TOKENS = (2_200, 4_400, 8_800, 17_600, 35_200)
"""Tried one after another where nothing shorter hits: some servers cache in steps of 16,384 tokens."""
_SURELY_FITS = 0.9
"""Of a model's length: a text made for so many tokens may have a few more."""


@dataclass(frozen=True)
class RankProbe:
    """A prompt that is known to live, or to have lived, in the cache of one rank.

    ``repeat_hit_tokens`` is what its second sending hit.
    """

    dp_rank: int
    prompt: str
    prompt_tokens: int
    engine: EngineId
    repeat_hit_tokens: int


@dataclass(frozen=True)
class ProbedRanks:
    """One probe a rank, the map from the server's engines to our ranks that they prove, and how the server hits.

    ``rule.dropped_blocks`` is 1 where every repetition hits one block less than the cache holds.
    """

    probes: tuple[RankProbe, ...]
    rule: BlockRule
    notes: tuple[str, ...]

    @property
    def rank_of_engine(self) -> dict[EngineId, int]:
        """An engine that counts for several ranks has :data:`NO_RANK`."""
        ranks: dict[EngineId, int] = {}
        for probe in self.probes:
            ranks[probe.engine] = NO_RANK if probe.engine in ranks else probe.dp_rank
        return ranks

    @property
    def engine_labels(self) -> dict[str, int]:
        """Engine label → rank, as ``service.engine_label_map`` would write it."""
        return {probe.engine.label: probe.dp_rank for probe in self.probes}


def new_nonce() -> str:
    """128 random bits, so that no probe was ever sent before."""
    return uuid.uuid4().hex


def probe_text(nonce: str, dp_rank: int, characters: int) -> str:
    """``characters`` of a prompt that shares no block with any other. ``nonce`` is hexadecimal."""
    source = PromptSource(
        PromptSpec(UNIQUE),
        counter=WordEstimate(),
        seed=int(nonce, 16),
        case_id="probe",
        phase=f"rank-{dp_rank}",
        # Words have several characters, so this many are always enough.
        input_tokens=max(MIN_CONTROLLED_TOKENS, characters),
    )
    return source.prompt(0).text[:characters]


def probe_ranks(
    client: ServiceClient,
    reader: CounterReader,
    *,
    block_size: int,
    most_tokens: int | None = None,
    exact_hits: bool = True,
    nonce: Callable[[], str] = new_nonce,
) -> ProbedRanks:
    """Find the engine behind every rank, and prove that it caches in blocks of ``block_size``.

    ``most_tokens`` is what one prompt may have at most (the model's length). ``exact_hits``: the
    engine hits whole blocks, as vLLM does; False for engines that match token by token.
    Raises ServiceError for the first thing that is not as it must be.
    """
    config = client.config
    probes: list[RankProbe] = []
    rule = BlockRule(block_size, 0)
    before = reader.read()
    ratio = _FIRST_CHARACTERS_PER_TOKEN
    for dp_rank in range(config.dp_size):
        engine: EngineId | None = None
        wanted = _TELLING_BLOCKS[0] * block_size + 1 + 3 * block_size // 4
        # One text, cut shorter or longer: its count then changes by the end alone, and a few attempts find the length.
        rank_nonce = nonce()
        characters = _characters(wanted, ratio, most_tokens)
        for _ in range(_MOST_ATTEMPTS):
            prompt = probe_text(rank_nonce, dp_rank, characters)
            try:
                before, engine, tokens, _ = _send(client, reader, before, prompt, dp_rank, engine)
            except ServiceError as error:
                raise ServiceError(
                    _of_missing_engine(client, before, dp_rank, each) for each in error.problems
                ) from error
            ratio = len(prompt) / tokens
            if _tells_block_sizes_apart(tokens, block_size):
                break
            characters = _characters(wanted, len(prompt) / tokens, most_tokens)
        before, again, tokens, hits = _send(client, reader, before, prompt, dp_rank, engine)
        if not _counts_several_ranks(again, before, config.dp_size):
            _check_engine(client, dp_rank, again, before, probes)
        if hits != rule.repeat_hits(tokens) and (exact_hits or hits < rule.repeat_hits(tokens)):
            before, rule = _rule_of_server(
                client, reader, before, dp_rank, (tokens, hits), block_size, ratio, most_tokens, nonce
            )
        probes.append(RankProbe(dp_rank, prompt, tokens, again, hits))
    notes = _label_notes(config.engine_label_map, probes)
    if any(_counts_several_ranks(probe.engine, before, config.dp_size) for probe in probes):
        notes.append(
            f"{_metrics_place(client)} counts for all ranks together: that requests reach their ranks cannot be seen, "
            f"and "
            "only the global rate can be told"
        )
    return ProbedRanks(tuple(probes), rule, tuple(notes))


def repeat_probe(
    client: ServiceClient, reader: CounterReader, before: Reading, probe: RankProbe
) -> tuple[Reading, int]:
    """Send a probe once more; returns the reading after it and the tokens it hit on its rank."""
    after, _engine, _tokens, hits = _send(client, reader, before, probe.prompt, probe.dp_rank, probe.engine)
    return after, hits


def _send(
    client: ServiceClient,
    reader: CounterReader,
    before: Reading,
    prompt: str,
    dp_rank: int,
    expected: EngineId | None,
) -> tuple[Reading, EngineId, int, int]:
    """One probe: the reading after it, the engine that moved (``expected`` if given), the prompt's tokens, its hits."""
    completion = client.complete(prompt, dp_rank=dp_rank)
    after, moved = reader.wait_for_queries(before, completion.prompt_tokens, client.config.timeout_seconds)
    engine, rise = _the_one_that_moved(client, dp_rank, completion.prompt_tokens, moved)
    if expected is not None and engine != expected:
        raise ServiceError.of(
            Code.RANK_HEADER_IGNORED,
            client.inference_url(dp_rank),
            f"two probes to rank {dp_rank} were counted by different engines: {expected}, then {engine}",
            hint=f"The server ignores the header {RANK_HEADER} (vLLM 0.11.1 and later honour it). Use a newer server, "
            "or give one URL per rank in service.inference_url and service.metrics_url.",
        )
    return after, engine, rise.queries, rise.hits


def _characters(tokens: int, characters_per_token: float, most_tokens: int | None) -> int:
    """The length of a text that should have ``tokens`` tokens and cannot have more than ``most_tokens``."""
    characters = round(tokens * characters_per_token)
    # A token of ASCII text is at least one character; a few tokens are left for BOS and the answer.
    return characters if most_tokens is None else min(characters, max(1, most_tokens - 8))


def _tells_block_sizes_apart(tokens: int, block_size: int) -> bool:
    half = max(1, block_size // 2)
    return (tokens - 1) // block_size in _TELLING_BLOCKS and (tokens - 1) // half % 2 == 1


def _the_one_that_moved(
    client: ServiceClient, dp_rank: int, tokens: int | None, moved: Mapping[EngineId, EngineCounters]
) -> tuple[EngineId, EngineCounters]:
    where = _metrics_place(client)
    asked = [(engine, rise) for engine, rise in sorted(moved.items()) if rise.queries]
    if not asked:
        raise ServiceError.of(
            Code.COUNTERS_DO_NOT_MOVE,
            where,
            f"a probe of {tokens if tokens is not None else 'some'} tokens to rank {dp_rank} was answered, but no "
            f"prefix-cache counter moved within {client.config.timeout_seconds:g} s",
            hint="Does service.metrics_url belong to the server of service.inference_url? "
            "Is prefix caching on, and the server not started with --disable-log-stats?",
        )
    if len(asked) > 1 or (tokens is not None and asked[0][1].queries > tokens):
        rises = ", ".join(f"{engine} by {rise.queries}" for engine, rise in asked)
        alike = len({(engine.label, rise.queries) for engine, rise in asked}) == 1
        hint = "Someone else uses this server. Stop other clients during a run: their prompts would be counted, too."
        if len(asked) > 1 and alike:
            hint = "Several metrics URLs moved alike: do they name one server? " + hint
        raise ServiceError.of(
            Code.FOREIGN_TRAFFIC,
            where,
            f"a probe of {tokens if tokens is not None else 'some'} tokens to rank {dp_rank} moved {rises}",
            hint=hint,
        )
    engine, rise = asked[0]
    if tokens is not None and rise.queries < tokens:
        raise ServiceError.of(
            Code.COUNTER_UNIT,
            where,
            f"a probe of {tokens} tokens to rank {dp_rank} moved {engine} by {rise.queries}",
            hint="vLLM 0.7.3 to 0.8.5 counts blocks, not tokens, so that theory cannot equal the counter. "
            "Use vLLM 0.9.0 or later.",
        )
    return engine, rise


def _counts_several_ranks(engine: EngineId, reading: Reading, dp_size: int) -> bool:
    """Whether this is the one engine without a label that SGLang before its counts per rank shows for several."""
    return not engine.label and reading.families == {"sglang"} and len(reading.counters) < dp_size


def _of_missing_engine(client: ServiceClient, reading: Reading, dp_rank: int, problem: Problem) -> Problem:
    """A rank that the server does not have fails in one way or another; the number of engines says so plainly."""
    shown = len(reading.counters)
    if not 0 < shown <= dp_rank or problem.code not in (Code.HTTP_STATUS, Code.SERVER_ERROR):
        return problem
    if len(client.config.inference_urls) > 1:
        return problem  # Which of the servers has too few is not in their sum.
    return replace(problem, hint=_too_few_engines(shown, client.config.dp_size))


def _too_few_engines(shown: int, dp_size: int) -> str:
    engines = "1 engine" if shown == 1 else f"{shown} engines"
    return f"The server has {engines}: set service.dp_size to {shown} (it is {dp_size}) and prepare again."


def _check_engine(
    client: ServiceClient, dp_rank: int, engine: EngineId, reading: Reading, earlier: list[RankProbe]
) -> None:
    for probe in earlier:
        if probe.engine == engine:
            shown, dp_size = len(reading.counters), client.config.dp_size
            raise ServiceError.of(
                Code.RANK_NOT_REACHED,
                _metrics_place(client),
                f"probes to rank {probe.dp_rank} and to rank {dp_rank} both moved {engine}",
                hint=_too_few_engines(shown, dp_size)
                if shown < dp_size
                else f"The server, or a router before it, ignores the header {RANK_HEADER} (vLLM 0.11.1 and later "
                "honour it; a cache-aware router chooses the rank itself).",
            )
    expected = client.config.engine_label_map.get(engine.label)
    if expected is not None and expected != dp_rank:
        raise ServiceError.of(
            Code.ENGINE_LABEL_MAP,
            f"service.engine_label_map[{engine.label!r}]",
            f"says rank {expected}, but a probe to rank {dp_rank} moved that engine",
            hint=f"Write {engine.label!r}: {dp_rank}, or leave the map out: it is learned from the probes.",
        )


def _rule_of_server(
    client: ServiceClient,
    reader: CounterReader,
    before: Reading,
    dp_rank: int,
    first: tuple[int, int],
    block_size: int,
    characters_per_token: float,
    most_tokens: int | None,
    nonce: Callable[[], str],
) -> tuple[Reading, BlockRule]:
    """How a server hits that does not hit as predicted: probes of other lengths tell the reasons apart.

    Returns the last reading and a rule with the Scenario's block size and a dropped block; every other rule is an
    error.
    """
    tokens, hits = first
    predicted = (tokens - 1) // block_size * block_size
    observations = [first]

    def observe(length: int) -> None:
        nonlocal before
        characters = _characters(length, characters_per_token, most_tokens)
        if most_tokens is not None and length <= _SURELY_FITS * most_tokens:
            characters = round(length * characters_per_token)  # measured by now, no guess
        prompt = probe_text(nonce(), dp_rank, characters)
        before, engine, *_ = _send(client, reader, before, prompt, dp_rank, None)
        before, _engine, more_tokens, more_hits = _send(client, reader, before, prompt, dp_rank, engine)
        observations.append((more_tokens, more_hits))

    for blocks in _EXTRA_PROBE_BLOCKS:
        observe(blocks * block_size)
    for length in _LONG_PROBE_TOKENS:
        if any(hit for _, hit in observations) or most_tokens is None or length > _SURELY_FITS * most_tokens:
            break
        observe(length)
    rules = rules_that_explain(observations, block_size)
    if BlockRule(block_size, 1) in rules:
        return before, BlockRule(block_size, 1)
    seen = f"a prompt of {tokens} tokens, sent twice to rank {dp_rank}, hit {hits} tokens the second time"
    if not any(hit for _, hit in observations):
        raise ServiceError.of(
            Code.CACHE_INEFFECTIVE,
            _metrics_place(client),
            f"{seen}, and so did every longer one, up to {max(length for length, _ in observations)} tokens; with "
            f"blocks "
            f"of {block_size} it must be {predicted}",
            hint="Is prefix caching on (--enable-prefix-caching)? Is the server's block size much larger than "
            "tokenizer.block_size?",
        )
    sizes = " or ".join(str(size) for size in sorted({rule.block_size for rule in rules}))
    raise ServiceError.of(
        Code.WRONG_BLOCK_SIZE,
        _metrics_place(client),
        f"{seen}; with blocks of {block_size} it must be {predicted}"
        + (f". {len(observations)} such prompts hit as with blocks of {sizes}" if sizes else ""),
        hint=f"Set tokenizer.block_size to {sizes} and prepare again."
        if sizes
        else "No block size explains the hits. Does the server evict at once (a very small cache), or share its cache "
        "with other clients?",
    )


def _label_notes(engine_label_map: Mapping[str, int], probes: list[RankProbe]) -> list[str]:
    """Say where the numbers in the labels would have misled."""
    if engine_label_map:
        return []
    notes = []
    for probe in probes:
        digits = re.search(r"(\d+)$", probe.engine.label)
        if digits is not None and int(digits[1]) != probe.dp_rank:
            notes.append(f"{probe.engine} is rank {probe.dp_rank}: learned from the probe, not from the label")
    return notes


def _metrics_place(client: ServiceClient) -> str:
    return ", ".join(client.config.metrics_urls)
