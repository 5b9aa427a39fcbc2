"""The public API of prompt sources: specifications, remembering and forgetting, digests."""

from __future__ import annotations

import hashlib
from itertools import combinations
from typing import Any

import pytest

from ais_bench_prefix_cache.foundation.errors import GenerationError
from ais_bench_prefix_cache.prompts import (
    GENERATOR_VERSION,
    MIN_CONTROLLED_TOKENS,
    Prompt,
    PromptSource,
    PromptSpec,
    WordEstimate,
)
from ais_bench_prefix_cache.prompts.source_words import NONCE_WORDS

SHARED = PromptSpec("shared-prefix", 0.5, 3)


def source(spec: PromptSpec, **changes: Any) -> PromptSource:
    settings: dict[str, Any] = {"seed": 1, "case_id": "case", "phase": "measured", "input_tokens": 60}
    return PromptSource(spec, counter=WordEstimate(), **(settings | changes))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (("sometimes",), ["mode: it is 'sometimes' (allowed: repeat, unique, shared-prefix)"]),
        (
            ("unique", 0.5, 2),
            [
                "shared_prefix_ratio: it is 0.5, but the mode is unique (allowed: none, or the mode shared-prefix)",
                "prefix_groups: it is 2, but the mode is unique (allowed: none, or the mode shared-prefix)",
            ],
        ),
        (
            ("shared-prefix", 1.0, 0),
            [
                "shared_prefix_ratio: it is 1.0 (allowed: a number between 0 and 1, both excluded)",
                "prefix_groups: it is 0 (allowed: a whole number from 1 up)",
            ],
        ),
        (("shared-prefix",), ["shared_prefix_ratio: it is None (allowed: a number between 0 and 1, both excluded)"]),
        (
            ("shared-prefix", float("nan")),
            ["shared_prefix_ratio: it is nan (allowed: a number between 0 and 1, both excluded)"],
        ),
    ],
)
def test_inconsistent_specifications_are_refused_with_every_problem(fields: tuple[Any, ...], said: list[str]) -> None:
    with pytest.raises(GenerationError) as caught:
        PromptSpec(*fields)
    assert [str(problem) for problem in caught.value.problems] == said


def test_a_specification_as_a_record() -> None:
    assert PromptSpec().to_record() == {"mode": "repeat", "generator_version": GENERATOR_VERSION}
    assert PromptSpec("shared-prefix", 0.25).to_record() == {
        "mode": "shared-prefix",
        "generator_version": GENERATOR_VERSION,
        "shared_prefix_ratio": 0.25,
        "prefix_groups": 1,
    }


def test_the_nonce_alphabet_has_256_words() -> None:
    assert len(set(NONCE_WORDS)) == len(NONCE_WORDS) == 256
    assert all(word.isascii() and word.isalpha() for word in NONCE_WORDS)


def test_repeat_is_one_prompt_for_every_index_phase_and_case() -> None:
    repeated: dict[tuple[int, int], Prompt] = {}
    first = source(PromptSpec(), repeated=repeated)
    second = source(PromptSpec(), repeated=repeated, phase="warmup", case_id="other")
    assert first.prompt(0) is first.prompt(7) is second.prompt(3)
    assert source(PromptSpec()).prompt(0).text == first.prompt(0).text
    assert source(PromptSpec(), seed=2).prompt(0).text != first.prompt(0).text
    assert source(PromptSpec(), input_tokens=1).prompt(0).count.value == 1


def test_nonces_depend_on_seed_case_phase_and_index() -> None:
    made = [
        source(spec, **changes).prompt(index)
        for spec in (PromptSpec("unique"),)
        for changes in ({}, {"seed": 2}, {"phase": "warmup"}, {"case_id": "other"})
        for index in range(50)
    ]
    heads = [prompt.text.split()[:8] for prompt in made]
    assert all(first != second for first, second in combinations(heads, 2))
    assert len({prompt.prompt_id for prompt in made}) == len(made)
    assert source(PromptSpec("unique")).prompt(3).text == made[3].text


def test_estimated_prompts_have_as_many_words() -> None:
    for spec in (PromptSpec("unique"), SHARED):
        prompt = source(spec).prompt(0)
        assert len(prompt.text.split()) == 60
        assert (prompt.planned.value, prompt.planned.exact, prompt.planned.source) == (60, False, "words")
        assert prompt.count == prompt.planned
        assert prompt.shared_prefix_blocks is None


def test_groups_share_half_of_their_words() -> None:
    made = [source(SHARED).prompt(index) for index in range(30)]
    assert {prompt.prefix_group for prompt in made} == {0, 1, 2}
    for first, second in combinations(made, 2):
        one, other = first.text.split(), second.text.split()
        assert (one[:30] == other[:30]) == (first.prefix_group == second.prefix_group)
        assert one[30:38] != other[30:38]
    # The warm-up of the same case has prefixes of its own.
    warmup = {source(SHARED, phase="warmup").prompt(index).text.split()[0:8].__str__() for index in range(30)}
    assert not warmup & {prompt.text.split()[0:8].__str__() for prompt in made}


def test_prompts_are_remembered_until_they_are_forgotten() -> None:
    made = source(PromptSpec("unique"))
    first = made.take(0)
    assert made.prompt(0) is first
    digest = made.digest()
    made.forget(0)
    assert made.digest() == digest
    assert made.take(0) is not first
    assert made.take(0).text == first.text
    assert made.digest() == digest


def test_the_phase_digest_is_in_index_order_and_knows_only_what_was_handed_out() -> None:
    made = source(PromptSpec("unique"))
    made.warm()
    assert made.digest() is None
    made.prepare([4, 1, 0])
    lines = [f"generator {GENERATOR_VERSION}"]
    for index in (0, 1, 4):
        text = source(PromptSpec("unique")).prompt(index).text
        lines.append(f"{index} {hashlib.sha256(text.encode()).hexdigest()[:16]}")
    assert made.digest() == hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    in_order = source(PromptSpec("unique"))
    in_order.prepare([0, 1, 4])
    assert in_order.digest() == made.digest()


@pytest.mark.parametrize("spec", [PromptSpec("unique"), SHARED])
def test_prompts_too_short_to_control_are_refused(spec: PromptSpec) -> None:
    assert source(spec, input_tokens=MIN_CONTROLLED_TOKENS).minimum_tokens == 32
    with pytest.raises(GenerationError) as caught:
        source(spec, input_tokens=31)
    assert str(caught.value) == (
        f"input tokens: prompts of 31 token(s) cannot be controlled in the mode {spec.mode} (allowed: at least 32)"
    )
