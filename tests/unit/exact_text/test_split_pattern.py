"""The analysis of split patterns at a space, against the ``tokenizers`` library's own splitting."""

from __future__ import annotations

import itertools

import pytest
from tests.doubles.tokenizer_families import GPT2
from tokenizers import Regex, pre_tokenizers

from ais_bench_prefix_cache.exact_text.split_pattern import pattern_at_space

QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
KIMI = (
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = [GPT2, QWEN, CL100K, KIMI]
LOCAL_ONLY = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))|\p{N}",
    r"\w+",
    r" \p{L}+|\S",
]
NOT_LOCAL = {
    r"[\p{L} ]+": "a match may hold a word character followed by a space",
    r"\p{L}+\s?": "a match may hold a word character followed by a space",
    r"(?:\p{L}{2} )+": "a match may hold a word character followed by a space",
    r"(?<=\s)\S+": "a look-behind",
    r"\S+(?!\s)|\s+": "a look-ahead that can see the space",
    r"\p{L}+$|\s+": "the anchor '$' after a word character",
    r"^\s+|\S+": "the anchor '^'",
    r"\bword\b": "the escape \\b",
    r"\p{L}*": "it may match nothing",
    r"[[:alpha:]]+": "a POSIX class",
}
WORDS = ["ab", "7", "1234", "it's", "don't", "!?", "a1b2", "中文", "…", "x'", "3.5", "É", "#tag"]


def pieces(pattern: str, text: str) -> list[str]:
    return [piece for piece, _ in pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str(text)]


@pytest.mark.parametrize("pattern", SPLITS)
def test_a_pattern_said_to_split_does_split_before_every_single_space(pattern: str) -> None:
    found = pattern_at_space(pattern, " ")
    assert (found.local, found.splits) == (True, True)
    for left, right in itertools.product(WORDS, WORDS):
        middle = pieces(pattern, f"{WORDS[0]} {right}")[len(pieces(pattern, WORDS[0])) :]
        assert pieces(pattern, f"{left} {right}") == pieces(pattern, left) + middle
        assert middle[0].startswith(" ")


@pytest.mark.parametrize("pattern", LOCAL_ONLY)
def test_a_pattern_that_leaves_spaces_alone_is_local_without_splitting(pattern: str) -> None:
    found = pattern_at_space(pattern, " ")
    assert (found.local, found.splits) == (True, False)


@pytest.mark.parametrize(("pattern", "reason"), NOT_LOCAL.items())
def test_a_pattern_that_may_look_across_is_not_proven(pattern: str, reason: str) -> None:
    found = pattern_at_space(pattern, " ")
    assert (found.local, found.splits, found.reason) == (False, False, reason)


def test_a_possessive_repeat_does_not_count_as_skippable() -> None:
    # `\s*+` takes the only space, so the second `\s` fails: nothing begins at a single space.
    assert not pattern_at_space(r"\s*+\s|\S+", " ").splits
    assert pieces(r"\p{L}+|\s*+\s", "ab 1") == ["ab", " 1"]


def test_classes_are_judged_for_the_symbol_that_stands_for_the_space() -> None:
    assert pattern_at_space(r"▁|[^▁]+", "▁").splits
    assert not pattern_at_space(r"\S+", "▁").local
    assert pattern_at_space(r"\S+", " ").local
