"""Prompts that share exactly a given part of a prefix, judged by the raw tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_bench_prefix_cache.exact_text.tokenizer import load_tokenizer
from ais_bench_prefix_cache.running.hybrid_warmup import SharedLength, shared_lengths, sharers
from ais_bench_prefix_cache.scenario.model import TokenizerConfig

QUESTION = (
    "Natalia sold clips to 48 of her friends — in April, 五月卖了一半 🙂 as many. How many did she sell altogether? "
    * 3
)


def row(group: str, shared: int, question: str) -> dict[str, object]:
    return {"group_id": group, "shared_prefix_tokens": shared, "question": question}


def test_every_distinct_length_of_a_group_longest_first() -> None:
    rows = [row("group-0", 32, "a"), row("group-1", 16, "b"), row("group-0", 0, "c"), row("group-0", 64, "d")]
    assert shared_lengths([*rows, *rows]) == [
        SharedLength("group-0", 64, "d"),
        SharedLength("group-0", 32, "a"),
        SharedLength("group-1", 16, "b"),
    ]


@pytest.mark.parametrize("fixture", ["deepseek_tokenizer_dir", "qwen3_tokenizer_dir"])
@pytest.mark.parametrize("tokens", [16, 32, 48, 64])
def test_sharers_have_the_prefix_and_nothing_more_in_common(
    request: pytest.FixtureRequest, fixture: str, tokens: int
) -> None:
    from transformers import AutoTokenizer

    directory: Path = request.getfixturevalue(fixture)
    raw = AutoTokenizer.from_pretrained(str(directory))
    texts: Iterator[str] = iter(["alpha ends", "beta ends", "gamma ends", "delta ends"])
    pairs = sharers(
        [SharedLength("group-0", tokens, QUESTION)],
        load_tokenizer(TokenizerConfig(str(directory), 16, None, False)),
        2,
        lambda _characters: next(texts),
    )
    whole = raw.encode(QUESTION)
    assert len(whole) > 64
    assert [(pair[0].dp_rank, pair[1].dp_rank) for pair in pairs] == [(0, 0), (1, 1)]
    prompts = [entry for pair in pairs for entry in pair]
    assert len({entry.prompt for entry in prompts}) == 4
    for entry in prompts:
        ids = raw.encode(entry.prompt)
        assert len(ids) == entry.input_tokens
        in_common = next(number for number, pair in enumerate(zip(ids, whole, strict=False)) if pair[0] != pair[1])
        # A token that ends inside a character cannot be the last one; what counts are whole blocks.
        assert tokens <= in_common < tokens + 3
        assert entry.shared_prefix_tokens == tokens
