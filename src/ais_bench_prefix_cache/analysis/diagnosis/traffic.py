"""What the number of counted prompt tokens shows: too many or too few, in which steps, and on which ranks.

Sums that fit prove nothing. A prompt that was sent again hits what its first sending left (so there are more hits than
planned); another client's prompts do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ais_bench_prefix_cache.analysis.diagnosis.evidence import Evidence, Finding, Rule
from ais_bench_prefix_cache.foundation.codes import Code

_MOST_ADDED_TOKENS = 16
"""A BOS, an EOS, the tokens of a short template: more than this a request is other traffic."""
_MOST_MISSING_TOKENS = 2
"""What our side alone may add to a prompt: a BOS and an EOS."""
_BUSY_SENDER = 0.85
"""Above this share of a core a sender's event loop is late for what comes and goes."""
_SAME_TOKENIZER = "Use the server's own tokenizer files as tokenizer.path and prepare again."


@dataclass(frozen=True)
class _Excess:
    """Counted prompt tokens that the plan does not have (negative: that are missing), and what is known of them.

    ``of_each_request`` is how many more tokens than planned the server counts in every prompt, by its responses; None
    where they do not say. ``tokens`` are what is left beside these. ``extra_requests`` is by the server's count.
    """

    evidence: Evidence
    tokens: int
    of_each_request: int | None
    extra_requests: int | None
    numbers: Mapping[str, Any]

    @property
    def step(self) -> int:
        """``tokens`` for each planned request, where it is a whole number; else 0."""
        requests = self.evidence.planned.requests
        return self.tokens // requests if self.tokens % requests == 0 else 0

    @property
    def failed(self) -> int | None:
        """The number of failed requests, where it is known."""
        requests = self.evidence.requests
        known = self.evidence.facts.failed_requests
        return requests.failed if known is None and requests is not None else known

    @property
    def failures(self) -> dict[str, int]:
        """For the evidence."""
        return {} if self.failed is None else {"failed_requests": self.failed}


def _numbers(evidence: Evidence) -> dict[str, Any]:
    assert evidence.delta is not None
    numbers: dict[str, Any] = {
        "planned_queries": evidence.planned.tokens.total,
        "counted_queries": evidence.delta.queries,
        "difference": _difference(evidence),
        "planned_requests": evidence.planned.requests,
    }
    finished = evidence.total(lambda counted: counted.requests)
    if finished is not None:
        numbers["counted_requests"] = finished
    each = _of_responses(evidence)
    if each is not None and each != (0, 0):
        numbers |= {"smallest_difference_of_a_request": each[0], "largest_difference_of_a_request": each[1]}
    return numbers


def _difference(evidence: Evidence) -> int:
    """What went past the cache is not missing; CACHE_BYPASSED tells of it."""
    excess = evidence.excess_queries
    return min(0, excess + evidence.bypassed_tokens) if excess < 0 else excess


def _of_responses(evidence: Evidence) -> tuple[int, int] | None:
    """The smallest and largest difference between the server's and our tokens of a request, by its responses."""
    return None if evidence.requests is None else evidence.requests.prompt_token_excess


def _excess(evidence: Evidence) -> _Excess | None:
    """None where nothing is left to explain, or where the responses themselves explain it."""
    each = _of_responses(evidence)
    if evidence.delta is None or (each is not None and each[0] != each[1]):
        return None
    known = None if each is None else each[0]
    tokens = _difference(evidence) - (known or 0) * evidence.planned.requests
    if not tokens:
        return None
    finished = evidence.total(lambda counted: counted.requests)
    extra = None if finished is None else finished - evidence.planned.requests
    return _Excess(evidence, tokens, known, extra, _numbers(evidence))


def _tokens_added_by_responses(evidence: Evidence) -> Finding | None:
    each, requests = _of_responses(evidence), evidence.requests
    if evidence.delta is None or requests is None or each is None or each[0] != each[1] or not each[0]:
        return None
    told = requests.prompt_tokens_told or evidence.planned.requests
    prompts = "every prompt" if told >= evidence.planned.requests else f"each of the {told} prompts that it told of"
    return _added_tokens(
        each[0],
        f"the server counts {_tokens(each[0])} in {prompts} than the data set, as with {_ADDED_BY}",
        _numbers(evidence),
    )


def _other_counts_by_responses(evidence: Evidence) -> Finding | None:
    each = _of_responses(evidence)
    if evidence.delta is None or each is None or each[0] == each[1]:
        return None
    return Finding(
        Code.TOKENIZER_DIFFERS,
        "error",
        "the server counts other numbers of tokens in the prompts than the data set, and not by the same number in "
        "each, which is consistent with another tokenizer, and with prompts that were cut or changed on the way",
        _numbers(evidence),
        _SAME_TOKENIZER,
    )


