"""What the hits show of the cache: its blocks, its size, its layers, and what nothing else explains."""

from __future__ import annotations

from typing import Any

from ais_bench_prefix_cache.analysis.diagnosis.evidence import Evidence, Finding, Rule
from ais_bench_prefix_cache.counters.reader import CacheConfig
from ais_bench_prefix_cache.foundation.codes import Code

_MOST_PARALLEL = 16
"""Devices over which decode context parallelism spreads a block."""
_REPLAY_TOLERANCE = 0.1
"""Of the planned hits: so much may requests in flight at once hit less than a replay of them one after another."""
_MORE_MEMORY = "Give the server more KV memory, or use fewer groups or shorter prefixes and prepare again."


def _told_block_sizes(evidence: Evidence) -> dict[int, int]:
    """By rank, where the server tells another size than ours."""
    ours = evidence.planned.block_size
    return {
        rank: config.block_size
        for rank, config in sorted(evidence.configs.items())
        if config.block_size is not None and config.block_size != ours
    }


def _hit_steps(evidence: Evidence) -> dict[int, int]:
    """By rank, the tokens by which hits grow where the server's words say more than our block."""
    steps = {rank: _alignment(config, evidence, rank) for rank, config in sorted(evidence.configs.items())}
    return {rank: step for rank, step in steps.items() if step is not None and step > evidence.planned.block_size}


def _alignment(config: CacheConfig, evidence: Evidence, rank: int) -> int | None:
    """The tokens by which hits grow where the server says so, or where its capacity does."""
    if config.hit_alignment_tokens:
        return config.hit_alignment_tokens
    ratio = _capacity_ratio(config, evidence, rank)
    if config.block_size is None or ratio is None or ratio[0] % ratio[1]:
        return None
    times = ratio[0] // ratio[1]
    return config.block_size * times if 1 < times <= _MOST_PARALLEL else None


def _capacity_ratio(config: CacheConfig, evidence: Evidence, rank: int) -> tuple[int, int] | None:
    """Tokens that the cache holds, and tokens of its blocks, both for all engines of the rank's port.

    Equal for full attention; a multiple with decode context parallelism; else layer groups share the blocks.
    """
    snapshot = evidence.after or evidence.baseline
    if snapshot is None or None in (config.block_size, config.kv_cache_size_tokens, config.num_gpu_blocks):
        return None
    assert config.block_size and config.kv_cache_size_tokens is not None and config.num_gpu_blocks is not None
    engines = sum(engine.source == snapshot.by_rank[rank].source for engine in snapshot.by_rank.values())
    block_tokens = config.num_gpu_blocks * config.block_size
    if block_tokens == config.kv_cache_size_tokens:
        # Whether num_gpu_blocks is a sum over the engines depends on the version; here it is not.
        return (block_tokens, block_tokens) if block_tokens else None
    return (config.kv_cache_size_tokens * engines, block_tokens) if block_tokens else None


def _told_block_size(evidence: Evidence) -> Finding | None:
    """A label is a word, hits are a measurement: where these are as planned, nothing is wrong."""
    ours, told = evidence.planned.block_size, _told_block_sizes(evidence)
    if not told or evidence.delta is None or evidence.as_planned:
        return None
    size = next(iter(told.values()))
    multiple = size > ours and size % ours == 0
    likely = evidence.fits_blocks_of(size) and not _measured_in_our_blocks(evidence)
    return Finding(
        Code.SERVER_BLOCK_SIZE_MULTIPLE if multiple else Code.WRONG_BLOCK_SIZE,
        "error" if likely else "note",
        f"the server says that it caches in blocks of {size} tokens, tokenizer.block_size is {ours}"
        + (
            ", and what was hit is consistent with that"
            if likely
            else f"; what was measured does not show blocks of {size}"
        ),
        {"tokenizer.block_size": ours, "server_block_size": {str(rank): each for rank, each in told.items()}},
        f"Set tokenizer.block_size to {size} and prepare again, or start the server with --block-size {ours}."
        + (" Some platforms raise the block size on their own." if multiple else ""),
    )


