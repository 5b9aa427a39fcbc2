"""Which rows each group reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.doubles.plans import plan_of
from tests.doubles.prompt_plans import corpus_at, load, scenario
from tests.doubles.tokenizer_families import ENGLISH

from ais_bench_prefix_cache.datasets.text.row_streams import RowStreams
from ais_bench_prefix_cache.exact_text.lexicon import Lexicon
from ais_bench_prefix_cache.foundation.errors import ScenarioError
from ais_bench_prefix_cache.scenario.model import CorpusSelection


def test_groups_read_their_own_selection_or_the_common_one(
    tokenizer_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    corpus = corpus_at(tmp_path / "corpus.jsonl", ENGLISH)
    document = scenario(selection=CorpusSelection("indices", (4, 0)))
    own = SimpleNamespace(corpus_selection=CorpusSelection("indices", (3, 2)))
    document.prefix_cache.groups.overrides = {1: own, 2: SimpleNamespace(corpus_selection=None)}
    streams = RowStreams(document, corpus, 3)
    assert (len(streams), streams.of_group) == (2, [0, 1, 0])
    lexicon = Lexicon(load(tokenizer_dir("gpt2"))[0])
    plan = plan_of([(0, 40, 0), (1, 40, 0), (2, 40, 0)], block=8)
    streams.read(lexicon, corpus, plan, np.array([10, 10, 10]))
    lexicon.collect_fillers()
    reader = streams.reader(lexicon, 1, reshuffle=True)
    first, second = (lexicon.rows.slot[row] for row in (3, 2))
    text = reader.take(lexicon.rows.tokens[first] + lexicon.rows.tokens[second], 0)
    assert lexicon.rows.used_rows(text) == (3, 2)
    assert lexicon.rows.render(text) == " ".join(lexicon.cleaner.words(f"{ENGLISH[3]} {ENGLISH[2]}"))


def test_rows_that_do_not_exist_are_named_with_their_group(tmp_path: Path) -> None:
    corpus = corpus_at(tmp_path / "corpus.jsonl", ENGLISH)
    document = scenario()
    document.prefix_cache.groups.overrides = {1: SimpleNamespace(corpus_selection=CorpusSelection("indices", (99,)))}
    with pytest.raises(ScenarioError) as refusal:
        RowStreams(document, corpus, 2)
    (problem,) = refusal.value.problems
    assert problem.where == "scenario: prefix_cache.groups.overrides.group-1.corpus_selection.values[0]"
