"""Why theory and counters differ: findings, each with the numbers that show it and what to do.

A finding appears only with evidence. ``docs/diagnosis.md`` has a section for each code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ais_bench_prefix_cache.analysis.planned_traffic import PlannedTraffic
from ais_bench_prefix_cache.analysis.request_comparison import RequestComparison
from ais_bench_prefix_cache.analysis.run_facts import RunFacts
from ais_bench_prefix_cache.counters.difference import CounterDelta
from ais_bench_prefix_cache.counters.snapshot import CacheConfig, EngineCounters, MetricsSnapshot
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem

Severity = Literal["error", "warning", "note"]

_MOST_ADDED_TOKENS = 16
"""A BOS, an EOS, the tokens of a short template: more than this a request is other traffic."""
_MOST_PARALLEL = 16
"""Devices over which decode context parallelism spreads a block."""
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """``code`` is stable, ``evidence`` JSON-ready numbers, ``remedy`` what to do."""

    code: Code
    severity: Severity
    message: str
    evidence: Mapping[str, Any]
    remedy: str

    def as_json(self) -> dict[str, Any]:
        """One entry of ``analysis.findings``."""
        return {
            "code": self.code.value,
            "severity": self.severity,
            "message": self.message,
            "evidence": dict(self.evidence),
            "remedy": self.remedy,
        }


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
        """``cache_config_info`` by rank, where shown."""
        snapshot = self.after or self.baseline
        if snapshot is None:
            return {}
        return {rank: c.config for rank, c in snapshot.by_rank.items() if c.config is not None}

    @property
    def hits_short(self) -> int:
        """Hits that theory promises and the counters lack; negative where there are more."""
        return 0 if self.delta is None else self.planned.hit_tokens - self.delta.hits

    @property
    def as_planned(self) -> bool:
        """Whether queries and hits were counted exactly as theory says."""
        return self.delta is not None and self.hits_short == 0 and self.delta.queries == self.planned.input_tokens

    @property
    def excess_queries(self) -> int:
        """Prompt tokens counted beyond the plan; negative where some are missing."""
        if self.delta is None or self.delta.queries_source == "blocks":
            return 0
        return self.delta.queries - self.planned.input_tokens

    @property
    def bypassed_tokens(self) -> int:
        """Prompt tokens that were processed without asking the cache; 0 where that cannot be told."""
        delta = self.delta
        prompt_tokens = None if delta is None else delta.total("prompt_tokens")
        if delta is None or prompt_tokens is None or delta.unit != "tokens" or delta.total("preemptions"):
            return 0
        return max(0, prompt_tokens - delta.queries)


def diagnose(evidence: Evidence) -> list[Finding]:
    """Every finding that the evidence supports, the gravest first."""
    findings = [finding for rule in _RULES for finding in rule(evidence)]
    explained = {finding.code for finding in findings} - _NOT_EXPLAINING
    if not explained:
        findings.extend(_unexplained(evidence))
    return sorted(findings, key=lambda finding: _SEVERITIES.index(finding.severity))


def _unusable_snapshots(evidence: Evidence) -> Iterator[Finding]:
    for problem in evidence.problems:
        code, remedy = _PROBLEM_FINDINGS.get(problem.code, (None, ""))
        if code == Code.NO_TRAFFIC and any(config.prefix_caching is False for config in evidence.configs.values()):
            continue
        if code is not None:
            yield Finding(
                code,
                "error",
                f"{problem.where}: {problem.message}",
                {"problem": problem.code, "counters": _counters(evidence)},
                remedy,
            )


def _counters(evidence: Evidence) -> dict[str, dict[str, dict[str, int]]]:
    return {
        name: {str(rank): {"queries": c.queries, "hits": c.hits} for rank, c in snapshot.by_rank.items()}
        for name, snapshot in (("baseline", evidence.baseline), ("after", evidence.after))
        if snapshot is not None
    }


def _caching_off(evidence: Evidence) -> Iterator[Finding]:
    off = sorted(rank for rank, config in evidence.configs.items() if config.prefix_caching is False)
    if off:
        yield Finding(
            Code.PREFIX_CACHING_OFF,
            "error",
            "the server says that prefix caching is off (cache_config_info: enable_prefix_caching)",
            {"ranks": off, "counted_queries": evidence.delta.queries if evidence.delta else 0},
            "Start the server with --enable-prefix-caching.",
        )


def _block_size(evidence: Evidence) -> Iterator[Finding]:
    ours = evidence.planned.block_size
    told = {rank: config.block_size for rank, config in evidence.configs.items() if config.block_size is not None}
    other = {rank: size for rank, size in told.items() if size != ours}
    steps = {
        rank: step
        for rank, config in evidence.configs.items()
        if (step := _alignment(config, evidence, rank)) is not None and step > ours
    }
    if other:
        size = next(iter(other.values()))
        multiple = size > ours and size % ours == 0
        yield Finding(
            Code.SERVER_BLOCK_SIZE_MULTIPLE if multiple else Code.WRONG_BLOCK_SIZE,
            "error" if evidence.hits_short else "warning",
            f"the server caches in blocks of {size} tokens, tokenizer.block_size is {ours}",
            {"tokenizer.block_size": ours, "server_block_size": {str(r): s for r, s in sorted(other.items())}},
            f"Set tokenizer.block_size to {size} and prepare again, or start the server with --block-size {ours}."
            + (" Some platforms raise the block size on their own." if multiple else ""),
        )
    elif steps and not evidence.as_planned:
        step = next(iter(steps.values()))
        yield Finding(
            Code.SERVER_BLOCK_SIZE_MULTIPLE,
            "error" if evidence.hits_short else "warning",
            f"the server's hits come in steps of {step} tokens, tokenizer.block_size is {ours}: with decode context "
            "parallelism a block spans several devices",
            {"tokenizer.block_size": ours, "hit_step_tokens": {str(r): s for r, s in sorted(steps.items())}},
            f"Set tokenizer.block_size to {step} and prepare again.",
        )
    requests = evidence.requests
    if not other and not steps and requests is not None and requests.mismatched and requests.seen_values >= 2:
        step = requests.seen_step
        # Larger blocks can only take hits away; a step that a request's repeats have in common by chance shows none.
        if step > ours and step % ours == 0 and requests.seen_hits < requests.expected_hits:
            yield Finding(
                Code.SERVER_BLOCK_SIZE_MULTIPLE,
                "error",
                f"all cached_tokens that responses reported are multiples of {step}, tokenizer.block_size is {ours}",
                {"tokenizer.block_size": ours, "hit_step_tokens": step, "different_values": requests.seen_values},
                f"Set tokenizer.block_size to {step} and prepare again.",
            )
        elif step % ours:
            yield Finding(
                Code.WRONG_BLOCK_SIZE,
                "error",
                f"the cached_tokens that responses reported are multiples of {step} but not of tokenizer.block_size, "
                f"{ours}",
                {"tokenizer.block_size": ours, "hit_step_tokens": step, "different_values": requests.seen_values},
                "Ask the server for its block size (cache_config_info), set tokenizer.block_size, prepare again.",
            )


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
    engines = sum(c.source == snapshot.by_rank[rank].source for c in snapshot.by_rank.values())
    block_tokens = config.num_gpu_blocks * config.block_size
    if block_tokens == config.kv_cache_size_tokens:
        # Whether num_gpu_blocks is a sum over the engines depends on the version; here it is not.
        return (block_tokens, block_tokens) if block_tokens else None
    return (config.kv_cache_size_tokens * engines, block_tokens) if block_tokens else None


def _hybrid(evidence: Evidence) -> Iterator[Finding]:
    for rank, config in sorted(evidence.configs.items()):
        ratio = _capacity_ratio(config, evidence, rank)
        shares_blocks = ratio is not None and ratio[0] % ratio[1] != 0
        if not (shares_blocks or config.sliding_window or config.mamba_block_size):
            continue
        shown: dict[str, Any] = {"rank": rank, "hits_short": evidence.hits_short}
        if ratio is not None:
            shown |= {"cache_tokens": ratio[0], "block_tokens": ratio[1]}
        shown |= {
            key: value
            for key, value in (
                ("sliding_window", config.sliding_window),
                ("mamba_block_size", config.mamba_block_size),
            )
            if value
        }
        yield Finding(
            Code.HYBRID_MODEL,
            "warning" if evidence.hits_short else "note",
            "the model is a hybrid (sliding window or Mamba layers): the first request that shares a shorter part of a "
            "warmed prefix hits 0, the second hits in full",
            shown,
            "Set service.hybrid_warmup to true, so that each distinct shared length is warmed."
            if not evidence.facts.hybrid_warmup
            else "Each shared length was warmed; compare request by request.",
        )
        return


def _speculative(evidence: Evidence) -> Iterator[Finding]:
    with_hits, block_size = evidence.planned.requests_with_hits, evidence.planned.block_size
    if any(config.block_size not in (None, block_size) for config in evidence.configs.values()):
        return
    drafts = None if evidence.delta is None else evidence.delta.total("speculative_drafts")
    short_by_one_each = bool(with_hits) and evidence.hits_short == (with_hits or 0) * block_size
    requests = evidence.requests
    only_one_block = requests is not None and set(requests.shortfalls) == {block_size}
    # A sum alone may be a coincidence (a reset between two requests makes any sum): the server drafts, which vLLM shows
    # only then, or its responses lack the block.
    short_by_one_each = short_by_one_each and (bool(drafts) or only_one_block)
    if not (short_by_one_each and (evidence.excess_queries == 0)) and not evidence.facts.dropped_blocks:
        return
    if requests is not None and requests.mismatched and not only_one_block:
        return
    yield Finding(
        Code.SPECULATIVE_DECODING,
        "warning",
        f"every request with hits lacks one block of {block_size} tokens, as with EAGLE or MTP speculative decoding: "
        "it drops the last matched block"
        if short_by_one_each
        else "the probes hit one block less than the cache holds, as with EAGLE or MTP speculative decoding",
        {
            "hits_short": evidence.hits_short,
            "requests_with_hits": with_hits,
            "block_size": block_size,
            "speculative_drafts": drafts,
            "dropped_blocks_of_probes": evidence.facts.dropped_blocks,
        },
        "Turn speculative decoding off for this measurement, or read the theory as one block less for each hit.",
    )


def _rank_routing(evidence: Evidence) -> Iterator[Finding]:
    wrong = [p for p in evidence.facts.probes if p.moved_rank is not None and p.moved_rank != p.dp_rank]
    if wrong:
        yield Finding(
            Code.RANK_HEADER_IGNORED,
            "error",
            f"a probe sent to rank {wrong[0].dp_rank} moved the counter of rank {wrong[0].moved_rank}",
            {"probes": [{"dp_rank": p.dp_rank, "moved_rank": p.moved_rank} for p in wrong]},
            "Use vLLM 0.11.1 or later (X-data-parallel-rank), or one entry point for each rank.",
        )
        return
    delta, planned = evidence.delta, evidence.planned.by_rank
    if delta is None or delta.whole_server or len(planned) < 2 or evidence.excess_queries:
        return
    if planned.keys() != delta.by_rank.keys():
        return
    expected = {rank: share.input_tokens for rank, share in planned.items()}
    counted = {rank: d.queries for rank, d in delta.by_rank.items()}
    if delta.queries_source == "blocks" or expected == counted:
        return
    numbers = {
        "planned_queries": {str(rank): n for rank, n in sorted(expected.items())},
        "counted_queries": {str(rank): n for rank, n in sorted(counted.items())},
    }
    if sorted(expected.values()) == sorted(counted.values()):
        yield Finding(
            Code.ENGINE_MAP_WRONG,
            "error",
            "the ranks counted each other's tokens: the engine labels belong to other ranks",
            numbers,
            "Correct service.engine_label_map, or the order of the metrics URLs.",
        )
    else:
        yield Finding(
            Code.RANK_HEADER_IGNORED,
            "error",
            "all planned tokens were counted, but on other ranks than planned: the server did not follow "
            "X-data-parallel-rank",
            numbers,
            "Use vLLM 0.11.1 or later, or one entry point for each rank; a proxy in between must pass the header on.",
        )


def _tokenizer(evidence: Evidence) -> Iterator[Finding]:
    for fact in evidence.facts.tokenization:
        yield Finding(
            Code.TOKENIZER_DIFFERS,
            "error",
            f"the server encodes the prompt of {fact.group_id} otherwise from token {fact.position} on "
            f"({fact.server_tokens} tokens there, {fact.our_tokens} here)",
            {
                "group_id": fact.group_id,
                "position": fact.position,
                "our_tokens": fact.our_tokens,
                "server_tokens": fact.server_tokens,
                "our_token_id": fact.our_token_id,
                "server_token_id": fact.server_token_id,
            },
            "Use the server's own tokenizer files as tokenizer.path and prepare again.",
        )
        return


def _traffic(evidence: Evidence) -> Iterator[Finding]:
    """What the number of counted prompt tokens says: too many or too few, and in which steps."""
    excess, planned, delta = evidence.excess_queries, evidence.planned, evidence.delta
    requests = evidence.requests
    if delta is None:
        return
    if excess < 0:
        # What went past the cache is not missing; CACHE_BYPASSED tells of it.
        excess = min(0, excess + evidence.bypassed_tokens)
    each = requests.prompt_token_excess if requests is not None else None
    numbers: dict[str, Any] = {
        "planned_queries": planned.input_tokens,
        "counted_queries": delta.queries,
        "difference": excess,
        "planned_requests": planned.requests,
    }
    finished = delta.total("requests")
    if finished is not None:
        numbers["counted_requests"] = finished
    if each is not None and each != (0, 0):
        numbers |= {"smallest_difference_of_a_request": each[0], "largest_difference_of_a_request": each[1]}
        if each[0] == each[1]:
            yield _added_tokens(each[0], numbers)
            # What is left is other traffic.
            excess -= each[0] * planned.requests
        else:
            yield _other_token_counts(numbers)
            return
    if excess == 0:
        return
    same_requests = finished == planned.requests
    step = excess // planned.requests if excess % planned.requests == 0 else 0
    known_exact = each == (0, 0) or (each is not None and each[0] == each[1])
    if not known_exact and step and (same_requests or (finished is None and abs(step) <= _MOST_ADDED_TOKENS)):
        yield _added_tokens(step, numbers)
        return
    if same_requests and not known_exact:
        yield _other_token_counts(numbers)
        return
    if excess < 0:
        yield Finding(
            Code.REQUESTS_MISSING,
            "error",
            f"the server counted {-excess} prompt tokens fewer than planned: requests were not sent, were refused, "
            "failed or bypassed the cache",
            numbers | _failures(evidence),
            "Look at AISBench's failed requests and the server's log; requests with prompt_logprobs are not counted.",
        )
        return
    extra = None if finished is None else finished - planned.requests
    if evidence.facts.aisbench_warmups is not None:
        numbers["aisbench_warmups"] = evidence.facts.aisbench_warmups
    warmups = _as_first_requests(excess, extra, planned.first_input_tokens)
    repetitions = excess // planned.input_tokens if excess % planned.input_tokens == 0 else 0
    # Known to send none, AISBench is not to blame for a number that fits; nor would anyone warm up with all rows.
    if warmups is not None and evidence.facts.aisbench_warmups != 0 and not repetitions:
        yield Finding(
            Code.AISBENCH_WARMUPS,
            "error",
            f"the {excess} tokens too many are exactly those of the first rows sent {warmups} more "
            f"{'time' if warmups == 1 else 'times'}: AISBench's own warm-ups",
            numbers | {"first_input_tokens": list(planned.first_input_tokens[:warmups])},
            'Set aisbench.extra_args to {"--num-warmups": 0}.',
        )
        return
    retried = evidence.facts.retried_requests or (requests.retried if requests is not None else 0)
    if retried:
        yield Finding(
            Code.RETRIES,
            "error",
            f"{retried} {'request was' if retried == 1 else 'requests were'} sent more than once",
            numbers | {"retried_requests": retried} | _failures(evidence),
            "Look for time-outs and connection errors in AISBench's log; set aisbench.model.retry to 1.",
        )
        return
    what = f" ({extra} requests)" if extra is not None and extra > 0 else ""
    remedy = "Let nobody else use the server between the snapshots; look for health checks and other benchmarks."
    if repetitions:
        numbers["whole_repetitions"] = repetitions
        what += f": those of the whole data set, {repetitions} more {'time' if repetitions == 1 else 'times'}"
        remedy = (
            "Look for a second run of this data set between the snapshots, requests with n or best_of above 1 (each "
            "counts its prompt as often), and a proxy that sends requests again."
        )
    yield Finding(
        Code.FOREIGN_TRAFFIC,
        "error",
        f"the server counted {excess} prompt tokens that this run did not send{what}",
        numbers,
        remedy,
    )


def _added_tokens(step: int, numbers: Mapping[str, Any]) -> Finding:
    count = abs(step)
    tokens = f"{count} token" if count == 1 else f"{count} tokens"
    return Finding(
        Code.TOKENS_ADDED if step > 0 else Code.TOKENS_MISSING,
        "error",
        f"the server counts {tokens} {'more' if step > 0 else 'fewer'} in every prompt than the data set: a special "
        "token (BOS) or a template",
        {**numbers, "tokens_of_each_request": step},
        "Use the server's own tokenizer files as tokenizer.path (add_bos_token in tokenizer_config.json) and "
        "/v1/completions as service.inference_url, and prepare again.",
    )


def _other_token_counts(numbers: Mapping[str, Any]) -> Finding:
    return Finding(
        Code.TOKENIZER_DIFFERS,
        "error",
        "the server counts other numbers of tokens in the same prompts: it uses another tokenizer",
        dict(numbers),
        "Use the server's own tokenizer files as tokenizer.path and prepare again.",
    )


def _as_first_requests(excess: int, extra: int | None, lengths: tuple[int, ...]) -> int | None:
    """How many warm-ups explain the excess: the first rows once more, or the first row several times."""
    total = 0
    for count, length in enumerate(lengths, 1):
        total += length
        if (extra is None or extra == count) and excess in (total, count * lengths[0]):
            return count
        if total > excess and count * lengths[0] > excess:
            break
    return None


def _failures(evidence: Evidence) -> dict[str, int]:
    failed = evidence.facts.failed_requests
    if failed is None and evidence.requests is not None:
        failed = evidence.requests.failed
    return {} if failed is None else {"failed_requests": failed}


def _bypassed(evidence: Evidence) -> Iterator[Finding]:
    delta, tokens = evidence.delta, evidence.bypassed_tokens
    if delta is None or not tokens:
        return
    yield Finding(
        Code.CACHE_BYPASSED,
        "error" if evidence.hits_short > 0 else "warning",
        f"{tokens} prompt tokens were processed without asking the prefix cache, as requests with prompt_logprobs are",
        {"prompt_tokens": delta.queries + tokens, "counted_queries": delta.queries},
        "Send no prompt_logprobs, echo with logprobs or pooling requests while measuring.",
    )


def _preemptions(evidence: Evidence) -> Iterator[Finding]:
    count = None if evidence.delta is None else evidence.delta.total("preemptions")
    if count:
        yield Finding(
            Code.PREEMPTIONS,
            "warning",
            f"the server preempted running requests {count} times because its KV cache was full, and lost cached "
            "blocks",
            {"preemptions": count, "hits_short": evidence.hits_short},
            "Lower aisbench.model.batch_size or the output lengths, or give the server more KV memory.",
        )


def _cache_too_small(evidence: Evidence) -> Iterator[Finding]:
    planned, prediction = evidence.planned, evidence.facts.cache_prediction
    if prediction is not None and prediction.hit_tokens < planned.hit_tokens:
        rate = prediction.hit_tokens / planned.input_tokens
        yield Finding(
            Code.CACHE_TOO_SMALL,
            "error",
            f"the server's cache evicts blocks that the plan counts on: with {prediction.capacity_tokens} tokens for "
            f"each engine a hit rate of {rate:.4f} is reachable, not {planned.hit_rate:.4f}",
            {
                "capacity_tokens": prediction.capacity_tokens,
                "predicted_hits": prediction.hit_tokens,
                "planned_hits": planned.hit_tokens,
                "reachable_hit_rate": rate,
                "evicted_blocks": prediction.evicted_blocks,
                "counted_hits": evidence.delta.hits if evidence.delta else None,
            },
            "Give the server more KV memory, or use fewer groups or shorter prefixes and prepare again.",
        )
        return
    needed = sum(planned.canonical_prefix_tokens.values())
    for rank, config in sorted(evidence.configs.items()):
        capacity = config.kv_cache_size_tokens
        if planned.mode == "warmup" and capacity is not None and capacity < needed:
            yield Finding(
                Code.CACHE_TOO_SMALL,
                "error",
                f"the canonical prefixes of {len(planned.canonical_prefix_tokens)} groups need {needed} tokens, an "
                f"engine's cache holds {capacity}",
                {"rank": rank, "capacity_tokens": capacity, "canonical_prefix_tokens": needed},
                "Give the server more KV memory, or use fewer groups or shorter prefixes and prepare again.",
            )
            return


def _reset(evidence: Evidence) -> Iterator[Finding]:
    reset = evidence.facts.reset
    if reset is None or reset.attempts == 0:
        return
    hits_after = dict(reset.hits_after or {})
    full = {str(rank): hits for rank, hits in sorted(hits_after.items()) if hits > 0}
    numbers: dict[str, Any] = {"status": reset.status, "attempts": reset.attempts, "hits_after": full}
    again = "Let the server be idle and reset again; vLLM needs VLLM_SERVER_DEV_MODE=1 for /reset_prefix_cache."
    if full and len(full) < len(hits_after):
        yield Finding(
            Code.RESET_PARTIAL,
            "error",
            f"after the reset the {'rank' if len(full) == 1 else 'ranks'} {', '.join(full)} still hit what was cached "
            "before; the others do not",
            numbers,
            again,
        )
    elif not reset.accepted:
        yield Finding(
            Code.RESET_REFUSED,
            "note" if hits_after and not full else "error",
            f"the server refused to reset its cache ({reset.attempts} {'try' if reset.attempts == 1 else 'tries'})",
            numbers,
            again,
        )
    elif full:
        yield Finding(
            Code.RESET_IGNORED,
            "error",
            "the server answered that the cache was reset, and still hits what was cached before",
            numbers,
            again + " An external KV tier needs reset_external=true.",
        )


def _external_tier(evidence: Evidence) -> Iterator[Finding]:
    hits = None if evidence.delta is None else evidence.delta.total("external_hits")
    if hits:
        assert evidence.delta is not None
        yield Finding(
            Code.EXTERNAL_KV_TIER,
            "warning",
            f"a tier outside of the device's cache served {hits} prompt tokens; they are no local hits",
            {"external_hits": hits, "external_queries": evidence.delta.total("external_queries")},
            "Turn the KV connector or the host cache off for this measurement, or empty it too (reset_external=true).",
        )


def _block_counters(evidence: Evidence) -> Iterator[Finding]:
    delta = evidence.delta
    if delta is not None and delta.unit == "blocks":
        yield Finding(
            Code.BLOCK_COUNTERS,
            "warning",
            f"this server counts blocks of {delta.block_size} tokens (vLLM 0.7.3 to 0.8.5); they were multiplied"
            + (
                "; each prompt's incomplete last block is not counted, so the rate is a little too high"
                if delta.queries_source == "blocks"
                else ", and the queries are its prompt tokens"
            ),
            {"block_size": delta.block_size, "counted_queries": delta.queries, "counted_hits": delta.hits},
            "Use vLLM 0.9.2 or later for counts to the token.",
        )


def _no_hit_series(evidence: Evidence) -> Iterator[Finding]:
    after = evidence.after
    if after is None or evidence.delta is None:
        return
    missing = sorted(rank for rank, counters in after.by_rank.items() if not counters.hits_shown)
    if missing and evidence.planned.hit_tokens:
        yield Finding(
            Code.NO_HIT_SERIES,
            "warning",
            f"{after.hits_metric} is not shown: either nothing was hit, or this version does not count hits",
            {"planned_hits": evidence.planned.hit_tokens, "counted_hits": evidence.delta.hits},
            "Send one prompt twice and look again; SGLang shows the series only once something was hit.",
        )


def _busy(evidence: Evidence) -> Iterator[Finding]:
    for name, snapshot in (("baseline", evidence.baseline), ("after", evidence.after)):
        busy = _ranks_where(snapshot, lambda c: bool((c.running or 0) + (c.waiting or 0)))
        if busy and snapshot is not None:
            yield Finding(
                Code.SERVER_BUSY,
                "warning",
                f"requests were under way when the {name} snapshot was taken",
                {
                    "snapshot": name,
                    "running": {str(r): snapshot.by_rank[r].running for r in busy},
                    "waiting": {str(r): snapshot.by_rank[r].waiting for r in busy},
                },
                "Take both snapshots while no request runs.",
            )


def _asleep(evidence: Evidence) -> Iterator[Finding]:
    for name, snapshot in (("baseline", evidence.baseline), ("after", evidence.after)):
        asleep = _ranks_where(snapshot, lambda c: c.asleep is True)
        if asleep:
            yield Finding(
                Code.SERVER_ASLEEP,
                "warning",
                f"the server was asleep when the {name} snapshot was taken; falling asleep empties the cache",
                {"snapshot": name, "ranks": asleep},
                "Wake the server before the run, and do not let it sleep until the end.",
            )


def _ranks_where(snapshot: MetricsSnapshot | None, holds: Callable[[EngineCounters], bool]) -> list[int]:
    return [] if snapshot is None else [rank for rank, counters in snapshot.by_rank.items() if holds(counters)]


def _disagreement(evidence: Evidence) -> Iterator[Finding]:
    """vLLM counts cached prompt tokens a second time; the two must agree."""
    delta = evidence.delta
    if delta is None or delta.unit != "tokens" or delta.total("external_hits") or delta.total("preemptions"):
        return
    cached = delta.total("prompt_tokens_cached")
    if cached is not None and cached != delta.hits:
        yield Finding(
            Code.COUNTERS_DISAGREE,
            "warning",
            f"the server counted {delta.hits} hits, and {cached} cached prompt tokens",
            {"counted_hits": delta.hits, "prompt_tokens_cached": cached},
            "Take the second snapshot only when no request runs any more.",
        )
    requests = evidence.requests
    if requests is not None and requests.complete and requests.seen_hits != delta.hits and not evidence.excess_queries:
        yield Finding(
            Code.COUNTERS_DISAGREE,
            "warning",
            f"the server counted {delta.hits} hits, and reported {requests.seen_hits} in its responses",
            {"counted_hits": delta.hits, "reported_hits": requests.seen_hits},
            "Take the second snapshot only when no request runs any more.",
        )


def _unexplained(evidence: Evidence) -> Iterator[Finding]:
    """Theory and counter differ and no rule says why."""
    delta, short = evidence.delta, evidence.hits_short
    if delta is None or short == 0:
        return
    numbers: dict[str, Any] = {"planned_hits": evidence.planned.hit_tokens, "counted_hits": delta.hits}
    if evidence.requests is not None and evidence.requests.first_mismatch is not None:
        numbers["first_mismatch"] = dict(evidence.requests.first_mismatch)
    if short < 0:
        yield Finding(
            Code.CACHE_NOT_EMPTY,
            "warning",
            f"{-short} tokens more were hit than theory says: the cache held blocks of an earlier run or of others",
            {**numbers, "assumed_empty": evidence.facts.assumed_empty},
            "Reset the prefix cache before the run (service.reset_url); prepare again with another random_seed.",
        )
    else:
        yield Finding(
            Code.HITS_MISSING,
            "warning",
            f"{short} tokens fewer were hit than theory says, and nothing else shows why",
            numbers,
            "Compare request by request (start vLLM with --enable-prompt-tokens-details) and look for the first one. "
            "Usual reasons: a reset in between, requests with a cache_salt, another order than planned.",
        )


_RULES: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    _unusable_snapshots,
    _caching_off,
    _block_size,
    _tokenizer,
    _traffic,
    _rank_routing,
    _reset,
    _cache_too_small,
    _hybrid,
    _speculative,
    _preemptions,
    _external_tier,
    _block_counters,
    _no_hit_series,
    _bypassed,
    _busy,
    _asleep,
    _disagreement,
)
_NOT_EXPLAINING = frozenset({Code.COUNTERS_DISAGREE, Code.BLOCK_COUNTERS})
"""Findings that may stand beside a shortfall of hits without being its reason."""

_PROBLEM_FINDINGS: Mapping[Code, tuple[Code, str]] = {
    Code.SNAPSHOT_NO_ENGINE_METRICS: (
        Code.NO_LOG_STATS,
        "Start vLLM without --disable-log-stats (SGLang with --enable-metrics), or correct service.metrics_url.",
    ),
    Code.SNAPSHOT_GAUGE_ONLY: (
        Code.GAUGE_ONLY,
        "A momentary gauge cannot say what one run hit: use vLLM's V1 engine (0.7.3 or later) or SGLang's counters.",
    ),
    Code.SNAPSHOT_MISSING_RANKS: (
        Code.RANKS_MISSING,
        "Both snapshots must show every rank: with one port for each rank, give one text for each.",
    ),
    Code.SNAPSHOT_DIFFERENT_ENGINES: (
        Code.RANKS_MISSING,
        "Both snapshots must show the same engines: give the texts of several ports in the same order both times.",
    ),
    Code.SNAPSHOT_RESTART: (
        Code.SERVER_RESTARTED,
        "Find out why the server restarted (memory, a crash) and run again; counters start anew with the process.",
    ),
    Code.SNAPSHOT_COUNTER_FELL: (
        Code.COUNTERS_FELL,
        "Counters only fall when the server restarts; or the two files are swapped.",
    ),
    Code.SNAPSHOT_HITS_ABOVE_QUERIES: (
        Code.HITS_ABOVE_QUERIES,
        "Take both snapshots while no request runs, each from one answer of the server.",
    ),
    Code.SNAPSHOT_BLOCKS: (
        Code.BLOCK_COUNTERS,
        "Keep vllm:cache_config_info in the saved text, or use vLLM 0.9.2 or later, which counts tokens.",
    ),
    Code.SNAPSHOT_UNIT: (
        Code.BLOCK_COUNTERS,
        "Keep the # HELP lines in the saved text, or use vLLM 0.9.2 or later, which counts tokens.",
    ),
    Code.SNAPSHOT_NO_DATA: (
        Code.NO_TRAFFIC,
        "Take the first snapshot before the requests and the second after them, from the server that got them.",
    ),
}