def _measured_in_our_blocks(evidence: Evidence) -> bool:
    """Whether probes or responses show that the server caches in blocks of our size."""
    requests, ours = evidence.requests, evidence.planned.block_size
    seen = requests is not None and requests.seen_values >= 2 and requests.seen_step == ours
    return seen or evidence.facts.probed_block_size == ours


def _spread_blocks(evidence: Evidence) -> Finding | None:
    steps = _hit_steps(evidence)
    if not steps or _told_block_sizes(evidence) or evidence.delta is None or evidence.as_planned:
        return None
    step, ours = next(iter(steps.values())), evidence.planned.block_size
    likely = evidence.fits_blocks_of(step) and not _measured_in_our_blocks(evidence)
    return Finding(
        Code.SERVER_BLOCK_SIZE_MULTIPLE,
        "error" if likely else "note",
        f"by the server's own words hits come in steps of {step} tokens, as with decode context parallelism, where a "
        f"block spans several devices; tokenizer.block_size is {ours}"
        + (", and what was hit is consistent with that" if likely else "; what was measured does not show such steps"),
        {"tokenizer.block_size": ours, "hit_step_tokens": {str(rank): each for rank, each in steps.items()}},
        f"Set tokenizer.block_size to {step} and prepare again.",
    )


def _seen_block_size(evidence: Evidence) -> Finding | None:
    """The steps of the ``cached_tokens`` that responses reported."""
    requests, ours = evidence.requests, evidence.planned.block_size
    if requests is None or not requests.mismatched or requests.seen_values < 2:
        return None
    if _hit_steps(evidence):
        return None
    step = requests.seen_step
    numbers = {"tokenizer.block_size": ours, "hit_step_tokens": step, "different_values": requests.seen_values}
    # Larger blocks take each hit down to a whole one; a step that hits have in common by chance explains no loss.
    explains = not requests.beside_step and not _measured_in_our_blocks(evidence)
    if step > ours and step % ours == 0 and explains and requests.seen_hits < requests.expected_hits:
        return Finding(
            Code.SERVER_BLOCK_SIZE_MULTIPLE,
            "error",
            f"each of the cached_tokens that responses reported is the planned hit cut down to a multiple of {step}, "
            f"as with blocks of so many tokens; tokenizer.block_size is {ours}",
            numbers,
            f"Set tokenizer.block_size to {step} and prepare again.",
        )
    if step % ours:
        return Finding(
            Code.WRONG_BLOCK_SIZE,
            "error",
            f"the cached_tokens that responses reported are multiples of {step} but not of tokenizer.block_size, "
            f"{ours}",
            numbers,
            "Ask the server for its block size (cache_config_info), set tokenizer.block_size, prepare again.",
        )
    return None


def _too_small_by_replay(evidence: Evidence) -> Finding | None:
    planned, prediction = evidence.planned, evidence.facts.cache_prediction
    if prediction is None or prediction.hit_tokens >= planned.tokens.shared or evidence.hits_short <= 0:
        return None
    rate = prediction.hit_tokens / planned.tokens.total
    counted = planned.tokens.shared - evidence.hits_short
    beyond = prediction.hit_tokens - counted > _REPLAY_TOLERANCE * planned.tokens.shared
    return Finding(
        Code.CACHE_TOO_SMALL,
        "error",
        f"by replay a cache of {prediction.capacity_tokens} tokens for each engine, the server's, evicts blocks that "
        f"the plan counts on: the requests, sent one after another, hit {rate:.4f} of their tokens, not "
        f"{planned.tokens.rate:.4f}; several at once evict in another order and hit a little more or less"
        + (f"; counted was {counted / planned.tokens.total:.4f}, so there may be another reason" if beyond else ""),
        {
            "capacity_tokens": prediction.capacity_tokens,
            "predicted_hits": prediction.hit_tokens,
            "planned_hits": planned.tokens.shared,
            "reachable_hit_rate": rate,
            "evicted_blocks": prediction.evicted_blocks,
            "counted_hits": evidence.delta.hits if evidence.delta else None,
        },
        _MORE_MEMORY,
    )


