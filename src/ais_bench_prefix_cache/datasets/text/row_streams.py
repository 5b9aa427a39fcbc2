"""Which corpus rows each group of requests reads, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ais_bench_prefix_cache.exact_text.corpus import select_rows
from ais_bench_prefix_cache.exact_text.row_text import RowReader
from ais_bench_prefix_cache.foundation.names import group_name

if TYPE_CHECKING:
    from ais_bench_prefix_cache.exact_text.corpus import Corpus
    from ais_bench_prefix_cache.exact_text.lexicon import Lexicon
    from ais_bench_prefix_cache.planning.plan import Int64Column, Plan
    from ais_bench_prefix_cache.scenario.model import Scenario


class RowStreams:
    """One stream of rows for all groups, and one for each group whose override selects rows of its own.

    ``of_group[g]`` is the stream of group ``g``; 0 is the common one.

    Raises:
        ScenarioError: a selection names rows that the corpus has not.
    """

    def __init__(self, scenario: Scenario, corpus: Corpus, group_count: int) -> None:
        random_seed = scenario.run.random_seed
        common, where = scenario.corpus.selection, "scenario: corpus.selection"
        self._selections = [select_rows(corpus, common, random_seed=random_seed, labels=("corpus",), where=where)]
        self.of_group = [0] * group_count
        for group, override in sorted(scenario.prefix_cache.groups.overrides.items()):
            selection = override.corpus_selection
            if selection is not None and group < group_count:
                self.of_group[group] = len(self._selections)
                where = f"scenario: prefix_cache.groups.overrides.{group_name(group)}.corpus_selection"
                labels = ("corpus", group)
                self._selections.append(
                    select_rows(corpus, selection, random_seed=random_seed, labels=labels, where=where)
                )

    def __len__(self) -> int:
        return len(self._selections)

    def read(self, lexicon: Lexicon, corpus: Corpus, plan: Plan, suffix_words: Int64Column) -> None:
        """Encode as many rows of each stream as the suffixes of its requests (tokens of words each) can use, once."""
        stream_of_request = np.asarray(self.of_group, dtype=np.int64)[plan.group]
        for stream, selection in enumerate(self._selections):
            mine = stream_of_request == stream
            requests = int(mine.sum())
            if requests or not stream:
                order = list(dict.fromkeys(selection.cycle(0)))
                lexicon.read_corpus(corpus, order, tokens=int(suffix_words[mine].sum()), starts=requests)

    def reader(self, lexicon: Lexicon, stream: int, *, reshuffle: bool) -> RowReader:
        """A reader of a stream's rows from its beginning; ``reshuffle`` orders each pass anew, where rows are drawn."""
        selection, slot = self._selections[stream], lexicon.rows.slot

        def cycle(number: int) -> list[int]:
            return [slot[row] for row in selection.cycle(number if reshuffle else 0) if row in slot]

        return RowReader(lexicon.rows, lexicon.fillers, cycle)
