"""Codes are different for every number, however they are placed."""

from __future__ import annotations

import pytest

from ais_bench_prefix_cache.exact_text.lexicon import Lexicon
from ais_bench_prefix_cache.exact_text.seed_codes import SeedCodes, find_alphabets

from .conftest import OpenLexicon


@pytest.fixture(scope="module", params=["gpt2", "llama2", "bytes only"])
def lexicon(request: pytest.FixtureRequest, open_lexicon: OpenLexicon) -> Lexicon:
    return open_lexicon(request.param)


def codes_of(lexicon: Lexicon, digits: int = 2, seed: int = 7, words: int = 9) -> SeedCodes:
    alphabets = find_alphabets(lexicon.table, lexicon.table.usable()[: 4 * words], random_seed=seed)
    return SeedCodes(max(alphabets, key=lambda alphabet: len(alphabet.words)), digits, seed)


def test_texts_and_ids_are_those_of_the_tokenizer(lexicon: Lexicon) -> None:
    codes, anchor = codes_of(lexicon), lexicon.table.anchor
    for number in range(20):
        value = codes.value(number)
        text = codes.text(value)
        (alone, before, after) = lexicon.tokenizer.encode_plain_batch([text, anchor, f"{anchor} {text}"])
        assert codes.ids(value, at_start=True) == alone
        assert [*before, *codes.ids(value, at_start=False)] == after
        assert len(alone) == codes.first_tokens
        assert len(after) - len(before) == codes.middle_tokens
        assert lexicon.table.texts[codes.last_word(value)] == text.split(" ")[-1]


def test_every_number_has_a_code_of_its_own_in_both_places(lexicon: Lexicon) -> None:
    codes = codes_of(lexicon)
    values = [codes.value(number) for number in range(codes.capacity)]
    assert sorted(values) == list(range(codes.capacity))
    shortest = min(codes.first_tokens, codes.middle_tokens)
    beginnings = {tuple(codes.ids(value, at_start=True)[:shortest]) for value in values}
    middles = {tuple(codes.ids(value, at_start=False)[:shortest]) for value in values}
    if codes.first_tokens == codes.middle_tokens:
        assert len(beginnings) == len(middles) == codes.capacity


def test_forbidden_codes_are_passed_over(lexicon: Lexicon) -> None:
    codes = codes_of(lexicon)
    third = codes.value(3)
    codes.forbid([*codes.ids(third, at_start=False), 1, 2, 3])
    assert codes.value(3) == codes.value(4) != third
    assert (codes.forbidden, codes.free) == (1, codes.capacity - 1)
    fifth = codes.value(5)
    codes.forbid(codes.ids(fifth, at_start=True))
    codes.forbid([10**6])
    assert codes.next_code(5)[0] == 6
    assert codes.forbidden == 2
