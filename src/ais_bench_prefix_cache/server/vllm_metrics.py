"""The part of vLLM 0.32's ``/metrics`` that this tool reads, under the same names, labels and types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from ais_bench_prefix_cache.kvcache.scheduler import BatchStep
from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.generation import Generation, Scheduler

CONTENT_TYPE = CONTENT_TYPE_LATEST

FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
PROMPT_TOKEN_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")

TOKEN_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_GAP_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0),
    *(50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_TOKEN_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class VllmMetrics:
    """The registry of one server; nothing is shared between servers of one process."""

    def __init__(self, configuration: ServerConfiguration) -> None:
        self._registry = CollectorRegistry()
        PlatformCollector(registry=self._registry)
        ProcessCollector(registry=self._registry)
        self.engines: list[VllmEngineMetrics] = []
        if configuration.disable_log_stats:
            return
        families = _Families(self._registry)
        self.engines = [
            VllmEngineMetrics(families, configuration, engine) for engine in range(configuration.data_parallel_size)
        ]
        _describe_cache(self._registry, configuration)

    def exposition(self) -> bytes:
        """The whole text."""
        return generate_latest(self._registry)


class _Families:
    """The metric families, each of them once for all engines."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._families: dict[str, Any] = {}

    def series(
        self, metric: type[Any], name: str, documentation: str, labels: Mapping[str, str], **options: Any
    ) -> Any:
        """The series with these labels, at 0 from now on, of the family of that name."""
        if name not in self._families:
            self._families[name] = metric(
                f"vllm:{name}", documentation, tuple(labels), registry=self._registry, **options
            )
        return self._families[name].labels(**labels)


