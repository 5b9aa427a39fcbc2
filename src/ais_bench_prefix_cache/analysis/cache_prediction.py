"""What a cache of a known size hits: the data set's plan replayed through ``kvcache``'s caches.

Requests are replayed one after another, so with many in flight at once the real cache evicts a little earlier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
from ais_bench_prefix_cache.analysis.run_facts import CachePrediction
from ais_bench_prefix_cache.datasets.conversations.plan_replay import (
    TurnTokens,
    replay_conversations,
    replayed_turns,
    turn_by_turn,
)
from ais_bench_prefix_cache.datasets.text.plan_replay import PlannedRequest, send_planned
from ais_bench_prefix_cache.foundation.names import NO_RANK
from ais_bench_prefix_cache.kvcache.radix_replay import replay_of

MOST_BLOCKS = 5_000_000
"""A data set of more blocks is not replayed: it would take longer than it tells."""


def predict_hits(
    columns: RequestColumns,
    *,
    block_size: int,
    capacity_tokens: int,
    dp_size: int,
    engine: str = "vllm",
    warmup: Sequence[PlannedRequest] = (),
) -> CachePrediction | None:
    """The hits of the formal requests on caches of ``capacity_tokens`` for each rank, by the rules of ``engine``.

    ``block_size`` is the server's (SGLang: its page); vLLM never uses one of the blocks. ``warmup`` is sent before
    the formal requests.

    None where nothing can be said: the ranks of requests are not planned (warm-up mode on several ranks), the columns
    lack lengths, a request does not fit, the data set is too large to replay; or where everything fits, so that nothing
    is evicted.
    """
    usable = capacity_tokens // block_size - (engine != "sglang")
    if len(columns.shared_prefix_tokens) != len(columns) or (dp_size > 1 and NO_RANK in columns.dp_ranks):
        return None
    requests = [*warmup, *_requests(columns)]
    blocks = [0] * dp_size
    for request in requests:
        size = -(-request.tokens // block_size)
        if size > usable:
            return None
        blocks[request.rank] += size
    if max(blocks) <= usable or sum(blocks) > MOST_BLOCKS:
        return None

    replay = replay_of(engine)(block_size=block_size, num_blocks=usable, ranks=dp_size)
    for request in requests:
        send_planned(replay, request)
    return CachePrediction(capacity_tokens, sum(totals.hits for totals in replay.totals), sum(replay.evictions))


def predict_conversation_hits(
    columns: RequestColumns,
    *,
    scripted: bool,
    system_prompt_tokens: Mapping[str, int],
    at_once: int,
    block_size: int,
    capacity_tokens: int,
    dp_size: int,
    order: Sequence[int] = (),
) -> CachePrediction | None:
    """As :func:`predict_hits` by vLLM's rules, of turns of conversations.

    ``system_prompt_tokens`` are those of each group. ``order`` is the one in which all turns were sent; where nobody
    knows, that of turns that take equally long, ``at_once`` of them under way.
    """
    usable = capacity_tokens // block_size - 1
    if dp_size > 1 and NO_RANK in columns.dp_ranks:
        return None
    groups, ranks = columns.group_ids, (max(0, rank) for rank in columns.dp_ranks)
    system = (system_prompt_tokens[group] for group in groups)
    tokens = map(TurnTokens, groups, ranks, system, columns.input_tokens, columns.max_tokens)
    turns = replayed_turns(zip(columns.links, tokens, strict=True))
    if any(-(-(turn.tokens.prompt_tokens + turn.tokens.answer_tokens - 1) // block_size) > usable for turn in turns):
        return None
    replay = replay_conversations(
        turns,
        order or turn_by_turn(turns, at_once),
        scripted=scripted,
        block_size=block_size,
        ranks=dp_size,
        num_blocks=usable,
    )
    if replay is None or not sum(replay.evictions):
        return None
    return CachePrediction(capacity_tokens, sum(totals.hits for totals in replay.totals), sum(replay.evictions))


def _requests(columns: RequestColumns) -> Iterator[PlannedRequest]:
    for index in range(len(columns)):
        yield PlannedRequest(
            columns.group_ids[index],
            max(0, columns.dp_ranks[index]),
            columns.input_tokens[index],
            columns.shared_prefix_tokens[index],
            columns.max_tokens[index],
        )
