"""Drafts are judged by the ids of their texts; what differs is found, or written again where nothing is proven."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.doubles.plans import plan_of
from tests.doubles.prompt_plans import corpus_at, load, scenario
from tests.doubles.tokenizer_families import ENGLISH

from ais_bench_prefix_cache.datasets.text.assembly import build_prompt_set
from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer
from ais_bench_prefix_cache.foundation.errors import GenerationError

REQUESTS = [(0, 60 + n, n % 3) for n in range(12)]


@pytest.mark.parametrize(
    ("verify", "method", "message"),
    [
        ("proof", "encode_plain_batch", "the seed of request 0 is not encoded as its words are"),
        ("full", "encode_batch", "the prompt of request 0 has 61 tokens instead of 60"),
    ],
)
def test_a_tokenizer_that_does_otherwise_than_proven_is_found(
    verify: str,
    method: str,
    message: str,
    tokenizer_dir: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer, _ = load(tokenizer_dir("gpt2"))
    corpus = corpus_at(tmp_path / "corpus.jsonl", ENGLISH)
    prompts = build_prompt_set(scenario(), plan_of(REQUESTS, block=8), tokenizer, corpus, verify=verify)  # type: ignore[arg-type]
    right = getattr(PromptTokenizer, method)

    def otherwise(self: PromptTokenizer, texts: Sequence[str]) -> list[list[int]]:
        return [[*ids, 1] for ids in right(self, texts)]

    monkeypatch.setattr(PromptTokenizer, method, otherwise)
    with pytest.raises(GenerationError, match=message):
        list(prompts)


def test_unproven_prompts_are_written_again_until_they_are_exact(
    tokenizer_dir: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, raw = load(tokenizer_dir("unigram without split"))
    corpus = corpus_at(tmp_path / "corpus.jsonl", ENGLISH)
    plan = plan_of(REQUESTS, block=8)
    prompts = build_prompt_set(scenario(), plan, tokenizer, corpus)
    expected = list(prompts)
    whole = PromptTokenizer.encode_batch
    refused = expected[4].text

    def not_this_one(self: PromptTokenizer, texts: Sequence[str]) -> list[list[int]]:
        return [[*ids, 1] if text == refused else ids for text, ids in zip(texts, whole(self, texts), strict=True)]

    monkeypatch.setattr(PromptTokenizer, "encode_batch", not_this_one)
    found = list(prompts)
    assert [prompt.text for prompt in found[:4]] == [prompt.text for prompt in expected[:4]]
    again = found[4]
    assert again.text != refused
    assert len(raw(again.text)["input_ids"]) == 64
    assert again.seed_sha256 != expected[4].seed_sha256
    assert again.request_random_seed == expected[4].request_random_seed
