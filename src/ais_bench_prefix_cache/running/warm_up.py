"""The phase ``warmup``: fill the caches with what must be there, and prove it."""

from __future__ import annotations

from typing import Any

from ais_bench_prefix_cache.datasets.format.rows import read_rows
from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer
from ais_bench_prefix_cache.foundation.telling import ProgressBar
from ais_bench_prefix_cache.running.hybrid_warmup import shared_lengths, sharers
from ais_bench_prefix_cache.running.traffic import FormalTraffic
from ais_bench_prefix_cache.running.understanding import UnderstoodServer
from ais_bench_prefix_cache.service.probing import new_nonce, probe_text
from ais_bench_prefix_cache.service.warming import WarmedEntry, warm_and_prove, warm_shorter_prefixes


def warm_up(
    server: UnderstoodServer, traffic: FormalTraffic, tokenizer: PromptTokenizer, bar: ProgressBar
) -> list[WarmedEntry]:
    """Send the warm-up prompts of the plan, and for hybrid models those of shorter prefixes; empty without a plan."""
    if not traffic.warmup:
        return []
    with bar("Warm up", 2 * len(traffic.warmup)) as show:
        warmed = warm_and_prove(
            server.client,
            server.reader,
            traffic.warmup,
            server.probed.rank_of_engine,
            server.probed.rule,
            exact_hits=server.exact_hits,
            on_progress=show,
        )
    if server.client.config.hybrid_warmup:
        warmed += _warm_shorter_prefixes(server, traffic, tokenizer, bar)
    return warmed


def warmup_section(warmed: list[WarmedEntry]) -> list[dict[str, Any]]:
    """``runtime.warmup``."""
    return [
        {
            "request_id": each.entry.request_id,
            "group_id": each.entry.group_id,
            "dp_rank": each.entry.dp_rank,
            "input_tokens": each.entry.input_tokens,
            "expected_hits": each.expected_hits,
            "cached_tokens": each.cached_tokens,
        }
        for each in warmed
    ]


def _warm_shorter_prefixes(
    server: UnderstoodServer, traffic: FormalTraffic, tokenizer: PromptTokenizer, bar: ProgressBar
) -> list[WarmedEntry]:
    pairs = sharers(
        shared_lengths(read_rows(traffic.rows_path)),
        tokenizer,
        server.client.config.dp_size,
        lambda characters: probe_text(new_nonce(), 0, characters),
    )
    if not pairs:
        return []
    with bar("Warm up shorter prefixes", 2 * len(pairs)) as show:
        return warm_shorter_prefixes(
            server.client, server.reader, pairs, server.probed.rank_of_engine, on_progress=show
        )
