"""The lines of any range of a text data set, and of all of them in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ais_bench_prefix_cache.datasets.format.rows import LineBatch
from ais_bench_prefix_cache.datasets.range_workers import made_in_order, requests_in_a_range
from ais_bench_prefix_cache.datasets.text.kind import TextLedger
from ais_bench_prefix_cache.datasets.text.plan_sections import PrefixOrigin
from ais_bench_prefix_cache.datasets.text.text_lines import TextLines

if TYPE_CHECKING:
    from ais_bench_prefix_cache.datasets.text.assembly import AssembledPromptSet
    from ais_bench_prefix_cache.datasets.text.draft_ranges import DraftRanges, PlanRange
    from ais_bench_prefix_cache.scenario.model import Scenario


@dataclass(frozen=True)
class LineMaker:
    """Makes the lines of any range of requests whose prompts are proven. It can be sent to another process."""

    scenario: Scenario
    prefixes: tuple[PrefixOrigin, ...]
    ranges: DraftRanges
    row_sha256: dict[int, str]
    encode_whole: bool

    def begin(self) -> Callable[[PlanRange], LineBatch]:
        """Makes ranges; raises GenerationError where a prompt is not encoded as its words are."""
        lines = self.lines()

        def make(part: PlanRange) -> LineBatch:
            batches = list(self.batches(part, lines))
            files = zip(*(batch.lines for batch in batches), strict=True)
            return LineBatch(len(part.plan), tuple([b"".join(each) for each in files]))

        return make

    def lines(self) -> TextLines:
        """What remembers escaped pieces."""
        return TextLines(self.ranges.lexicon.rows, self.row_sha256, self.ranges.block_size)

    def batches(self, part: PlanRange, lines: TextLines) -> Iterator[LineBatch]:
        """The lines of a range, some at a time."""
        ledger = TextLedger(self.scenario, part.plan, self.prefixes, (), first=part.first)
        for drafts in self.ranges.proven_drafts(part, encode_whole=self.encode_whole):
            yield lines.batch(ledger, drafts)


def text_batches(
    scenario: Scenario, prompts: AssembledPromptSet, ledger: TextLedger, workers: int, ray: str | None = None
) -> Iterator[LineBatch]:
    """The lines of a data set's rows, by so many processes where its prompts are proven, else by this one.

    ``ray`` is the address of a Ray cluster that makes them instead.
    """
    maker = LineMaker(scenario, ledger.prefixes, prompts.ranges, prompts.row_sha256(), prompts.encode_whole)
    plan = ledger.plan
    if (workers > 1 or ray is not None) and prompts.proven:
        parts = prompts.parts(requests_in_a_range(plan.total_input_tokens, len(plan)))
        return made_in_order(maker, parts, workers=workers, ray=ray)
    lines = maker.lines()
    return (lines.batch(ledger, drafts) for drafts in prompts.drafts())
