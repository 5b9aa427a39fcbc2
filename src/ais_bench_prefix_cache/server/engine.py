"""One data-parallel rank: a loop that runs the steps of its scheduler, each for as long as a model would take."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Any

from ais_bench_prefix_cache.kvcache.block_hash import ExtraKeys
from ais_bench_prefix_cache.kvcache.prefix_cache import PrefixCache
from ais_bench_prefix_cache.kvcache.radix_cache import RadixCache, RadixSequence
from ais_bench_prefix_cache.kvcache.radix_scheduler import RadixScheduler
from ais_bench_prefix_cache.kvcache.scheduler import BatchedRequest, BatchScheduler, BatchStep
from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.generation import EngineMetrics, GeneratedToken, Generation, Scheduler
from ais_bench_prefix_cache.server.tokenization import ServerTokenizer, prompt_digest


class Engine:
    """A scheduler, its cache, and the clock. Runs in the event loop that calls :meth:`run`."""

    def __init__(
        self, configuration: ServerConfiguration, tokenizer: ServerTokenizer, metrics: EngineMetrics | None
    ) -> None:
        self._configuration = configuration
        self._tokenizer = tokenizer
        self._metrics = metrics
        self.scheduler = _scheduler(configuration)
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
        stream: bool,
        extra_keys: ExtraKeys | None,
    ) -> Generation:
        """Queue one request; its tokens will arrive in ``output``."""
        cache = self.scheduler.cache
        generation = Generation(
            radix_sequence(cache, token_ids, extra_keys)
            if isinstance(cache, RadixCache)
            else cache.sequence(token_ids, extra_keys),
            max_tokens,
            choice=choice,
            stream=stream,
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
            self._metrics.count_images(queries, hits)

    def abort(self, generation: Generation) -> None:
        """The client went away. vLLM does not count that anywhere, so neither do we."""
        if not generation.finished:
            self.num_held_tokens -= generation.num_prompt_tokens
        self.scheduler.abort(generation)

    def reset(self, *, preempt_running: bool = False) -> bool:
        """Empty the prefix cache, if nobody uses it. Only vLLM's rules know ``preempt_running``."""
        if preempt_running and isinstance(self.scheduler, BatchScheduler):
            return self.scheduler.reset_cache(preempt_running=True)
        return self.scheduler.reset_cache()

    def refresh_gauges(self) -> None:
        """Bring the gauges up to date."""
        if self._metrics:
            self._metrics.refresh(self.scheduler)

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

    def _duration(self, step: BatchStep[Any]) -> float:
        prefill_rate = self._configuration.prefill_tokens_per_second
        decode_rate = self._configuration.decode_tokens_per_second
        seconds = step.num_prefill_tokens / prefill_rate if prefill_rate else 0.0
        if step.num_decodes and decode_rate:
            seconds += 1 / decode_rate
        return seconds

    def _finish(self, step: BatchStep[Any], scheduled: float) -> None:
        produced = self.scheduler.finish_step(step, self._next_token)
        now = monotonic()
        for request in step.admitted:
            assert isinstance(request, Generation)
            request.started = scheduled
        # Counters first: whoever has an answer finds it counted.
        if self._metrics:
            self._metrics.count_step(step)
        for request, token_id in produced:
            assert isinstance(request, Generation)
            if self._metrics:
                self._metrics.count_token(request, now)
            if request.num_output_tokens == 1:
                request.first_token = now
            request.last_token = now
            if request.finished:
                self.num_held_tokens -= request.num_prompt_tokens
            request.output.put_nowait(
                GeneratedToken(request.choice, token_id, request.finished, request.hit_tokens or 0)
            )

    def _next_token(self, request: BatchedRequest[Any]) -> int:
        assert isinstance(request, Generation)
        return self._tokenizer.output_token(request.prompt_digest, request.num_output_tokens)


def _scheduler(configuration: ServerConfiguration) -> Scheduler:
    """An empty cache and its scheduler, by the rules of the server that is imitated."""
    limits = {
        "max_num_seqs": configuration.max_num_seqs,
        "max_num_batched_tokens": configuration.max_num_batched_tokens,
    }
    if configuration.engine == "sglang":
        radix = RadixCache(
            configuration.block_size, configuration.num_blocks, enabled=configuration.enable_prefix_caching
        )
        return RadixScheduler(radix, **limits)
    # One block is vLLM's null block and never holds anything.
    cache = PrefixCache(
        configuration.block_size, configuration.num_blocks - 1, enabled=configuration.enable_prefix_caching
    )
    return BatchScheduler(cache, **limits)


def radix_sequence(cache: RadixCache, token_ids: Sequence[int], extra_keys: ExtraKeys | None) -> RadixSequence:
    """A request for SGLang's cache, which tells images apart by the tokens that stand for them, not by extra keys."""
    if extra_keys is None:
        return cache.sequence(token_ids)
    ids = list(token_ids)
    for item in extra_keys.multimodal_items:
        stand_in = -1 - int(item.identifier[:15], 16)
        ids[item.offset : item.offset + item.length] = [stand_in] * item.length
    return cache.sequence(ids, extra_keys.cache_salt)


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
