"""Which metrics count what: the names of vLLM, SGLang and LMDeploy, and how exporters in between spell them.

Names by server and version: vLLM's own sources and releases (0.5.5 to 0.33), SGLang's and LMDeploy's metric collectors.
Whole names are matched: ``prefix_cache_hits`` is neither ``gpu_prefix_cache_hits`` nor ``external_prefix_cache_hits``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

ServerFamily = Literal["vllm", "sglang", "lmdeploy"]

PROCESS_START = "process_start_time_seconds"
PYTHON_INFO = "python_info"
"""Shown by every Python process with metrics, an engine's or not."""

COUNTERS: Mapping[ServerFamily, Mapping[str, str]] = {
    "vllm": {
        "queries": "prefix_cache_queries",
        "hits": "prefix_cache_hits",
        "gpu_queries": "gpu_prefix_cache_queries",
        "gpu_hits": "gpu_prefix_cache_hits",
        "external_queries": "external_prefix_cache_queries",
        "external_hits": "external_prefix_cache_hits",
        "prompt_tokens": "prompt_tokens",
        "prompt_tokens_cached": "prompt_tokens_cached",
        "preemptions": "num_preemptions",
        "requests": "request_success",
        "speculative_drafts": "spec_decode_num_drafts",
        "mm_queries": "mm_cache_queries",
        "mm_hits": "mm_cache_hits",
    },
    "sglang": {
        "queries": "prompt_tokens",
        "hits": "cached_tokens",
        "prefill_tokens": "prefill_effective_tokens",
        "requests": "num_requests",
    },
    "lmdeploy": {"queries": "prompt_tokens", "hits": "cached_tokens"},
}
"""Our key to the metric's name, without prefix and ``_total`` (which a counter may lack)."""

RESTART_COUNTERS = frozenset({"queries", "hits", "gpu_queries", "gpu_hits", "prefill_tokens"})
"""The counters whose series must stay the same ones from one look to the next."""

GAUGES: Mapping[ServerFamily, Mapping[str, str]] = {
    "vllm": {
        "kv_cache_usage": "kv_cache_usage_perc",
        "gpu_cache_usage": "gpu_cache_usage_perc",
        "running": "num_requests_running",
        "waiting": "num_requests_waiting",
        "config": "cache_config_info",
        "sleep": "engine_sleep_state",
        "hit_rate": "gpu_prefix_cache_hit_rate",
    },
    "sglang": {
        "kv_cache_usage": "token_usage",
        "running": "num_running_reqs",
        "waiting": "num_queue_reqs",
        "hit_rate": "cache_hit_rate",
        "page_size": "page_size",
        "capacity_tokens": "max_total_num_tokens",
        "context_tokens": "context_len",
    },
    "lmdeploy": {},
}

RANK_LABELS: Mapping[ServerFamily, tuple[str, ...]] = {
    "vllm": ("engine",),
    "sglang": ("dp_rank", "engine"),
    "lmdeploy": ("engine",),
}
"""The labels that name a data-parallel rank, the first that is shown."""

MODEL_LABELS = ("model_name", "name")

ROLE_LABELS = ("role", "engine_type", "dynamo_component", "component", "disaggregation_mode", "kv_role")
"""Labels that say which side of a disaggregated deployment a series is of."""

SUMMED_LABELS = frozenset(
    {"pid", "finished_reason", "cache_source", "source", "mode", "is_streaming", "priority", "le"}
)
"""Labels whose values split one engine's count; the series add up. Every other label tells engines apart."""

SHARD_LABELS = ("tp_rank", "pp_rank", "moe_ep_rank")
"""Each shard of one SGLang engine may write the same count: the first one's of each rank is taken."""

# Ray, KServe and others put a name of their own in front; exporters that do not know the colon write _ or a dot.
_PREFIXED = re.compile(r"((?:[A-Za-z0-9_.:/-]*?[_.:/-])??(vllm|sglang|lmdeploy)[:_.])(.+)", re.DOTALL)


class MetricName(NamedTuple):
    """A metric of a known server: ``prefix`` as written (``ray_vllm_``), ``name`` what follows, with _ for dots."""

    family: ServerFamily
    prefix: str
    name: str


@lru_cache(maxsize=4096)
def split_name(written: str) -> MetricName | None:
    """The parts of a metric's name; None where no known server's name stands before it."""
    match = _PREFIXED.fullmatch(written)
    if match is None:
        return None
    family: ServerFamily = match[2]  # type: ignore[assignment]
    return MetricName(family, match[1], match[3].replace(".", "_"))


def _wanted_names() -> Mapping[ServerFamily, frozenset[str]]:
    wanted = {}
    for family, counters in COUNTERS.items():
        names = set(GAUGES[family].values())
        for key, counter in counters.items():
            names.update((counter, f"{counter}_total"))
            if key in RESTART_COUNTERS:
                names.add(f"{counter}_created")
        wanted[family] = frozenset(names)
    return wanted


_WANTED = _wanted_names()


@lru_cache(maxsize=4096)
def is_read(written: str) -> bool:
    """Whether a sample of this name says something that is read here."""
    if written == PROCESS_START:
        return True
    metric = split_name(written)
    return metric is not None and metric.name in _WANTED[metric.family]


def says_which_server(written: str) -> bool:
    """Whether a name alone tells something of the server."""
    return written == PYTHON_INFO or split_name(written) is not None