class VllmEngineMetrics:
    """The series of one engine, present from the start as vLLM's are."""

    def __init__(self, families: _Families, configuration: ServerConfiguration, engine: int) -> None:
        own = {"model_name": configuration.model, "engine": str(engine)}

        def counter(name: str, documentation: str, **labels: str) -> Any:
            return families.series(Counter, name, documentation, own | labels)

        def gauge(name: str, documentation: str, **labels: str) -> Any:
            return families.series(Gauge, name, documentation, own | labels)

        def histogram(name: str, documentation: str, buckets: tuple[float, ...]) -> Any:
            return families.series(Histogram, name, documentation, own, buckets=buckets)

        self._counts_prefix_cache = configuration.enable_prefix_caching
        self.running = gauge("num_requests_running", "Requests in the batch.")
        self.waiting = gauge("num_requests_waiting", "Requests in the waiting queue.")
        for state in SLEEP_STATES:
            is_state = gauge("engine_sleep_state", "1 for the state that the engine is in.", sleep_state=state)
            is_state.set(state == "awake")
        self.kv_cache_usage = gauge("kv_cache_usage_perc", "Share of KV-cache blocks that requests hold, 0 to 1.")
        self.queries = counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self.hits = counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        counter("external_prefix_cache_queries", "Tokens looked up in a KV connector: none.")
        counter("external_prefix_cache_hits", "Tokens found in a KV connector: none.")
        self.mm_queries = counter("mm_cache_queries", "Images looked up in the multimodal cache.")
        self.mm_hits = counter("mm_cache_hits", "Images found in the multimodal cache.")
        self.preemptions = counter("num_preemptions", "Times that a running request had to start again.")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of requests with a first token.")
        sources = {
            source: counter("prompt_tokens_by_source", "The same, by where they came from.", source=source)
            for source in PROMPT_TOKEN_SOURCES
        }
        self.prompt_tokens_computed = sources["local_compute"]
        self.prompt_tokens_hit = sources["local_cache_hit"]
        self.prompt_tokens_cached = counter("prompt_tokens_cached", "Those of them that came from a cache.")
        self.generation_tokens = counter("generation_tokens", "Generated tokens.")
        self.success = {
            reason: counter("request_success", "Finished requests.", finished_reason=reason)
            for reason in FINISHED_REASONS
        }
        self.request_prompt_tokens = histogram("request_prompt_tokens", "Prompt tokens of a request.", TOKEN_BUCKETS)
        self.request_generation_tokens = histogram(
            "request_generation_tokens", "Generated tokens of a request.", TOKEN_BUCKETS
        )
        self.step_tokens = histogram("iteration_tokens_total", "Tokens computed in a step.", STEP_TOKEN_BUCKETS)
        self.time_to_first_token = histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", FIRST_TOKEN_BUCKETS
        )
        self.inter_token_latency = histogram(
            "inter_token_latency_seconds", "Between two tokens of a request.", TOKEN_GAP_BUCKETS
        )
        self.time_per_output_token = histogram(
            "request_time_per_output_token_seconds",
            "Mean time of a request's tokens after the first.",
            TOKEN_GAP_BUCKETS,
        )
        self.e2e_latency = histogram("e2e_request_latency_seconds", "From arrival to the last token.", LATENCY_BUCKETS)
        self.queue_time = histogram("request_queue_time_seconds", "From arrival to the first step.", LATENCY_BUCKETS)
        self.prefill_time = histogram(
            "request_prefill_time_seconds", "From the first step to the first token.", LATENCY_BUCKETS
        )
        self.decode_time = histogram(
            "request_decode_time_seconds", "From the first token to the last.", LATENCY_BUCKETS
        )
        self.inference_time = histogram(
            "request_inference_time_seconds", "From the first step to the last token.", LATENCY_BUCKETS
        )

    def count_step(self, step: BatchStep[Any]) -> None:
        """Queries, hits and preemptions: vLLM counts them when a request is admitted."""
        if self._counts_prefix_cache:
            self.queries.inc(sum(request.num_prompt_tokens for request in step.admitted))
            self.hits.inc(sum(request.hit_tokens or 0 for request in step.admitted))
        self.preemptions.inc(len(step.preempted))
        self.step_tokens.observe(sum(chunk.num_tokens for chunk in step.chunks))

    def count_token(self, request: Generation, now: float) -> None:
        """Prompt tokens count with the first token, latencies as they come to be known."""
        self.generation_tokens.inc()
        if request.num_output_tokens == 1:
            hit_tokens = request.hit_tokens or 0
            self.prompt_tokens.inc(request.num_prompt_tokens)
            self.prompt_tokens_hit.inc(hit_tokens)
            self.prompt_tokens_cached.inc(hit_tokens)
            self.prompt_tokens_computed.inc(request.num_prompt_tokens - hit_tokens)
            self.time_to_first_token.observe(now - request.arrived)
        else:
            self.inter_token_latency.observe(now - request.last_token)
        if request.finished:
            first_token = request.first_token or now
            decode_time = now - first_token
            self.success["length"].inc()
            self.request_prompt_tokens.observe(request.num_prompt_tokens)
            self.request_generation_tokens.observe(request.num_output_tokens)
            self.e2e_latency.observe(now - request.arrived)
            self.queue_time.observe(request.started - request.arrived)
            self.prefill_time.observe(first_token - request.started)
            self.inference_time.observe(now - request.started)
            self.decode_time.observe(decode_time)
            self.time_per_output_token.observe(decode_time / max(request.num_output_tokens - 1, 1))

    def count_images(self, queries: int, hits: int) -> None:
        """Images in the multimodal cache."""
        self.mm_queries.inc(queries)
        self.mm_hits.inc(hits)

    def refresh(self, scheduler: Scheduler) -> None:
        """The gauges of the moment."""
        self.running.set(len(scheduler.running))
        self.waiting.set(len(scheduler.waiting))
        self.kv_cache_usage.set(scheduler.cache.usage)


def _describe_cache(registry: CollectorRegistry, configuration: ServerConfiguration) -> None:
    """``vllm:cache_config_info``: a series for each engine; the number of blocks is the sum over engines."""
    block_size, ranks = configuration.block_size, configuration.data_parallel_size
    kv_cache_size_tokens = configuration.num_blocks * block_size
    values = {
        "block_size": block_size,
        "effective_attention_block_size": block_size,
        "enable_prefix_caching": configuration.enable_prefix_caching,
        "gpu_memory_utilization": 0.92,
        "kv_cache_max_concurrency": kv_cache_size_tokens / configuration.max_model_len,
        "kv_cache_size_tokens": kv_cache_size_tokens,
        "num_cpu_blocks": None,
        "num_gpu_blocks": configuration.num_blocks * ranks,
        "num_gpu_blocks_override": configuration.num_blocks,
        "prefix_caching_hash_algo": "blake2b",
        "sliding_window": None,
        "user_specified_block_size": True,
    }
    info = Gauge(
        "vllm:cache_config_info", "What the KV cache of each engine is.", (*values, "engine"), registry=registry
    )
    for engine in range(ranks):
        info.labels(**{name: str(value) for name, value in values.items()}, engine=str(engine)).set(1)
