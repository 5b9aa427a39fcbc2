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
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ais_bench_prefix_cache.datasets.format.rows import LineBatch
from ais_bench_prefix_cache.datasets.text.kind import PrefixOrigin, TextLedger
from ais_bench_prefix_cache.datasets.text.text_lines import TextLines

if TYPE_CHECKING:
    from ais_bench_prefix_cache.datasets.text.assembly import AssembledPromptSet
    from ais_bench_prefix_cache.datasets.text.draft_ranges import DraftRanges, PlanRange
    from ais_bench_prefix_cache.scenario.model import Scenario

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
    waiting: deque[Future[LineBatch]] = deque()
    try:
        for part in parts:
            waiting.append(executor.submit(_range, part))
            if len(waiting) > RANGES_AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        executor.shutdown(cancel_futures=True)


def text_batches(
    scenario: Scenario, prompts: AssembledPromptSet, ledger: TextLedger, workers: int
) -> Iterator[LineBatch]:
    """The lines of a data set's rows, by so many processes where its prompts are proven, else by this one."""
    maker = LineMaker(scenario, ledger.prefixes, prompts.ranges, prompts.row_sha256(), prompts.encode_whole)
    plan = ledger.plan
    if workers > 1 and prompts.proven:
        requests = requests_in_a_range(plan.total_input_tokens, len(plan))
        return batches_of_workers(pickle.dumps(maker), prompts.parts(requests), workers)
    lines = maker.lines()
    return (lines.batch(ledger, drafts) for drafts in prompts.drafts())


_sent: list[tuple[LineMaker, TextLines]] = []
"""In a worker: what it was sent, and what it remembers from range to range."""


def _begin(maker: bytes) -> None:
    """Make this process a worker."""
    # One Ctrl-C reaches all processes of a terminal: the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the cores are the workers'
    made: LineMaker = pickle.loads(maker)
    _sent.append((made, made.lines()))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _range(part: PlanRange) -> LineBatch:
    """The lines of one range, in one piece for each file."""
    ((maker, lines),) = _sent
    batches = list(maker.batches(part, lines))
    files = zip(*(batch.lines for batch in batches), strict=True)
    return LineBatch(len(part.plan), tuple([b"".join(each) for each in files]))