def _unplanned_tokens(evidence: Evidence) -> Finding | None:
    """The first explanation that fits."""
    excess = _excess(evidence)
    if excess is None:
        return None
    found = (explain(excess) for explain in _EXPLANATIONS)
    return next((finding for finding in found if finding is not None), None)


def _tokens_added_by_sum(excess: _Excess) -> Finding | None:
    """The same few tokens for each request; that the same fell on each of them, a sum does not show."""
    step = excess.step
    if excess.of_each_request is not None or not step or excess.extra_requests or excess.failed:
        return None
    whole_requests = excess.extra_requests == 0
    if step > _MOST_ADDED_TOKENS and not whole_requests:
        return None
    # Less than a request is missing from no request that did not come.
    shortest = min(excess.evidence.planned.first_input_tokens, default=0)
    if step < 0 and not (step >= -_MOST_MISSING_TOKENS and (whole_requests or -excess.tokens < shortest)):
        return None
    rival = "another tokenizer or other prompts than planned"
    if step > 0 and not whole_requests:
        rival = "other traffic of that size"
    return _added_tokens(
        step,
        f"the sum is {_tokens(step)} for each request, which is consistent with {_ADDED_BY} in every prompt, and with "
        f"{rival}",
        excess.numbers,
    )


def _other_counts_by_sum(excess: _Excess) -> Finding | None:
    if excess.of_each_request is not None or excess.extra_requests != 0 or (excess.failed and excess.tokens < 0):
        return None
    return Finding(
        Code.TOKENIZER_DIFFERS,
        "error",
        "the server finished as many requests as were planned and counted other numbers of tokens in them, which is "
        "consistent with another tokenizer, and with other prompts than planned",
        dict(excess.numbers),
        _SAME_TOKENIZER,
    )


def _requests_missing(excess: _Excess) -> Finding | None:
    if excess.tokens > 0:
        return None
    missing, failed = -(excess.extra_requests or 0), excess.failed or 0
    message = f"the server counted {-excess.tokens} prompt tokens fewer than planned"
    if failed:
        message += f", and {_requests(failed)} failed"
    elif missing > 0:
        message += f", and {_requests(missing)} fewer: they were not sent, were refused or failed"
    else:
        message += (
            ", which is consistent with requests that were not sent, were refused, failed or bypassed the cache, with "
            "special tokens that the server does not add, with another tokenizer, and with a snapshot taken too early"
        )
    return Finding(
        Code.REQUESTS_MISSING,
        "error",
        message,
        {**excess.numbers, **excess.failures},
        "Look at AISBench's failed requests and the server's log; requests with prompt_logprobs are not counted.",
    )


def _aisbench_warmups(excess: _Excess) -> Finding | None:
    """AISBench's own warm-ups are the first rows once more, or the first row several times: repeats, which hit."""
    planned, told = excess.evidence.planned, excess.evidence.facts.aisbench_warmups
    count = _as_first_requests(excess.tokens, excess.extra_requests, planned.first_input_tokens)
    # Known to send none, AISBench is not to blame for a number that fits; nor would anyone warm up with all rows.
    if count is None or told == 0 or excess.tokens % planned.tokens.total == 0:
        return None
    can_hit = max(planned.first_input_tokens[:count]) > planned.block_size
    if can_hit and excess.evidence.hits_short >= 0:
        return None
    numbers = dict(excess.numbers)
    if told is not None:
        numbers["aisbench_warmups"] = told
    times = f"{count} more {'time' if count == 1 else 'times'}"
    return Finding(
        Code.AISBENCH_WARMUPS,
        "error",
        f"the {excess.tokens} tokens too many are those of the first rows sent {times}"
        + (
            ": AISBench's own warm-ups"
            if told == count
            else ", which is consistent with AISBench's own warm-ups, and with retries of these rows"
        ),
        {**numbers, "first_input_tokens": list(planned.first_input_tokens[:count])},
        'Set aisbench.extra_args to {"--num-warmups": 0}.',
    )


def _as_first_requests(tokens: int, extra: int | None, lengths: tuple[int, ...]) -> int | None:
    """How many warm-ups explain the tokens: the first rows once more, or the first row several times."""
    total = 0
    for count, length in enumerate(lengths, 1):
        total += length
        if (extra is None or extra == count) and tokens in (total, count * lengths[0]):
            return count
        if total > tokens and count * lengths[0] > tokens:
            break
    return None


def _retries(excess: _Excess) -> Finding | None:
    requests = excess.evidence.requests
    retried = excess.evidence.facts.retried_requests or (requests.retried if requests is not None else 0)
    # What was sent again explains its own tokens, and no more.
    known = requests.repeated_tokens if requests is not None else 0
    if not retried or (known < excess.tokens and known):
        return None
    return Finding(
        Code.RETRIES,
        "error",
        f"{retried} {'request was' if retried == 1 else 'requests were'} sent more than once, and the server counted "
        f"{excess.tokens} prompt tokens more than this run planned",
        {**excess.numbers, "retried_requests": retried, **excess.failures},
        "Look for time-outs and connection errors in AISBench's log; set aisbench.model.retry to 0.",
    )