def _too_small_for_prefixes(evidence: Evidence) -> Finding | None:
    planned = evidence.planned
    needed = sum(planned.canonical_prefix_tokens.values())
    if planned.mode != "warmup" or evidence.as_planned or _too_small_by_replay(evidence) is not None:
        return None
    for rank, config in sorted(evidence.configs.items()):
        capacity = config.kv_cache_size_tokens
        if capacity is not None and capacity < needed:
            return Finding(
                Code.CACHE_TOO_SMALL,
                "error",
                f"the canonical prefixes of {len(planned.canonical_prefix_tokens)} groups need {needed} tokens, an "
                f"engine's cache holds {capacity}",
                {"rank": rank, "capacity_tokens": capacity, "canonical_prefix_tokens": needed},
                _MORE_MEMORY,
            )
    return None


def _fits(evidence: Evidence) -> str:
    """What a cause that may take hits away, without saying how many, can say of the loss."""
    short = evidence.hits_short
    return f"; the {short} tokens that were not hit are consistent with that" if short > 0 else ""


def _hybrid(evidence: Evidence) -> Finding | None:
    for rank, config in sorted(evidence.configs.items()):
        ratio = _capacity_ratio(config, evidence, rank)
        shares_blocks = ratio is not None and ratio[0] % ratio[1] != 0
        if not (shares_blocks or config.sliding_window or config.mamba_block_size):
            continue
        shown: dict[str, Any] = {"rank": rank, "hits_short": evidence.hits_short}
        if ratio is not None:
            shown |= {"cache_tokens": ratio[0], "block_tokens": ratio[1]}
        if config.sliding_window:
            shown["sliding_window"] = config.sliding_window
        if config.mamba_block_size:
            shown["mamba_block_size"] = config.mamba_block_size
        named = config.sliding_window or config.mamba_block_size
        return Finding(
            Code.HYBRID_MODEL,
            "warning" if evidence.hits_short > 0 else "note",
            (
                "the server names sliding-window or Mamba layers"
                if named
                else "the cache holds no whole multiple of its blocks' tokens, as where layers of two kinds share it"
            )
            + ": with such a hybrid the first request that shares a shorter part of a warmed prefix hits 0, the second "
            "hits in full" + _fits(evidence),
            shown,
            "Set service.hybrid_warmup to true, so that each distinct shared length is warmed."
            if not evidence.facts.hybrid_warmup
            else "Each shared length was warmed; compare request by request.",
        )
    return None


def _speculative(evidence: Evidence) -> Finding | None:
    """EAGLE and MTP drop the last matched block: shown by the probes, or by the responses; a sum only fits."""
    with_hits, block_size = evidence.planned.requests_with_hits, evidence.planned.block_size
    requests, dropped = evidence.requests, evidence.facts.dropped_blocks
    # Where the probes hit all that they should, nothing drops the last block.
    probed_whole = evidence.facts.probed_block_size is not None and not dropped
    if _told_block_sizes(evidence) or probed_whole:
        return None
    drafts = evidence.total(lambda counted: counted.speculative_drafts)
    by_sum = bool(with_hits) and evidence.hits_short == (with_hits or 0) * block_size and not evidence.excess_queries
    # Where nothing hits, a whole hit of one block is what lacks.
    by_responses = requests is not None and set(requests.shortfalls) == {block_size} and requests.seen_hits > 0
    if requests is not None and requests.mismatched and not by_responses:
        return None
    # The server drafts, which vLLM shows only then, or its responses lack the block: a reset between two requests makes
    # any sum.
    by_sum = by_sum and (bool(drafts) or by_responses)
    if not by_sum and not dropped:
        return None
    message = "the probes hit one block less than the cache holds, as with EAGLE or MTP speculative decoding"
    if by_sum and dropped:
        message = (
            f"the probes and every request with hits lack one block of {block_size} tokens, as with EAGLE or MTP "
            "speculative decoding: it drops the last matched block"
        )
    elif by_sum:
        block = f"one block of {block_size} tokens"
        shown = f"the sum lacks {block} for each request with hits"
        if by_responses:
            shown = f"every request with hits lacks {block}"
        message = (
            f"{shown}{', and the server drafts tokens' if drafts else ''}, which is consistent with EAGLE or MTP "
            "speculative decoding, which drops the last matched block, and with evictions or a reset in between"
        )
    return Finding(
        Code.SPECULATIVE_DECODING,
        "warning",
        message,
        {
            "hits_short": evidence.hits_short,
            "requests_with_hits": with_hits,
            "block_size": block_size,
            "speculative_drafts": drafts,
            "dropped_blocks_of_probes": dropped,
        },
        "Turn speculative decoding off for this measurement, or read the theory as one block less for each hit.",
    )


