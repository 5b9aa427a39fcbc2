"""Metric texts in the form of vLLM 0.32, from a few numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ais_bench_prefix_cache.counters.ranks import MetricsSnapshot, read_snapshot

CONFIG = {
    "block_size": "16",
    "enable_prefix_caching": "True",
    "kv_cache_size_tokens": "160000",
    "num_gpu_blocks": "10000",
}


def vllm_text(
    *engines: Mapping[str, float],
    config: Mapping[str, str] | None = None,
    created: float | None = 1000.0,
    start: float | None = 900.0,
    labels: tuple[str, ...] | None = None,
) -> str:
    """One text of as many engines as mappings; a mapping's keys are counter names without ``vllm:`` and ``_total``.

    ``config`` replaces labels of ``cache_config_info``, whose blocks are those of all engines.
    """
    names = labels if labels is not None else tuple(str(number) for number in range(len(engines)))
    lines = [] if start is None else [f"process_start_time_seconds {start}"]
    merged = {**CONFIG, "num_gpu_blocks": str(10000 * len(engines)), **(config or {})}
    for name, engine in zip(names, engines, strict=True):
        shown = f'engine="{name}",model_name="m"'
        for counter, value in engine.items():
            suffix = (
                "" if counter in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc") else "_total"
            )
            lines.append(f"vllm:{counter}{suffix}{{{shown}}} {value}")
            if created is not None and counter.startswith("prefix_cache"):
                lines.append(f"vllm:{counter}_created{{{shown}}} {created}")
        info = ",".join(f'{key}="{value}"' for key, value in merged.items())
        lines.append(f'vllm:cache_config_info{{{info},engine="{name}"}} 1.0')
    return "\n".join(lines) + "\n"


def engine(queries: int, hits: int, **more: float) -> dict[str, float]:
    """The two counters, and what else is named (``num_preemptions=3``)."""
    return {"prefix_cache_queries": queries, "prefix_cache_hits": hits, **more}


def snapshot(*texts: str, dp_size: int = 1, **settings: Any) -> MetricsSnapshot:
    """:func:`read_snapshot` of one text, or of one a port."""
    return read_snapshot(texts, dp_size=dp_size, **settings)
