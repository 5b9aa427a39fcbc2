"""Continuous batching over one radix cache: who runs in the next step, with how many tokens, and who has to wait.

The rules are those of SGLang 0.5.23 with its default settings (first come, first served; prompts before answers; a
long prompt in chunks), without its guess at how long answers will be: a request is admitted when its whole answer
fits, so nobody ever has to give way. Time is not part of it: whoever runs a step decides how long it takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ais_bench_prefix_cache.kvcache.radix_cache import RadixCache, RadixSequence
from ais_bench_prefix_cache.kvcache.scheduler import BatchedRequest, BatchStep, ScheduledChunk

RadixRequest = BatchedRequest[RadixSequence]


class RadixScheduler:
    """A waiting queue and a running batch over ``cache``.

    ``max_num_batched_tokens`` is the size of a chunk (SGLang: ``chunked_prefill_size``).
    """

    def __init__(self, cache: RadixCache, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.cache = cache
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[RadixRequest] = deque()
        self.running: list[RadixRequest] = []

    def add(self, request: RadixRequest) -> None:
        """Put a new request at the end of the waiting queue."""
        self.waiting.append(request)

    def abort(self, request: RadixRequest) -> None:
        """Drop a request wherever it is. Dropping a finished one does nothing."""
        if request.finished:
            return
        request.finished = True
        if request in self.running:
            self.running.remove(request)
            self.cache.release(request.sequence)
        else:
            self.waiting.remove(request)

    def schedule(self) -> BatchStep[RadixSequence]:
        """Choose the next step: prompts if there are any, otherwise a token for everybody."""
        admitted: list[RadixRequest] = []
        chunks = self._prefill(admitted)
        if not chunks:
            self.cache.make_room(len(self.running) * self.cache.page_size)
            chunks = [self._chunk(request, 1) for request in self.running]
        return BatchStep(chunks, admitted, [])

    def finish_step(
        self, step: BatchStep[RadixSequence], next_token: Callable[[RadixRequest], int]
    ) -> list[tuple[RadixRequest, int]]:
        """Put what was computed of prompts into the cache and give each request with a whole prompt its next token.

        Requests that were aborted while the step ran get nothing. Returns requests and their tokens.
        """
        produced = []
        for chunk in step.chunks:
            request = chunk.request
            if request.finished:
                continue
            sequence = request.sequence
            if not chunk.completes:
                self.cache.insert(sequence)
                continue
            token_id = next_token(request)
            request.finished = request.num_output_tokens + 1 >= request.max_tokens
            if request.finished or not request.num_output_tokens:
                self.cache.insert(sequence)
            sequence.token_ids.append(token_id)
            produced.append((request, token_id))
            if request.finished:
                self.running.remove(request)
                self.cache.release(sequence)
        return produced

    def reset_cache(self) -> bool:
        """Empty the cache; ``False``, and nothing happens, while a request runs or waits."""
        return not self.waiting and self.cache.reset()

    def _prefill(self, admitted: list[RadixRequest]) -> list[ScheduledChunk[RadixSequence]]:
        budget = self.max_num_batched_tokens
        chosen: list[tuple[RadixRequest, int]] = []
        for request in self.running:
            left = request.num_prompt_tokens - request.sequence.num_computed_tokens
            if left > 0 and budget > 0:
                chosen.append((request, min(left, budget)))
                budget -= chosen[-1][1]
        while budget > 0 and self.waiting and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            if not self._admit(request):
                break
            self.waiting.popleft()
            self.running.append(request)
            admitted.append(request)
            chosen.append((request, min(request.num_prompt_tokens - request.sequence.num_computed_tokens, budget)))
            budget -= chosen[-1][1]
        page = self.cache.page_size
        # SGLang reckons with a page more for each request, except where a page is a token.
        self.cache.make_room(sum(num_tokens + (page if page > 1 else 0) for _, num_tokens in chosen))
        return [self._chunk(request, num_tokens) for request, num_tokens in chosen]

    def _admit(self, request: RadixRequest) -> bool:
        """Let ``request`` in, if the rest of everybody's tokens finds room once all goes that nobody uses."""
        hit_tokens = self.cache.admit(request.sequence)
        if self.cache.num_pages is not None:
            needed = sum(self.cache.num_missing_tokens(r.sequence, self._last(r)) for r in (*self.running, request))
            if self.cache.num_locked_tokens + needed > self.cache.num_pages * self.cache.page_size:
                self.cache.release(request.sequence)
                return False
        request.hit_tokens = hit_tokens
        return True

    @staticmethod
    def _last(request: RadixRequest) -> int:
        """How many tokens of a request are ever computed: all but the last of its answer."""
        return request.num_prompt_tokens + request.max_tokens - 1

    def _chunk(self, request: RadixRequest, num_tokens: int) -> ScheduledChunk[RadixSequence]:
        if not self.cache.compute(request.sequence, num_tokens):
            raise RuntimeError("an admitted request does not find room")
        completes = request.sequence.num_computed_tokens == request.sequence.num_tokens
        return ScheduledChunk(request, num_tokens, completes, 0)