def _foreign_traffic(excess: _Excess) -> Finding:
    extra, whole = excess.extra_requests, excess.evidence.planned.tokens.total
    numbers, requests = dict(excess.numbers), excess.evidence.requests
    what = f" ({_requests(extra)})" if extra is not None and extra > 0 else ""
    if requests is not None and requests.repeated_tokens:
        numbers |= {"retried_requests": requests.retried, "repeated_tokens": requests.repeated_tokens}
        what += f"; requests that were sent again explain {requests.repeated_tokens} of them at most"
    remedy = "Let nobody else use the server between the snapshots; look for health checks and other benchmarks."
    if excess.tokens % whole == 0:
        repetitions = numbers["whole_repetitions"] = excess.tokens // whole
        what += f": as many as the whole data set has, {repetitions} {'time' if repetitions == 1 else 'times'}"
        remedy = (
            "Look for a second run of this data set between the snapshots, requests with n or best_of above 1 (each "
            "counts its prompt as often), and a proxy that sends requests again."
        )
    return Finding(
        Code.FOREIGN_TRAFFIC,
        "error",
        f"the server counted {excess.tokens} prompt tokens more than this run planned{what}",
        numbers,
        remedy,
    )


_EXPLANATIONS: tuple[Callable[[_Excess], Finding | None], ...] = (
    _tokens_added_by_sum,
    _other_counts_by_sum,
    _requests_missing,
    _aisbench_warmups,
    _retries,
    _foreign_traffic,
)


_ADDED_BY = "a special token (BOS) or a template"


def _added_tokens(step: int, message: str, numbers: Mapping[str, Any]) -> Finding:
    return Finding(
        Code.TOKENS_ADDED if step > 0 else Code.TOKENS_MISSING,
        "error",
        message,
        {**numbers, "tokens_of_each_request": step},
        "Use the server's own tokenizer files as tokenizer.path (add_bos_token in tokenizer_config.json) and "
        "/v1/completions as service.inference_url, and prepare again.",
    )


def _tokens(difference: int) -> str:
    count = abs(difference)
    return f"{count} {'token' if count == 1 else 'tokens'} {'more' if difference > 0 else 'fewer'}"


def _requests(count: int) -> str:
    return f"{count} {'request' if count == 1 else 'requests'}"


def _bypassed(evidence: Evidence) -> Finding | None:
    delta, tokens = evidence.delta, evidence.bypassed_tokens
    if delta is None or not tokens:
        return None
    return Finding(
        Code.CACHE_BYPASSED,
        "error" if evidence.hits_short > 0 else "warning",
        f"{tokens} prompt tokens were processed and not counted as queries of the prefix cache, as those of requests "
        "with prompt_logprobs are"
        + (", and with requests that were under way at the first snapshot" if evidence.busy_at_first else ""),
        {"prompt_tokens": delta.queries + tokens, "counted_queries": delta.queries},
        "Send no prompt_logprobs, echo with logprobs or pooling requests while measuring.",
    )


def _ranks(evidence: Evidence) -> Finding | None:
    """All planned tokens were counted, but not where they were planned; sums over the ranks hide it."""
    delta, planned = evidence.delta, evidence.planned.by_rank
    if delta is None or delta.whole_server or len(planned) < 2 or evidence.excess_queries:
        return None
    if planned.keys() != delta.by_rank.keys() or delta.queries_source == "blocks":
        return None
    expected = {rank: (share.total, share.shared) for rank, share in planned.items()}
    counted = {rank: (rise.queries, rise.hits) for rank, rise in delta.by_rank.items()}
    moved = any(expected[rank][0] != counted[rank][0] for rank in expected)
    if not moved and (evidence.hits_short or expected == counted):
        return None
    numbers = {
        name: {str(rank): pair[place] for rank, pair in sorted(pairs.items())}
        for place, kind in enumerate(("queries", "hits"))
        for name, pairs in ((f"planned_{kind}", expected), (f"counted_{kind}", counted))
    }
    if sorted(expected.values()) == sorted(counted.values()):
        return Finding(
            Code.ENGINE_MAP_WRONG,
            "error",
            "the ranks counted each other's queries and hits, which is consistent with engine labels that belong to "
            "other ranks, and with a router that exchanges whole ranks",
            numbers,
            "Correct service.engine_label_map, or the order of the metrics URLs.",
        )
    what = "all planned tokens were counted, but on other ranks than planned"
    if not moved:
        what = "each rank counted as many tokens as planned, but other hits, whose sum is right"
    return Finding(
        Code.RANK_HEADER_IGNORED,
        "error",
        f"{what}, which is consistent with a server, or a router before it, that does not follow "
        "X-data-parallel-rank, and with requests that are missing on one rank beside foreign ones on another",
        numbers,
        "Use vLLM 0.11.1 or later, or one entry point for each rank; a proxy in between must pass the header on, and "
        "no cache-aware router may choose the rank.",
    )


