"""What may stand in a prompt, where words may be cut, and the ids of words in the middle of a text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer, load_tokenizer
from ais_bench_prefix_cache.exact_text.words import MAX_WORD_CHARACTERS, TextCleaner, WordTable, cuts, vocabulary_words
from ais_bench_prefix_cache.scenario.model import TokenizerConfig

CORPUS = ["sells", "48", "clips,", "naïve", "处处闻啼鸟", "👍🏽"]


@pytest.fixture(scope="module", params=["gpt2", "llama2", "wordpiece"])
def tokenizer(request: pytest.FixtureRequest, tokenizer_dir: Callable[[str], Path]) -> PromptTokenizer:
    return load_tokenizer(TokenizerConfig(str(tokenizer_dir(request.param)), 16, None, False))


@pytest.mark.parametrize(
    ("word", "allowed"),
    [
        ("abc", [1, 2]),
        ("e\u0301t", [2]),
        ("👩‍👩‍👧x", [5]),
        ("🇨🇳🇩🇪", [2]),
        ("👍🏽!", [2]),
        ("각\u1100\u1161\u11a8x", [1, 4]),
        ("น้ำx", [3]),
        # A format character holds its neighbours together, wherever Unicode would allow a cut.
        ("so\u00adft", [1, 4]),
        ("a", []),
        ("", []),
    ],
)
def test_words_are_cut_between_graphemes(word: str, allowed: list[int]) -> None:
    assert cuts(word) == allowed


def test_a_row_loses_what_no_prompt_may_hold(tokenizer: PromptTokenizer) -> None:
    words = TextCleaner(tokenizer).words
    assert words("  say {name}\x07 or \ufffd▁x \u0301mark join\u200d ") == ["say", "name", "or", "x", "mark", "join"]
    for token in tokenizer.added_token_texts():
        assert all(token not in word for word in words(f"before {token} after{token}"))


def test_long_words_are_divided_after_punctuation(tokenizer: PromptTokenizer) -> None:
    words = TextCleaner(tokenizer).words
    sentence = "天" * 30 + "。" + "地" * 50
    assert words(sentence) == [sentence[:31], sentence[31:]]
    parts = words("ab" * 100)
    assert [len(part) for part in parts] == [MAX_WORD_CHARACTERS] * 3 + [200 - 3 * MAX_WORD_CHARACTERS]
    assert "".join(parts) == "ab" * 100
    one_grapheme = "e" + "\u0301" * 100
    assert words(f"x{one_grapheme}y") == ["x", "y"]


def test_the_table_has_the_ids_of_words_after_a_space(tokenizer: PromptTokenizer) -> None:
    table = WordTable(tokenizer, TextCleaner(tokenizer))
    table.add(CORPUS)
    for word in CORPUS:
        number = table.number[word]
        assert table.counts[number] == len(table.ids[number]) > 0
        (without, with_word) = tokenizer.encode_plain_batch(
            [f"{table.anchor} {table.anchor}", f"{table.anchor} {word} {table.anchor}"]
        )
        middle = len(table.anchor_middle)
        expected = [*without[:-middle], *table.ids[number], *without[-middle:]]
        assert with_word == expected
    starts = table.first_ids(table.usable())
    assert starts == [
        tuple(ids) for ids in tokenizer.encode_plain_batch([table.texts[number] for number in table.usable()])
    ]


def test_vocabulary_words_stand_in_prompts_as_they_are(tokenizer: PromptTokenizer) -> None:
    cleaner = TextCleaner(tokenizer)
    common = vocabulary_words(tokenizer, cleaner, common=True, most=20)
    assert len(common) == 20
    assert all(word.isascii() and word.isalpha() and len(word) >= 3 for word in common)
    every = vocabulary_words(tokenizer, cleaner, common=False)
    assert all(cleaner.words(word) == [word] for word in every)
    assert set(common) <= set(every)
