"""Rows that are not encoded as their words are: refuted proofs, and words left out where nothing is proven."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.doubles.tokenizer_families import ENGLISH

from ais_bench_prefix_cache.exact_text.exact_rows import UnlikeRow, collect_fillers, settle_rows
from ais_bench_prefix_cache.exact_text.row_text import EncodedRows
from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer, load_tokenizer
from ais_bench_prefix_cache.exact_text.words import TextCleaner, WordTable
from ais_bench_prefix_cache.scenario.model import TokenizerConfig


@pytest.fixture
def tokenizer(tokenizer_dir: Callable[[str], Path]) -> PromptTokenizer:
    return load_tokenizer(TokenizerConfig(str(tokenizer_dir("gpt2")), 16, None, False))


def rows_of(tokenizer: PromptTokenizer, texts: Sequence[str]) -> EncodedRows:
    cleaner = TextCleaner(tokenizer)
    rows = EncodedRows(WordTable(tokenizer, cleaner), cleaner)
    rows.add(range(len(texts)), texts)
    return rows


def make_unlike(tokenizer: PromptTokenizer, monkeypatch: pytest.MonkeyPatch, pair: str) -> None:
    """Let the tokenizer encode two words beside each other as one more token."""
    whole = PromptTokenizer.encode_plain_batch

    def otherwise(self: PromptTokenizer, texts: Sequence[str]) -> list[list[int]]:
        return [[9, *ids] if pair in text else ids for text, ids in zip(texts, whole(self, texts), strict=True)]

    monkeypatch.setattr(PromptTokenizer, "encode_plain_batch", otherwise)


def test_rows_like_their_words_stay(tokenizer: PromptTokenizer) -> None:
    rows = rows_of(tokenizer, ENGLISH)
    texts = list(rows.text)
    settle_rows(rows, tokenizer, 0, proven=True)
    assert rows.text == texts


def test_a_row_that_refutes_a_proof_is_named(tokenizer: PromptTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(tokenizer, ["one two", "three four"])
    make_unlike(tokenizer, monkeypatch, "three four")
    with pytest.raises(UnlikeRow) as refuted:
        settle_rows(rows, tokenizer, 0, proven=True)
    assert refuted.value.row == 1


def test_without_a_proof_the_first_differing_word_goes(
    tokenizer: PromptTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(tokenizer, ["one two", "three four five"])
    make_unlike(tokenizer, monkeypatch, "three four")
    settle_rows(rows, tokenizer, 0, proven=False)
    assert rows.text == ["one two", "four five"]


def test_one_token_can_always_be_filled(tokenizer: PromptTokenizer) -> None:
    rows = rows_of(tokenizer, ["incomprehensibilities"])
    fillers = collect_fillers(rows.table, tokenizer, TextCleaner(tokenizer))
    assert fillers.has(1)
