"""One data-parallel rank: a loop that runs the steps of its scheduler, each for as long as a model would take."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

from ais_bench_prefix_cache.kvcache.block_hash import ExtraKeys
from ais_bench_prefix_cache.kvcache.prefix_cache import PrefixCache
from ais_bench_prefix_cache.kvcache.scheduler import BatchedRequest, BatchScheduler, BatchStep
from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.metrics import EngineMetrics
from ais_bench_prefix_cache.server.tokenization import ServerTokenizer, prompt_digest


class GeneratedToken(NamedTuple):
    """One token of one choice, as the HTTP side gets it."""

    choice: int
    token_id: int
    finished: bool
    hit_tokens: int


@dataclass(eq=False)
class Generation(BatchedRequest):
    """A request with its answer's way back and its times (seconds, monotonic clock)."""

    choice: int = 0
    prompt_digest: int = 0
    output: asyncio.Queue[GeneratedToken] = field(default_factory=asyncio.Queue)
    arrived: float = 0.0
    started: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0


class Engine:
    """A scheduler, its cache, and the clock. Runs in the event loop that calls :meth:`run`."""

    def __init__(
        self, configuration: ServerConfiguration, tokenizer: ServerTokenizer, metrics: EngineMetrics | None
    ) -> None:
        self._configuration = configuration
        self._tokenizer = tokenizer
        self._metrics = metrics
        # One block is vLLM's null block and never holds anything.
        cache = PrefixCache(
            configuration.block_size, configuration.num_blocks - 1, enabled=configuration.enable_prefix_caching
        )
        self.scheduler = BatchScheduler(
            cache,
            max_num_seqs=configuration.max_num_seqs,
            max_num_batched_tokens=configuration.max_num_batched_tokens,
        )
        self._wake_up = asyncio.Event()
        self.num_held_tokens = 0
        """Prompt tokens of all requests that run or wait."""

    @property
    def num_unfinished(self) -> int:
        """Requests that run or wait."""
        return len(self.scheduler.running) + len(self.scheduler.waiting)

    def submit(
        self,
        token_ids: Sequence[int],
        max_tokens: int,
        output: asyncio.Queue[GeneratedToken],
        *,
        choice: int,
        seed: int,
        extra_keys: ExtraKeys | None,
    ) -> Generation:
        """Queue one request; its tokens will arrive in ``output``."""
        generation = Generation(
            self.scheduler.cache.sequence(token_ids, extra_keys),
            max_tokens,
            choice=choice,
            prompt_digest=prompt_digest(token_ids, seed),
            output=output,
            arrived=monotonic(),
        )
        self.scheduler.add(generation)
        self.num_held_tokens += generation.num_prompt_tokens
        self._wake_up.set()
        return generation

    def count_images(self, queries: int, hits: int) -> None:
        """The front end has looked up the images of a request for this engine."""
        if self._metrics:
            self._metrics.mm_queries.inc(queries)
            self._metrics.mm_hits.inc(hits)

    def abort(self, generation: Generation) -> None:
        """The client went away. vLLM does not count that anywhere, so neither do we."""
        if not generation.finished:
            self.num_held_tokens -= generation.num_prompt_tokens
        self.scheduler.abort(generation)

    def reset(self, *, preempt_running: bool) -> bool:
        """Empty the prefix cache, if nobody uses it."""
        return self.scheduler.reset_cache(preempt_running=preempt_running)

    def refresh_gauges(self) -> None:
        """Bring the gauges up to date."""
        if self._metrics:
            self._metrics.running.set(len(self.scheduler.running))
            self._metrics.waiting.set(len(self.scheduler.waiting))
            self._metrics.kv_cache_usage.set(self.scheduler.cache.usage)

    async def run(self) -> None:
        """Run steps for ever."""
        while True:
            if not self.num_unfinished:
                self._wake_up.clear()
                await self._wake_up.wait()
                # Let every connection that has a request ready hand it over: they belong in one batch.
                await asyncio.sleep(0)
            scheduled = monotonic()
            step = self.scheduler.schedule()
            await asyncio.sleep(self._duration(step))
            self._finish(step, scheduled)

    def _duration(self, step: BatchStep) -> float:
        prefill_rate = self._configuration.prefill_tokens_per_second
        decode_rate = self._configuration.decode_tokens_per_second
        seconds = step.num_prefill_tokens / prefill_rate if prefill_rate else 0.0
        if step.num_decodes and decode_rate:
            seconds += 1 / decode_rate
        return seconds

    def _finish(self, step: BatchStep, scheduled: float) -> None:
        produced = self.scheduler.finish_step(step, self._next_token)
        now = monotonic()
        for request in step.admitted:
            assert isinstance(request, Generation)
            request.started = scheduled
        # Counters first: whoever has an answer finds it counted.
        if self._metrics:
            self._count(self._metrics, step)
        for request, token_id in produced:
            assert isinstance(request, Generation)
            if self._metrics:
                self._observe(self._metrics, request, now)
            if request.num_output_tokens == 1:
                request.first_token = now
            request.last_token = now
            if request.finished:
                self.num_held_tokens -= request.num_prompt_tokens
            request.output.put_nowait(
                GeneratedToken(request.choice, token_id, request.finished, request.hit_tokens or 0)
            )

    def _next_token(self, request: BatchedRequest) -> int:
        assert isinstance(request, Generation)
        return self._tokenizer.output_token(request.prompt_digest, request.num_output_tokens)

    def _count(self, metrics: EngineMetrics, step: BatchStep) -> None:
        if self._configuration.enable_prefix_caching:
            metrics.queries.inc(sum(request.num_prompt_tokens for request in step.admitted))
            metrics.hits.inc(sum(request.hit_tokens or 0 for request in step.admitted))
        metrics.preemptions.inc(len(step.preempted))
        metrics.step_tokens.observe(sum(chunk.num_tokens for chunk in step.chunks))

    def _observe(self, metrics: EngineMetrics, request: Generation, now: float) -> None:
        metrics.generation_tokens.inc()
        if request.num_output_tokens == 1:
            hit_tokens = request.hit_tokens or 0
            metrics.prompt_tokens.inc(request.num_prompt_tokens)
            metrics.prompt_tokens_hit.inc(hit_tokens)
            metrics.prompt_tokens_cached.inc(hit_tokens)
            metrics.prompt_tokens_computed.inc(request.num_prompt_tokens - hit_tokens)
            metrics.time_to_first_token.observe(now - request.arrived)
        else:
            metrics.inter_token_latency.observe(now - request.last_token)
        if request.finished:
            first_token = request.first_token or now
            decode_time = now - first_token
            metrics.success["length"].inc()
            metrics.request_prompt_tokens.observe(request.num_prompt_tokens)
            metrics.request_generation_tokens.observe(request.num_output_tokens)
            metrics.e2e_latency.observe(now - request.arrived)
            metrics.queue_time.observe(request.started - request.arrived)
            metrics.prefill_time.observe(first_token - request.started)
            metrics.inference_time.observe(now - request.started)
            metrics.decode_time.observe(decode_time)
            metrics.time_per_output_token.observe(decode_time / max(request.num_output_tokens - 1, 1))


class EngineBalancer:
    """Chooses an engine for a request that names none, as vLLM's internal load balancer does.

    The least loaded engine wins; the search starts one engine further each time, so equal loads rotate. Waiting
    requests weigh more once the KV cache is more than half full.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines
        self._start = 0

    def choose(self) -> Engine:
        """The engine for the next request."""
        count = len(self._engines)
        candidates = [self._engines[(self._start + offset) % count] for offset in range(count)]
        self._start = (self._start + 1) % count
        return min(candidates, key=self._load)

    @staticmethod
    def _load(engine: Engine) -> float:
        pressure = 6.0 * max(0.0, engine.scheduler.cache.usage - 0.5)
        return engine.num_unfinished + len(engine.scheduler.waiting) * pressure