def _ranks_by_responses(evidence: Evidence) -> Finding | None:
    """The first request of a group on a rank finds nothing there: what it hit, another rank had."""
    requests = evidence.requests
    if requests is None or not requests.lane_starts_hit or len(evidence.planned.by_rank) < 2:
        return None
    if not evidence.proven_empty:
        return None
    # Prompts that were sent twice, by whomever, hit as well; their tokens are then too many.
    if evidence.excess_queries or _ranks(evidence) is not None:
        return None
    return Finding(
        Code.RANK_HEADER_IGNORED,
        "error",
        f"{_requests(requests.lane_starts_hit)} hit although they were the first of their group on their rank, and the "
        "caches had been emptied, which is consistent with requests that other ranks than planned answered, as behind "
        "a cache-aware router, and with another order than planned",
        {"lane_starts_hit": requests.lane_starts_hit, "hits_beyond_plan": -evidence.hits_short},
        "Plan prefix_cache.mode warmup, in which every rank has every prefix; or send to the ranks themselves "
        "(service.inference_url without a router).",
    )


def _free_routing(evidence: Evidence) -> Finding | None:
    """What the choice of ranks was worth, where it was not the plan's."""
    delta, planned = evidence.delta, evidence.planned
    least, most = planned.least_hits, planned.most_hits
    if delta is None or least is None or most is None or not least <= delta.hits <= most:
        return None
    lost = planned.tokens.shared - delta.hits
    place = (delta.hits - least) / (most - least) if most > least else 1.0
    beside = f"{lost} fewer than" if lost > 0 else f"{-lost} more than" if lost else "as many as"
    return Finding(
        Code.FREE_ROUTING,
        "note",
        f"{delta.hits} tokens were hit by the server's or router's own choice of ranks, {beside} by conversations that "
        f"stay on their rank; the worst choice hits {least}, the best {most}, and this one stands at "
        f"{100 * place:.1f}% between them",
        {
            "counted_hits": delta.hits,
            "sticky_hits": planned.tokens.shared,
            "lost_to_sticky": lost,
            "least_hits": least,
            "most_hits": most,
            "place_in_range": place,
        },
        "Keep conversations on their rank (conversation.routing sticky), or use a router that knows what each rank "
        "has cached."
        if lost > 0
        else "Nothing.",
    )


def _sender_is_the_limit(evidence: Evidence) -> Finding | None:
    share = evidence.facts.busiest_sender
    if share is None or share < _BUSY_SENDER:
        return None
    return Finding(
        Code.LOAD_GENERATOR_LIMIT,
        "warning",
        f"a process that sends used {100 * share:.0f}% of a core while it sent: it may have been the limit of the "
        "load, not the server",
        {"busiest_sender": share, "senders": evidence.facts.senders},
        "Raise aisbench.load.senders on a machine with free cores, or aisbench.load.generators on several machines.",
    )


def _lanes_are_not_proven(evidence: Evidence) -> Finding | None:
    """Requests that overtake each other in a divided lane can add up to the right sums."""
    senders, requests = evidence.facts.senders, evidence.requests
    if senders is None or senders < 2 or (requests is not None and requests.complete):
        return None
    return Finding(
        Code.REQUESTS_NOT_COMPARED,
        "warning",
        f"{senders} processes shared the requests, and the server did not say of each how many tokens it hit: sums "
        "that are right do not prove that each request hit what was planned",
        {"senders": senders},
        "Start vLLM with --enable-prompt-tokens-details, SGLang with --enable-cache-report.",
    )


RULES: tuple[Rule, ...] = (
    _tokens_added_by_responses,
    _other_counts_by_responses,
    _unplanned_tokens,
    _bypassed,
    _ranks,
    _ranks_by_responses,
    _free_routing,
    _sender_is_the_limit,
    _lanes_are_not_proven,
)

CODES = frozenset(
    {
        Code.TOKENS_ADDED,
        Code.TOKENS_MISSING,
        Code.TOKENIZER_DIFFERS,
        Code.REQUESTS_MISSING,
        Code.AISBENCH_WARMUPS,
        Code.RETRIES,
        Code.FOREIGN_TRAFFIC,
        Code.CACHE_BYPASSED,
    }
)
"""The findings that say why the number of counted prompt tokens is not the planned one."""
