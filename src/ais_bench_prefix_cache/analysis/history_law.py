"""The law of hits held against the numbers of tokens that a chat server itself tells.

Nobody knows beforehand how many tokens a template adds, nor how an answer is encoded when it comes back as text. But
what a server told of a turn says what the next one could hit: with N its prompt tokens, K those of the turn before
(and of its answer but the last, where that was the server's own) and B the block, ``floor(min(K, N - 1) / B) * B``.
What is hit less was lost by the way from tokens to text and back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
from ais_bench_prefix_cache.analysis.run_facts import HistoryFact
from ais_bench_prefix_cache.analysis.seen_request import SeenRequest


def law_of_answers(
    columns: RequestColumns, seen: Iterable[SeenRequest], *, block_size: int, scripted: bool
) -> tuple[RequestColumns, HistoryFact]:
    """Turns of conversations with the tokens that the server told and the hits that the law gives them; and the loss.

    First turns are held to their system prompt alone: what else their templates share is hit besides. A turn of which
    the server told nothing stays as planned.
    """
    told = {row.sequence_index: row for row in seen if row.success and row.prompt_tokens is not None}
    inputs, hits = list(columns.input_tokens), list(columns.hit_tokens)
    by_rank: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    turns = lost_turns = lost_tokens = 0
    first: dict[str, int] | None = None
    for index, links in enumerate(columns.links):
        row = told.get(index)
        if row is not None:
            inputs[index] = row.prompt_tokens or 0
            whole = (inputs[index] - 1) // block_size * block_size
            seen_hits = row.cached_tokens
            known = _known(columns, told, index, scripted=scripted)
            if known is None:
                hits[index] = min(whole, max(hits[index], seen_hits or 0))
            else:
                hits[index] = min(whole, known // block_size * block_size)
                turns += seen_hits is not None
                if seen_hits is not None and seen_hits < hits[index]:
                    lost_turns += 1
                    lost_tokens += hits[index] - seen_hits
                    first = first or {
                        "sequence_index": index,
                        "turn": columns.lane_sequences[index] + 1,
                        "input_tokens": inputs[index],
                        "history_tokens": known,
                        "prompt_tokens_before": told[links.continues or 0].prompt_tokens or 0,
                        "differs_from": seen_hits,
                        "differs_before": min(seen_hits + block_size, inputs[index]),
                    }
        tally = by_rank[str(columns.dp_ranks[index])]
        tally[0] += inputs[index]
        tally[1] += hits[index]
    fact = HistoryFact(dict(by_rank), turns, lost_turns, lost_tokens, first)
    return replace(columns, input_tokens=inputs, hit_tokens=hits), fact


def _known(columns: RequestColumns, told: Mapping[int, SeenRequest], index: int, *, scripted: bool) -> int | None:
    """K; None for a first turn, and where the server did not tell of the turn before."""
    links = columns.links[index]
    if links.repeats is not None:
        return None
    before = None if links.continues is None else told.get(links.continues)
    if before is None or before.prompt_tokens is None:
        return None
    if scripted:
        return before.prompt_tokens
    return before.prompt_tokens + (before.completion_tokens or 1) - 1
