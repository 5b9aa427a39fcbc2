"""What groups share ends with a word at each length at which a request stops sharing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.doubles.plans import plan_of
from tests.doubles.prompt_plans import corpus_at, load, scenario
from tests.doubles.tokenizer_families import ENGLISH

from ais_bench_prefix_cache.datasets.text.canonical import forbid_canonical_blocks, write_canonicals
from ais_bench_prefix_cache.datasets.text.row_streams import RowStreams
from ais_bench_prefix_cache.datasets.text.seeds import choose_codes, word_tokens
from ais_bench_prefix_cache.exact_text.lexicon import Lexicon
from ais_bench_prefix_cache.foundation.errors import GenerationError

BLOCK = 8


@pytest.mark.parametrize("family", ["gpt2", "llama2", "unigram without split"])
def test_each_cut_is_the_beginning_of_a_prompt(
    family: str, tokenizer_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    tokenizer, raw = load(tokenizer_dir(family))
    corpus = corpus_at(tmp_path / "corpus.jsonl", ENGLISH)
    plan = plan_of([(0, 70, 1), (0, 70, 3), (0, 70, 6), (1, 70, 0), (2, 70, 4)], block=BLOCK)
    streams, lexicon = RowStreams(scenario(), corpus, 3), Lexicon(tokenizer)
    words = word_tokens(plan, lexicon)
    streams.read(lexicon, corpus, plan, words.suffix)
    lexicon.collect_fillers()
    codes = choose_codes(lexicon, plan, words, 42)
    canonicals, number = write_canonicals(lexicon, plan, codes, streams, corpus, 42)
    assert canonicals[1] is None
    assert number >= 2
    for canonical, lengths in ((canonicals[0], [8, 24, 48]), (canonicals[2], [32])):
        assert canonical is not None
        assert list(canonical.cuts) == lengths
        assert sum(map(len, canonical.blocks(BLOCK))) == lengths[-1]
        for length in lengths:
            ids = raw(f"{canonical.text(length)} {lexicon.table.anchor}")["input_ids"]
            assert ids[:length] == canonical.ids[:length]
            assert canonical.text(length).split(" ")[-1] == lexicon.table.texts[canonical.cuts[length].last_word]
    used = codes.forbidden
    forbid_canonical_blocks(codes, canonicals, block_size=BLOCK, before=lexicon.before, needed=10)
    assert codes.forbidden >= used + 2
    with pytest.raises(GenerationError, match="seeds must differ in their first block of 8 token"):
        forbid_canonical_blocks(codes, canonicals, block_size=BLOCK, before=lexicon.before, needed=codes.capacity)
