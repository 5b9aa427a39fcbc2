"""What is left for words in seeds and suffixes, and the codes that tell prompts apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.doubles.plans import plan_of
from tests.doubles.prompt_plans import load
from tests.doubles.tokenizer_families import ENGLISH

from ais_bench_prefix_cache.datasets.text.seeds import check_short_texts, choose_codes, word_tokens
from ais_bench_prefix_cache.exact_text.lexicon import Lexicon
from ais_bench_prefix_cache.foundation.errors import GenerationError

OpenLexicon = Callable[[str], Lexicon]


@pytest.fixture
def opened(tokenizer_dir: Callable[[str], Path]) -> OpenLexicon:
    def lexicon_of(family: str) -> Lexicon:
        lexicon = Lexicon(load(tokenizer_dir(family))[0])
        lexicon.read(ENGLISH, range(len(ENGLISH)))
        lexicon.collect_fillers()
        return lexicon

    return lexicon_of


@pytest.mark.parametrize(
    ("family", "seed", "suffix"),
    [
        ("gpt2", [8, 8, 8], [9, 1, 0]),
        ("llama2", [7, 8, 8], [9, 1, 0]),  # a BOS before the prompt, in the seed where nothing is shared
        ("gpt2 with eos", [8, 8, 7], [8, 0, 0]),  # an EOS after it, in the suffix where that has room
    ],
)
def test_special_tokens_take_their_place(opened: OpenLexicon, family: str, seed: list[int], suffix: list[int]) -> None:
    words = word_tokens(plan_of([(0, 17, 0), (0, 17, 1), (0, 16, 1)], block=8), opened(family))
    assert words.seed.tolist() == seed
    assert words.suffix.tolist() == suffix


def test_requests_that_are_too_short_are_refused(opened: OpenLexicon) -> None:
    with pytest.raises(GenerationError, match="23 tokens do not hold 16 shared and 8 seed tokens"):
        word_tokens(plan_of([(0, 23, 2)], block=8), opened("gpt2"))
    with pytest.raises(GenerationError, match="the first block of all prompts is the same"):
        word_tokens(plan_of([(0, 23, 2)], block=1), opened("llama2"))


@pytest.mark.parametrize("block", [2, 8, 16])
def test_codes_suffice_and_fit_into_a_block(opened: OpenLexicon, block: int) -> None:
    lexicon = opened("gpt2")
    plan = plan_of([(n % 2, 10 * block, n % 4) for n in range(50)], block=block)
    words = word_tokens(plan, lexicon)
    codes = choose_codes(lexicon, plan, words, 42)
    assert codes.capacity >= 2 * 50
    assert max(codes.first_tokens, codes.middle_tokens) <= block
    check_short_texts(lexicon, plan, words, codes)
