"""Markers are different, and have the ids that they say, at the start of a text and after a space."""

from __future__ import annotations

import pytest

from ais_bench_prefix_cache.exact_text.seed_markers import SeedMarkers

from .conftest import OpenLexicon


@pytest.mark.parametrize(
    ("family", "prompts", "single"), [("gpt2", 40, True), ("llama2", 40, True), ("bytes only", 40, False)]
)
def test_markers_are_unique_and_have_the_ids_that_they_say(
    open_lexicon: OpenLexicon, family: str, prompts: int, single: bool
) -> None:
    lexicon = open_lexicon(family)
    markers = SeedMarkers(lexicon, prompts=prompts, block_size=16, seed=3)
    assert markers.single is single
    assert markers.count >= prompts
    anchor, encode = lexicon.table.anchor, lexicon.tokenizer.encode_plain_batch
    seen = set()
    for number in range(prompts):
        start, middle = markers.text(number, at_start=True), markers.text(number, at_start=False)
        (alone, before, after) = encode([f"{start} {anchor}", anchor, f"{anchor} {middle} {anchor}"])
        tail = len(lexicon.table.anchor_middle)
        assert tuple(alone[:-tail]) == markers.ids(number, at_start=True)
        assert tuple(after[len(before) : -tail]) == markers.ids(number, at_start=False)
        assert len(alone) - tail == markers.tokens(at_start=True)
        seen.add(markers.ids(number, at_start=False))
    assert len(seen) == prompts


def test_words_that_no_row_holds_come_first(open_lexicon: OpenLexicon) -> None:
    lexicon = open_lexicon("llama2", ["Every day she buys a house"])
    in_rows = set(lexicon.rows.text[0].split())
    markers = SeedMarkers(lexicon, prompts=20, block_size=16, seed=3)
    assert in_rows.isdisjoint(markers.text(number, at_start=False) for number in range(20))