def _preemptions(evidence: Evidence) -> Finding | None:
    count = evidence.total(lambda counted: counted.preemptions)
    if not count:
        return None
    return Finding(
        Code.PREEMPTIONS,
        "warning",
        f"the server preempted running requests {count} {'time' if count == 1 else 'times'}, as it does when its KV "
        "cache is full" + _fits(evidence),
        {"preemptions": count, "hits_short": evidence.hits_short},
        "Lower aisbench.model.batch_size or the output lengths, or give the server more KV memory.",
    )


def _external_tier(evidence: Evidence) -> Finding | None:
    hits = evidence.total(lambda counted: counted.external_hits)
    if not hits:
        return None
    return Finding(
        Code.EXTERNAL_KV_TIER,
        "warning",
        f"a tier outside of the device's cache served {hits} prompt tokens; they are no local hits",
        {"external_hits": hits, "external_queries": evidence.total(lambda counted: counted.external_queries)},
        "Turn the KV connector or the host cache off for this measurement, or empty it too (reset_external=true).",
    )


def history_reencoded(evidence: Evidence) -> Finding | None:
    """Messages that come back as other tokens than the server had computed."""
    history = evidence.facts.history
    if history is None or history.first is None:
        return None
    first = history.first
    ends, before = first["differs_before"] - 1, first["prompt_tokens_before"]
    if ends < before:
        part = "within what was sent before: the template writes a history otherwise than a last message"
    elif first["differs_from"] >= before:
        part = "within the answer: its text is encoded otherwise than it was generated"
    else:
        part = "about where the answer begins"
    return Finding(
        Code.HISTORY_REENCODED,
        "warning",
        f"{history.lost_turns} of {history.turns} turns that continue others hit {history.lost_tokens} tokens fewer "
        "than the server had computed of their histories, which were sent as messages; the first is request "
        f"{first['sequence_index']}, turn {first['turn']}, whose history differs between tokens "
        f"{first['differs_from']} and {ends} of {first['history_tokens']}, {part}",
        {
            "turns": history.turns,
            "lost_turns": history.lost_turns,
            "lost_tokens": history.lost_tokens,
            **first,
        },
        'Send token ids (conversation.form "token_ids") to see what the server hits without this loss; use a chat '
        "template that renders a finished turn as it was generated.",
    )


RULES: tuple[Rule, ...] = (
    history_reencoded,
    _told_block_size,
    _spread_blocks,
    _seen_block_size,
    _too_small_by_replay,
    _too_small_for_prefixes,
    _hybrid,
    _speculative,
    _preemptions,
    _external_tier,
)


def unexplained(evidence: Evidence) -> Finding | None:
    """Theory and counter differ and no rule says why."""
    delta, short = evidence.delta, evidence.hits_short
    if delta is None or short == 0:
        return None
    numbers: dict[str, Any] = {"planned_hits": evidence.planned.tokens.shared, "counted_hits": delta.hits}
    if evidence.requests is not None and evidence.requests.first_mismatch is not None:
        numbers["first_mismatch"] = dict(evidence.requests.first_mismatch)
    if short < 0:
        held = "a cache that held blocks of an earlier run or of others"
        if evidence.proven_empty:
            held = "others who sent the same prompts since the cache was seen to be empty"
        return Finding(
            Code.CACHE_NOT_EMPTY,
            "warning",
            f"{-short} tokens more were hit than theory says, which is consistent with {held}, and with prompts that "
            "were sent in another order than planned",
            {**numbers, "assumed_empty": evidence.facts.assumed_empty},
            "Reset the prefix cache before the run (service.reset_url); prepare again with another random_seed.",
        )
    return Finding(
        Code.HITS_MISSING,
        "warning",
        f"{short} tokens fewer were hit than theory says, and nothing else shows why",
        numbers,
        "Compare request by request (start vLLM with --enable-prompt-tokens-details) and look for the first one. "
        "Usual reasons: a reset in between, requests with a cache_salt, another order than planned.",
    )
