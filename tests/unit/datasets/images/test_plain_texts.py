"""Texts of exactly one length, against the raw tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from ais_bench_prefix_cache.datasets.images.plain_texts import PlainTexts
from ais_bench_prefix_cache.exact_text.corpus import Corpus, load_corpus, question_sha256
from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer, load_tokenizer
from ais_bench_prefix_cache.foundation.errors import GenerationError
from ais_bench_prefix_cache.scenario.model import CorpusSelection, TokenizerConfig

RANDOM = CorpusSelection("random")


def loaded(directory: Path) -> PromptTokenizer:
    return load_tokenizer(TokenizerConfig(str(directory), 16, None, False))


def corpus_of(*rows: str) -> Corpus:
    return Corpus(Path("corpus.jsonl"), "question", "0" * 64, rows, tuple(map(question_sha256, rows)))


def texts(
    corpus: Corpus,
    tokenizer: PromptTokenizer,
    tokens: int,
    count: int,
    *,
    seed: int = 42,
    selection: CorpusSelection = RANDOM,
) -> list[str]:
    made = PlainTexts(corpus, selection, tokenizer, random_seed=seed, tokens=tokens, count=count)
    assert len(made) == count
    return [each.text for each in made]


@pytest.mark.parametrize(
    "name", ["qwen3_tokenizer_dir", pytest.param("deepseek_tokenizer_dir", marks=pytest.mark.slow)]
)
def test_every_text_has_exactly_the_wanted_tokens(name: str, gsm8k_path: Path, request: pytest.FixtureRequest) -> None:
    directory = request.getfixturevalue(name)
    raw = AutoTokenizer.from_pretrained(str(directory))
    tokenizer, corpus = loaded(directory), load_corpus(gsm8k_path, "question")
    for tokens, count in ((1, 60), (2, 60), (7, 60), (30, 600), (1500, 5)):
        made = texts(corpus, tokenizer, tokens, count)
        assert [len(raw.encode(text, add_special_tokens=False)) for text in made] == [tokens] * count
        assert made == texts(corpus, tokenizer, tokens, count), "the same texts each time"
    assert len(set(made)) == 5
    assert made != texts(corpus, tokenizer, 1500, 5, seed=43)


def test_a_text_begins_with_its_row_and_rows_come_in_the_selected_order(qwen3_tokenizer_dir: Path) -> None:
    rows = ("Natalia sold forty eight clips to her friends in April.", "Weng earns twelve dollars an hour for work.")
    selection = CorpusSelection("indices", indices=(1, 0))
    made = texts(corpus_of(*rows), loaded(qwen3_tokenizer_dir), 5, 4, selection=selection)
    assert [text.split()[0] for text in made] == ["Weng", "Natalia", "Weng", "Natalia"]
    assert all(rows[(number + 1) % 2].startswith(" ".join(text.split()[:3])) for number, text in enumerate(made))


def test_one_chinese_row_is_enough(qwen3_tokenizer_dir: Path) -> None:
    raw = AutoTokenizer.from_pretrained(str(qwen3_tokenizer_dir))
    corpus = corpus_of("小明有十二个苹果，他给了朋友五个。请问他还剩下多少个苹果？<|im_end|>{question}")
    for tokens in (1, 30, 333):
        for text in texts(corpus, loaded(qwen3_tokenizer_dir), tokens, 3):
            assert len(raw.encode(text, add_special_tokens=False)) == tokens
            assert "<|im_end|>" not in text and "{" not in text


def test_a_corpus_without_a_usable_word_is_refused(qwen3_tokenizer_dir: Path) -> None:
    with pytest.raises(GenerationError) as refusal:
        texts(corpus_of("<|im_end|>"), loaded(qwen3_tokenizer_dir), 5, 1)
    assert refusal.value.problems[0].code == "CORPUS_NOT_USABLE"
