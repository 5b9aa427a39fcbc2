"""Continuous batching over one prefix cache: who runs in the next step, with how many tokens, and who has to wait.

The rules are those of vLLM 0.32's V1 scheduler with its default policy (first come, first served, chunked prefill, a
whole prompt must fit before it is admitted), without speculative decoding and KV connectors. Time is not part of it:
whoever runs a step decides how long it takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar, Union

from ais_bench_prefix_cache.kvcache.prefix_cache import CachedSequence, PrefixCache
from ais_bench_prefix_cache.kvcache.radix_cache import RadixSequence

SequenceT = TypeVar("SequenceT", bound=Union[CachedSequence, RadixSequence])


@dataclass(eq=False)
class BatchedRequest(Generic[SequenceT]):
    """One sequence to generate: ``max_tokens`` tokens after its prompt."""

    sequence: SequenceT
    max_tokens: int
    num_prompt_tokens: int = field(init=False)
    hit_tokens: int | None = None
    """Prompt tokens found in the cache when the request was first admitted; ``None`` before that."""
    num_preemptions: int = 0
    finished: bool = False

    def __post_init__(self) -> None:
        self.num_prompt_tokens = self.sequence.num_tokens

    @property
    def num_output_tokens(self) -> int:
        return self.sequence.num_tokens - self.num_prompt_tokens


@dataclass(frozen=True)
class ScheduledChunk(Generic[SequenceT]):
    """``num_tokens`` tokens of ``request`` that the step computes; ``completes`` its known tokens or not."""

    request: BatchedRequest[SequenceT]
    num_tokens: int
    completes: bool
    num_preemptions: int
    is_decode: bool = field(init=False)
    """It is one token after the request's first output token."""

    def __post_init__(self) -> None:
        # Decided now: by the end of the step the request has a token more.
        object.__setattr__(self, "is_decode", self.num_tokens == 1 and self.request.num_output_tokens > 0)


@dataclass(frozen=True)
class BatchStep(Generic[SequenceT]):
    """One forward pass: its chunks, and the requests that were admitted for the first time or preempted for it."""

    chunks: list[ScheduledChunk[SequenceT]]
    admitted: list[BatchedRequest[SequenceT]]
    preempted: list[BatchedRequest[SequenceT]]

    @property
    def num_decodes(self) -> int:
        """Requests of the step that compute one token after their first output token."""
        return sum(chunk.is_decode for chunk in self.chunks)

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens of the step that belong to prompts, or to what a preempted request has to compute again."""
        return sum(chunk.num_tokens for chunk in self.chunks) - self.num_decodes


class BatchScheduler:
    """A waiting queue and a running batch over ``cache``."""

    def __init__(self, cache: PrefixCache, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.cache = cache
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[BatchedRequest[CachedSequence]] = deque()
        self.running: list[BatchedRequest[CachedSequence]] = []

    def add(self, request: BatchedRequest[CachedSequence]) -> None:
        """Put a new request at the end of the waiting queue."""
        self.waiting.append(request)

    def abort(self, request: BatchedRequest[CachedSequence]) -> None:
        """Drop a request wherever it is. Dropping a finished one does nothing."""
        if request.finished:
            return
        request.finished = True
        if request in self.running:
            self.running.remove(request)
            self.cache.free(request.sequence)
        else:
            self.waiting.remove(request)

    def schedule(self) -> BatchStep[CachedSequence]:
        """Choose the next step and allocate, and cache, the blocks that it fills."""
        budget = self.max_num_batched_tokens
        chunks: list[ScheduledChunk[CachedSequence]] = []
        preempted: list[BatchedRequest[CachedSequence]] = []
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            sequence = request.sequence
            num_tokens = min(sequence.num_tokens - sequence.num_computed_tokens, budget)
            while not self.cache.allocate(sequence, num_tokens):
                # The youngest request gives way, possibly the very one that needs the room.
                victim = self.running.pop()
                self._preempt(victim)
                preempted.append(victim)
                if victim is request:
                    break
            else:
                chunks.append(self._chunk(request, num_tokens))
                budget -= num_tokens
                index += 1
                continue
            break
        admitted: list[BatchedRequest[CachedSequence]] = []
        if not preempted:
            self._admit(budget, chunks, admitted)
        for chunk in chunks:
            chunk.request.sequence.num_computed_tokens += chunk.num_tokens
        return BatchStep(chunks, admitted, preempted)

    def finish_step(
        self, step: BatchStep[CachedSequence], next_token: Callable[[BatchedRequest[CachedSequence]], int]
    ) -> list[tuple[BatchedRequest[CachedSequence], int]]:
        """Give each request whose known tokens are computed its next token, and free the requests that are done.

        Requests that were aborted or preempted while the step ran get nothing. Returns requests and their tokens.
        """
        produced = []
        for chunk in step.chunks:
            request = chunk.request
            if not chunk.completes or request.finished or request.num_preemptions != chunk.num_preemptions:
                continue
            token_id = next_token(request)
            self.cache.append(request.sequence, token_id)
            produced.append((request, token_id))
            if request.num_output_tokens >= request.max_tokens:
                request.finished = True
                self.running.remove(request)
                self.cache.free(request.sequence)
        return produced

    def reset_cache(self, *, preempt_running: bool = False) -> bool:
        """Empty the cache; with ``preempt_running`` all running requests start again, without it they forbid it."""
        if preempt_running:
            while self.running:
                self._preempt(self.running.pop())
        return self.cache.reset()

    def _admit(
        self, budget: int, chunks: list[ScheduledChunk[CachedSequence]], admitted: list[BatchedRequest[CachedSequence]]
    ) -> None:
        while budget > 0 and self.waiting and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            sequence = request.sequence
            hit_blocks = self.cache.lookup(sequence)
            hit_tokens = len(hit_blocks) * self.cache.block_size
            num_tokens = min(sequence.num_tokens - hit_tokens, budget)
            if not self.cache.allocate(sequence, num_tokens, hit_blocks, whole_sequence_must_fit=True):
                return
            if request.num_preemptions == 0:
                self.cache.record(sequence, hit_blocks)
                request.hit_tokens = hit_tokens
                admitted.append(request)
            self.waiting.popleft()
            self.running.append(request)
            chunks.append(self._chunk(request, num_tokens))
            budget -= num_tokens

    def _chunk(self, request: BatchedRequest[CachedSequence], num_tokens: int) -> ScheduledChunk[CachedSequence]:
        sequence = request.sequence
        completes = sequence.num_computed_tokens + num_tokens == sequence.num_tokens
        return ScheduledChunk(request, num_tokens, completes, request.num_preemptions)

    def _preempt(self, request: BatchedRequest[CachedSequence]) -> None:
        self.cache.free(request.sequence)
        request.num_preemptions += 1
        self.waiting.appendleft(request)
