"""Which tokenizers are proven to encode words one by one, and what is named where one is not.

That a proof is true is judged elsewhere, by whole prompts; here, that it is found where it should be, so that prompts
of the common families need not be encoded whole.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.doubles.tokenizer_families import BLOOM, FAMILIES, UNPROVEN, split_at
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from ais_bench_prefix_cache.exact_text.join_proof import JoinProof, prove_joins

NOT_PROVEN = {
    "bloom": "1 tokens of the vocabulary hold a space after another character, such as '.Ġ'",
    "unigram without split": "nothing splits the text at spaces before the Unigram model",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_but_those_named_is_proven(family: str) -> None:
    proof = prove_joins(FAMILIES[family]())
    if family in NOT_PROVEN:
        assert proof == JoinProof(False, NOT_PROVEN[family])
    else:
        assert proof.proven, proof.reason


def test_gemma_is_proven_although_it_splits_at_spaces_that_are_gone() -> None:
    assert prove_joins(FAMILIES["gemma"]()) == JoinProof(
        True, "no token of the BPE vocabulary holds '▁' after another character"
    )


def test_a_token_across_a_space_forbids_the_words_that_it_needs() -> None:
    assert prove_joins(FAMILIES["gemma with a token across a space"]()) == JoinProof(
        True,
        "no token of the BPE vocabulary holds '▁' after another character and before a word that does not begin with "
        "'How'",
        ("How",),
    )


def test_a_token_that_ends_with_a_space_after_a_letter_is_an_obstacle() -> None:
    definition = json.loads(FAMILIES["gemma"]().to_str())
    definition["model"]["vocab"]["a▁"] = max(definition["model"]["vocab"].values()) + 1
    definition["model"]["merges"].append(["a", "▁"])
    assert prove_joins(Tokenizer.from_str(json.dumps(definition))) == JoinProof(
        False, "1 tokens of the vocabulary hold a space after another character, such as 'a▁'"
    )


def test_many_tokens_across_spaces_are_an_obstacle() -> None:
    tokenizer = UNPROVEN["byte-level across spaces"]()
    crossing = sorted(token for token in tokenizer.get_vocab() if "Ġ" in token.lstrip("Ġ"))
    assert len(crossing) > 100
    assert prove_joins(tokenizer) == JoinProof(
        False,
        f"{len(crossing)} tokens of the vocabulary hold a space after another character, such as {crossing[0]!r}",
    )


def word_level(normalizer: Any = None, pre_tokenizer: Any = None) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        (
            word_level(normalizers.Replace(" ", "_"), pre_tokenizers.WhitespaceSplit()),
            JoinProof(False, "the normalizer replaces the space by '_'"),
        ),
        (
            word_level(normalizers.Replace("a b", "c"), pre_tokenizers.WhitespaceSplit()),
            JoinProof(False, "the normalizer replaces 'a b', which holds a space"),
        ),
        (
            word_level(None, pre_tokenizers.Split(" ", "merged_with_previous")),
            JoinProof(
                False, "the pre-tokenizer splits at ' ' (MergedWithPrevious), which is not known to end at a space"
            ),
        ),
        (
            word_level(None, split_at(r"\w+\s?", "removed", invert=True)),
            JoinProof(
                False,
                "the pre-tokenizer's expression is not known to stop at a space: a match may hold a word character "
                "followed by a space",
            ),
        ),
        (
            word_level(None, split_at(r"\w+", "removed", invert=True)),
            JoinProof(True, "the pre-tokenizer Split splits before every single space"),
        ),
        (
            word_level(None, split_at(r"\w+", "isolated")),
            JoinProof(False, "nothing splits the text at spaces before the WordLevel model"),
        ),
        (
            word_level(None, split_at(BLOOM, "isolated")),
            JoinProof(False, "nothing splits the text at spaces before the WordLevel model"),
        ),
    ],
)
def test_a_definition_is_proven_or_its_obstacle_named(tokenizer: Tokenizer, expected: JoinProof) -> None:
    assert prove_joins(tokenizer) == expected
