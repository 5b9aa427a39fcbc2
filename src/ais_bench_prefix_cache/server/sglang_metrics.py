"""The part of SGLang 0.5.23's ``/metrics`` that this tool reads, under the same names, labels and types.

Two kinds of counters stand there. Those of the front end (``prompt_tokens``, ``cached_tokens``) grow when a request has
ended, do not know ranks, and do not exist before they first grow. Those of the schedulers know ranks, if there are
several, and grow with each prompt that was computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric

from ais_bench_prefix_cache.kvcache.radix_cache import RadixCache
from ais_bench_prefix_cache.kvcache.scheduler import BatchStep
from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.generation import Generation, Scheduler

FIRST_TOKEN_BUCKETS = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
TOKEN_GAP_BUCKETS = (0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 2)
LATENCY_BUCKETS = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600, 1200, 1800, 2400)


class SglangMetrics:
    """The registry of one server; nothing is shared between servers of one process."""

    def __init__(self, configuration: ServerConfiguration) -> None:
        self._registry = CollectorRegistry()
        self.engines: list[SglangEngineMetrics] = []
        if configuration.disable_log_stats:
            return
        families = _Families(self._registry, with_ranks=configuration.data_parallel_size > 1)
        self.engines = [
            SglangEngineMetrics(families, configuration, rank) for rank in range(configuration.data_parallel_size)
        ]

    def exposition(self) -> bytes:
        """The whole text."""
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """The families that have samples, without ``_created``: SGLang's processes share their counters by files."""
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            if metric.samples:
                yield metric


class _Families:
    """The metric families, each of them once for all ranks."""

    def __init__(self, registry: CollectorRegistry, *, with_ranks: bool) -> None:
        front_end = ("engine_type", "model_name")
        scheduler = (*front_end, "moe_ep_rank", "pp_rank", "tp_rank", *(["dp_rank"] if with_ranks else []))

        def counter(name: str, documentation: str, *labels: str) -> Any:
            return Counter(f"sglang:{name}", documentation, labels, registry=registry)

        def gauge(name: str, documentation: str) -> Any:
            return Gauge(f"sglang:{name}", documentation, scheduler, registry=registry)

        def histogram(name: str, documentation: str, buckets: tuple[float, ...], *more: str) -> Any:
            labels = (*front_end, *more)
            return Histogram(f"sglang:{name}", documentation, labels, buckets=buckets, registry=registry)

        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of ended requests.", *front_end, "is_streaming")
        self.generation_tokens = counter("generation_tokens", "Their generated tokens.", *front_end, "is_streaming")
        self.num_requests = counter("num_requests", "Ended requests.", *front_end, "is_streaming")
        self.cached_tokens = counter("cached_tokens", "Their cached tokens, by tier.", *front_end, "cache_source")
        self.prefill = counter("prefill_effective_tokens", "Prompt tokens by where they came from.", *scheduler, "mode")
        self.max_total_num_tokens = gauge("max_total_num_tokens", "Tokens that the KV cache holds.")
        self.page_size = gauge("page_size", "Tokens of a page.")
        self.num_pages = gauge("num_pages", "Pages of the KV cache.")
        self.context_len = gauge("context_len", "Longest request.")
        self.num_running = gauge("num_running_reqs", "Requests in the batch.")
        self.num_queued = gauge("num_queue_reqs", "Requests in the waiting queue.")
        self.num_used_tokens = gauge("num_used_tokens", "Tokens that requests hold.")
        self.token_usage = gauge("token_usage", "Share of the KV cache that requests hold, 0 to 1.")
        self.cache_hit_rate = gauge("cache_hit_rate", "Hit rate of the last prompts that were computed.")
        self.available = gauge("kv_available_tokens", "Free slots of the KV cache.")
        self.evictable = gauge("kv_evictable_tokens", "Slots whose tokens are cached and used by nobody.")
        self.used = gauge("kv_used_tokens", "Slots that requests hold.")
        self.time_to_first_token = histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", FIRST_TOKEN_BUCKETS, "is_streaming"
        )
        self.inter_token_latency = histogram(
            "inter_token_latency_seconds", "Between two tokens of a request.", TOKEN_GAP_BUCKETS
        )
        self.e2e_latency = histogram(
            "e2e_request_latency_seconds", "From arrival to the last token.", LATENCY_BUCKETS, "is_streaming"
        )


class SglangEngineMetrics:
    """What one rank counts. The counters of the front end are the same ones for all ranks."""

    def __init__(self, families: _Families, configuration: ServerConfiguration, rank: int) -> None:
        self._families = families
        self._front_end = {"engine_type": "unified", "model_name": configuration.model}
        self._scheduler = self._front_end | {"moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
        if configuration.data_parallel_size > 1:
            self._scheduler["dp_rank"] = str(rank)
        modes = {mode: families.prefill.labels(**self._scheduler, mode=mode) for mode in ("input", "device_hit")}
        self._computed, self._hit = modes["input"], modes["device_hit"]
        for unused in ("host_hit", "storage_hit"):
            families.prefill.labels(**self._scheduler, mode=unused)
        for family, value in (
            (families.max_total_num_tokens, configuration.num_blocks * configuration.block_size),
            (families.page_size, configuration.block_size),
            (families.num_pages, configuration.num_blocks),
            (families.context_len, configuration.max_model_len),
        ):
            family.labels(**self._scheduler).set(value)
        self._cache_hit_rate = families.cache_hit_rate.labels(**self._scheduler)

    def count_step(self, step: BatchStep[Any]) -> None:
        """Prompt tokens that were computed or hit; the hits count when a request is admitted."""
        hits = sum(request.hit_tokens or 0 for request in step.admitted)
        if step.num_prefill_tokens or hits:
            self._computed.inc(step.num_prefill_tokens)
            self._hit.inc(hits)
            self._cache_hit_rate.set(hits / (hits + step.num_prefill_tokens))

    def count_token(self, request: Generation, now: float) -> None:
        """Latencies, and with the last token everything that the front end counts."""
        labels = self._front_end | {"is_streaming": str(request.stream).lower()}
        families = self._families
        if request.num_output_tokens == 1:
            families.time_to_first_token.labels(**labels).observe(now - request.arrived)
        else:
            families.inter_token_latency.labels(**self._front_end).observe(now - request.last_token)
        if request.finished:
            families.prompt_tokens.labels(**labels).inc(request.num_prompt_tokens)
            families.generation_tokens.labels(**labels).inc(request.num_output_tokens)
            families.num_requests.labels(**labels).inc()
            families.e2e_latency.labels(**labels).observe(now - request.arrived)
            if request.hit_tokens:
                families.cached_tokens.labels(**self._front_end, cache_source="device").inc(request.hit_tokens)

    def count_images(self, queries: int, hits: int) -> None:
        """SGLang has no counters for its cache of images."""

    def refresh(self, scheduler: Scheduler) -> None:
        """The gauges of the moment."""
        cache = scheduler.cache
        assert isinstance(cache, RadixCache)
        free = cache.num_free_tokens
        assert cache.num_pages is not None and free is not None
        families = self._families
        for family, value in (
            (families.num_running, len(scheduler.running)),
            (families.num_queued, len(scheduler.waiting)),
            (families.num_used_tokens, cache.num_locked_tokens),
            (families.available, free),
            (families.evictable, cache.num_pages * cache.page_size - free - cache.num_locked_tokens),
            (families.used, cache.num_locked_tokens),
            (families.token_usage, cache.usage),
        ):
            family.labels(**self._scheduler).set(value)
