"""Drafts of any range of a plan's requests, made without the drafts before it.

What one draft leaves to the next is little: the number of the next code, and where each stream of rows is read on. A
:class:`Mark` holds that, so that ranges can be made in any order, in other processes too, and are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ais_bench_prefix_cache.datasets.text.drafts import Draft, DraftWriter, Request
from ais_bench_prefix_cache.datasets.text.exactness import WholePrompts, check_seeds
from ais_bench_prefix_cache.datasets.text.request_seeds import request_random_seed

if TYPE_CHECKING:
    from ais_bench_prefix_cache.datasets.text.canonical import Canonical
    from ais_bench_prefix_cache.datasets.text.row_streams import RowStreams
    from ais_bench_prefix_cache.exact_text.lexicon import Lexicon
    from ais_bench_prefix_cache.exact_text.row_text import Position, RowReader
    from ais_bench_prefix_cache.exact_text.seed_codes import SeedCodes
    from ais_bench_prefix_cache.planning.plan import Plan

DRAFTS_CHECKED_AT_ONCE = 512
TOKENS_ENCODED_AT_ONCE = 1 << 18

REQUEST_COLUMNS = (
    "generation_index",
    "group",
    "occurrence_in_group",
    "dp_rank",
    "lane_sequence",
    "input_tokens",
    "max_tokens",
    "shared_prefix_tokens",
    "hit_tokens",
    "watermark_before",
    "watermark_after",
)


@dataclass(frozen=True)
class Mark:
    """What stands before a request: the next code number, and the place in each stream of rows."""

    number: int
    positions: dict[int, Position]


@dataclass(frozen=True)
class PlanRange:
    """The requests ``first``, ``first + 1`` … of a plan, in their order, and the mark before them.

    ``plan`` has their columns only; what else it says is of the whole plan.
    """

    first: int
    plan: Plan
    mark: Mark

    @property
    def last(self) -> int:
        """The index after the last request."""
        return self.first + len(self.plan)


class DraftRanges:
    """All that the drafts of a plan are made from, but the plan. It can be sent to another process."""

    def __init__(
        self,
        lexicon: Lexicon,
        codes: SeedCodes,
        canonicals: Sequence[Canonical | None],
        streams: RowStreams,
        *,
        seed_tokens: int,
        block_size: int,
        random_seed: int,
    ) -> None:
        self.lexicon = lexicon
        self.codes = codes
        self.canonicals = canonicals
        self.seed_tokens = seed_tokens
        self.block_size = block_size
        self._streams = streams
        self._random_seed = random_seed
        fill_readers = [streams.reader(lexicon, stream, reshuffle=False) for stream in range(len(streams))]
        self.writer = DraftWriter(
            lexicon, codes, canonicals, [fill_readers[stream] for stream in streams.of_group], seed_tokens
        )

    def __reduce__(self) -> tuple[Callable[..., DraftRanges], tuple[object, ...]]:
        """Readers are made anew where it arrives."""
        settings = (self.seed_tokens, self.block_size, self._random_seed)
        return _arrived, (self.lexicon, self.codes, self.canonicals, self._streams, *settings)

    def start(self, number: int) -> Mark:
        """The mark before the first request. ``number`` is the first free code number."""
        return Mark(number, {stream: reader.position for stream, reader in self._suffix_readers().items()})

    def judge(self, used_blocks: set[str], number: int) -> WholePrompts:
        """A judge of whole prompts that corrects with code numbers from ``number`` on."""
        return WholePrompts(
            self.lexicon,
            self.codes,
            self.canonicals,
            self.writer,
            lambda group: self._streams.reader(self.lexicon, self._streams.of_group[group], reshuffle=False),
            seed_tokens=self.seed_tokens,
            block_size=self.block_size,
            used_blocks=set(used_blocks),
            number=number,
        )

    def ranges(self, plan: Plan, number: int, requests: int) -> Iterator[PlanRange]:
        """The plan in ranges of so many requests. Each is passed over, which is much quicker than making it."""
        mark = self.start(number)
        for first in range(0, len(plan), requests):
            columns = {name: getattr(plan, name)[first : first + requests] for name in REQUEST_COLUMNS}
            part = PlanRange(first, replace(plan, **columns), mark)
            yield part
            mark = self._passed_over(part)

    def drafts(self, part: PlanRange, *, encode_whole: bool) -> Iterator[list[Draft]]:
        """The drafts of a range, in batches that are checked at once: few where each is encoded whole."""
        readers = self._suffix_readers(part.mark)
        number = part.mark.number
        stop = 0
        while stop < len(part.plan):
            start, stop = stop, self._batch_end(part.plan, stop, encode_whole)
            batch = []
            for request in self._requests(part, start, stop):
                number, code = self.codes.next_code(number)
                number += 1
                batch.append(self.writer.write(request, code, readers[self._streams.of_group[request.group]]))
            yield batch

    def proven_drafts(self, part: PlanRange, *, encode_whole: bool) -> Iterator[list[Draft]]:
        """Where the join proof holds: the drafts of a range, checked.

        Raises:
            GenerationError: one is not encoded as its words are.
        """
        judge = self.judge(set(), 0)

        def prove(drafts: list[Draft]) -> None:
            if encode_whole:
                judge.encode(drafts)
                judge.check(drafts)
            else:
                check_seeds(self.lexicon, drafts)

        # Encoding needs no interpreter lock: it goes on while drafts before it are used and those after it are made.
        waiting: tuple[list[Draft], Future[None]] | None = None
        with ThreadPoolExecutor(1) as encoder:
            for drafts in self.drafts(part, encode_whole=encode_whole):
                proof = encoder.submit(prove, drafts)
                if waiting is not None:
                    waiting[1].result()
                    yield waiting[0]
                waiting = drafts, proof
            if waiting is not None:
                waiting[1].result()
                yield waiting[0]

    def _requests(self, part: PlanRange, start: int, stop: int) -> Iterator[Request]:
        plan = part.plan
        columns = (plan.group, plan.shared_prefix_tokens, plan.input_tokens, plan.generation_index)
        rows = zip(*(column[start:stop].tolist() for column in columns), strict=True)
        for index, (group, shared, input_tokens, generation_index) in enumerate(rows, part.first + start):
            yield Request(index, group, shared, input_tokens, request_random_seed(self._random_seed, generation_index))

    def _passed_over(self, part: PlanRange) -> Mark:
        """The mark after a range."""
        plan, of_group = part.plan, self._streams.of_group
        readers = self._suffix_readers(part.mark)
        number = part.mark.number
        columns = (plan.group, plan.shared_prefix_tokens, plan.input_tokens)
        for group, shared, input_tokens in zip(*(column.tolist() for column in columns), strict=True):
            number = self.codes.next_code(number)[0] + 1
            tokens = self.writer.suffix_tokens(input_tokens - shared - self.seed_tokens)
            if tokens:
                reader = readers[of_group[group]]
                reader.skip_rest_of_row()
                reader.skip(tokens)
        return Mark(number, {stream: reader.position for stream, reader in readers.items()})

    def _suffix_readers(self, mark: Mark | None = None) -> dict[int, RowReader]:
        """The readers of suffixes by stream, at the mark's places or at the beginning."""
        streams = sorted({0, *self._streams.of_group})
        readers = {stream: self._streams.reader(self.lexicon, stream, reshuffle=True) for stream in streams}
        if mark is not None:
            for stream, reader in readers.items():
                reader.go_to(mark.positions[stream])
        return readers

    def _batch_end(self, plan: Plan, start: int, encode_whole: bool) -> int:
        if not encode_whole:
            return min(start + DRAFTS_CHECKED_AT_ONCE, len(plan))
        sums = np.cumsum(plan.input_tokens[start : start + DRAFTS_CHECKED_AT_ONCE])
        return min(start + max(1, int(np.searchsorted(sums, TOKENS_ENCODED_AT_ONCE))), len(plan))


def _arrived(
    lexicon: Lexicon,
    codes: SeedCodes,
    canonicals: Sequence[Canonical | None],
    streams: RowStreams,
    seed_tokens: int,
    block_size: int,
    random_seed: int,
) -> DraftRanges:
    return DraftRanges(
        lexicon, codes, canonicals, streams, seed_tokens=seed_tokens, block_size=block_size, random_seed=random_seed
    )
