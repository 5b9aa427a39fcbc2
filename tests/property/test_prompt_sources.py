"""Prompts of sources on every tokenizer family: judged by the raw tokenizer over each whole text."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.doubles.tokenizer_families import FAMILIES

from ais_bench_prefix_cache.exact_text.tokenizer import load_tokenizer
from ais_bench_prefix_cache.foundation.errors import GenerationError
from ais_bench_prefix_cache.prompts import ExactTokens, PromptSource, PromptSpec
from ais_bench_prefix_cache.scenario.model import TokenizerConfig


def load(path: Path) -> tuple[Any, Any]:
    from transformers import AutoTokenizer

    return load_tokenizer(TokenizerConfig(str(path), 16, None, False)), AutoTokenizer.from_pretrained(str(path))


def source(counter: ExactTokens, spec: PromptSpec, tokens: int, phase: str = "measured") -> PromptSource:
    return PromptSource(spec, counter=counter, seed=5, case_id="case", phase=phase, input_tokens=tokens)


def common(first: list[int], second: list[int]) -> int:
    length = 0
    while length < min(len(first), len(second)) and first[length] == second[length]:
        length += 1
    return length


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_exact_and_shares_what_it_says(family: str, tokenizer_dir: Callable[[str], Path]) -> None:
    tokenizer, raw = load(tokenizer_dir(family))
    block = 32
    counter = ExactTokens(tokenizer, block_size=block)

    unique = source(counter, PromptSpec("unique"), 150)
    ids = [raw.encode(unique.prompt(index).text) for index in range(12)]
    ids += [raw.encode(source(counter, PromptSpec("unique"), 150, "warmup").prompt(index).text) for index in range(4)]
    assert {len(each) for each in ids} == {150}
    assert all(common(first, second) < block for first, second in combinations(ids, 2))

    spec = PromptSpec("shared-prefix", 0.6, 2)
    shared = source(counter, spec, 170)
    prompts = [shared.prompt(index) for index in range(12)]
    encoded = [raw.encode(prompt.text) for prompt in prompts]
    assert {len(each) for each in encoded} == {170}
    # 0.6 of 170 tokens are 102, and the nearest number of blocks is three.
    assert {(prompt.shared_prefix_tokens, prompt.shared_prefix_blocks) for prompt in prompts} == {(96, 3)}
    assert {prompt.prefix_group for prompt in prompts} == {0, 1}
    for (first, one), (second, other) in combinations(zip(prompts, encoded, strict=True), 2):
        blocks = common(one, other) // block
        assert blocks == (3 if first.prefix_group == second.prefix_group else 0)

    repeat = source(counter, PromptSpec("repeat"), 77)
    assert len(raw.encode(repeat.prompt(0).text)) == 77
    assert repeat.prompt(9).text == repeat.prompt(0).text


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    family=st.sampled_from(["gpt2", "llama2", "wordpiece", "gpt2 with eos", "unigram without split"]),
    mode=st.sampled_from(["repeat", "unique", "shared-prefix"]),
    tokens=st.integers(1, 200),
    block=st.sampled_from([8, 16, 48]),
    ratio=st.floats(0.01, 0.99),
)
def test_any_length_is_exact_or_refused(
    family: str, mode: str, tokens: int, block: int, ratio: float, tokenizer_dir: Callable[[str], Path]
) -> None:
    tokenizer, raw = load(tokenizer_dir(family))
    spec = PromptSpec(mode, ratio if mode == "shared-prefix" else None)
    try:
        made = source(ExactTokens(tokenizer, block_size=block), spec, tokens)
        texts = [made.prompt(index).text for index in range(3)]
    except GenerationError as error:
        assert {problem.code for problem in error.problems} <= {
            "PROMPT_TOO_SHORT",
            "BLOCK_SIZE_TOO_SMALL",
            "LENGTH_NOT_REACHABLE",
        }
        return
    assert [len(raw.encode(text)) for text in texts] == [tokens] * 3


@pytest.mark.parametrize("fixture", ["deepseek_tokenizer_dir", "qwen3_tokenizer_dir"])
def test_real_tokenizers_are_exact(fixture: str, request: pytest.FixtureRequest) -> None:
    tokenizer, raw = load(request.getfixturevalue(fixture))
    counter = ExactTokens(tokenizer, block_size=16)
    for spec in (PromptSpec("unique"), PromptSpec("shared-prefix", 0.5, 3)):
        made = source(counter, spec, 300)
        made.warm(8)
        assert [len(raw.encode(made.prompt(index).text)) for index in range(20)] == [300] * 20
