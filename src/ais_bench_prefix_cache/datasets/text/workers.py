"""Lines of a text data set from several processes, in order: the same bytes as from one.

Each worker is a new process (never a fork: once a tokenizer has encoded, a fork of it hangs) that is sent what drafts
are made from, and then one range of requests after another. A worker ends with the process that started it.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ais_bench_prefix_cache.datasets.format.rows import LineBatch
from ais_bench_prefix_cache.datasets.text.kind import TextLedger
from ais_bench_prefix_cache.datasets.text.plan_sections import PrefixOrigin
from ais_bench_prefix_cache.datasets.text.text_lines import TextLines
from ais_bench_prefix_cache.foundation.ray_cluster import ray_cluster

if TYPE_CHECKING:
    from ais_bench_prefix_cache.datasets.text.assembly import AssembledPromptSet
    from ais_bench_prefix_cache.datasets.text.draft_ranges import DraftRanges, PlanRange
    from ais_bench_prefix_cache.scenario.model import Scenario

_Begun = TypeVar("_Begun")

TOKENS_IN_A_RANGE = 1 << 20
RANGES_AHEAD = 2
"""Ranges that each worker may be ahead of what is written: memory is bounded by them."""


@dataclass(frozen=True)
class LineMaker:
    """Makes the lines of any range of requests of one data set. It can be sent to another process."""

    scenario: Scenario
    prefixes: tuple[PrefixOrigin, ...]
    ranges: DraftRanges
    row_sha256: dict[int, str]
    encode_whole: bool

    def lines(self) -> TextLines:
        """What remembers escaped pieces."""
        return TextLines(self.ranges.lexicon.rows, self.row_sha256, self.ranges.block_size)

    def batches(self, part: PlanRange, lines: TextLines) -> Iterator[LineBatch]:
        """The lines of a range of a plan whose prompts are proven.

        Raises:
            GenerationError: a prompt is not encoded as its words are.
        """
        ledger = TextLedger(self.scenario, part.plan, self.prefixes, (), first=part.first)
        for drafts in self.ranges.proven_drafts(part, encode_whole=self.encode_whole):
            yield lines.batch(ledger, drafts)


def requests_in_a_range(tokens: int, requests: int) -> int:
    """How many requests of a plan with so many tokens one range has."""
    return max(1, TOKENS_IN_A_RANGE * requests // max(tokens, 1))


def batches_of_workers(maker: bytes, parts: Iterator[PlanRange], workers: int) -> Iterator[LineBatch]:
    """The lines of all ranges, in order, made by so many processes. ``maker`` is a pickled :class:`LineMaker`.

    Raises:
        GenerationError: a prompt is not encoded as its words are.
    """
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(maker,))
    try:
        futures = (executor.submit(_range, part) for part in parts)
        yield from (future.result() for future in _some_ahead(futures, workers))
    finally:
        executor.shutdown(cancel_futures=True)


def batches_of_ray(maker: bytes, parts: Iterator[PlanRange], address: str) -> Iterator[LineBatch]:
    """As :func:`batches_of_workers`, made by tasks on all cores of the Ray cluster at ``address``.

    Raises:
        ScenarioError: Ray or its cluster cannot be used.
    """
    with ray_cluster(address) as ray:
        cores = int(ray.cluster_resources().get("CPU", 1))
        sent = ray.put(maker)
        task = ray.remote(num_cpus=1)(_range_of_a_task)
        for made in _some_ahead((task.remote(sent, part) for part in parts), cores):
            try:
                yield ray.get(made)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None


def _some_ahead(begun: Iterator[_Begun], workers: int) -> Iterator[_Begun]:
    """What is begun, in order, with some more always begun: so many for each worker."""
    waiting: deque[_Begun] = deque()
    for each in begun:
        waiting.append(each)
        if len(waiting) > RANGES_AHEAD * workers:
            yield waiting.popleft()
    yield from waiting


def text_batches(
    scenario: Scenario, prompts: AssembledPromptSet, ledger: TextLedger, workers: int, ray: str | None = None
) -> Iterator[LineBatch]:
    """The lines of a data set's rows, by so many processes where its prompts are proven, else by this one.

    ``ray`` is the address of a Ray cluster that makes them instead.
    """
    maker = LineMaker(scenario, ledger.prefixes, prompts.ranges, prompts.row_sha256(), prompts.encode_whole)
    plan = ledger.plan
    if (workers > 1 or ray is not None) and prompts.proven:
        requests = requests_in_a_range(plan.total_input_tokens, len(plan))
        if ray is not None:
            return batches_of_ray(pickle.dumps(maker), prompts.parts(requests), ray)
        return batches_of_workers(pickle.dumps(maker), prompts.parts(requests), workers)
    lines = maker.lines()
    return (lines.batch(ledger, drafts) for drafts in prompts.drafts())


_sent: list[tuple[bytes, LineMaker, TextLines]] = []
"""In a worker: what it was sent, and what it remembers from range to range."""


def _begin(maker: bytes) -> None:
    """Make this process a worker."""
    # One Ctrl-C reaches all processes of a terminal: the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the cores are the workers'
    made: LineMaker = pickle.loads(maker)
    _sent.append((maker, made, made.lines()))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _range_of_a_task(maker: bytes, part: PlanRange) -> LineBatch:
    """In a worker of Ray, which does one task after another, perhaps of several data sets."""
    if not _sent or _sent[0][0] != maker:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        made: LineMaker = pickle.loads(maker)
        _sent[:] = [(maker, made, made.lines())]
    return _range(part)


def _range(part: PlanRange) -> LineBatch:
    """The lines of one range, in one piece for each file."""
    ((_, maker, lines),) = _sent
    batches = list(maker.batches(part, lines))
    files = zip(*(batch.lines for batch in batches), strict=True)
    return LineBatch(len(part.plan), tuple([b"".join(each) for each in files]))
