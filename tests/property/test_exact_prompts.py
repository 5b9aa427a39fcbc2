"""Prompts are exact on every tokenizer family: judged by the raw tokenizer over each whole text.

The families are trained here on a small text, but have the pipelines of the real ones: split patterns, byte-level and
metaspace alphabets, normalizers, special tokens. The oracle is always ``AutoTokenizer``'s own encoding of the whole
prompt; the expected blocks, digests and lengths are counted from its ids.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.doubles.plans import plan_of
from tests.doubles.prompt_plans import corpus_at, load, requests_around_edges, scenario
from tests.doubles.tokenizer_families import CHINESE, CORPORA, ENGLISH, FAMILIES, TRAINING
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from ais_bench_prefix_cache.datasets.text.assembly import build_prompt_set
from ais_bench_prefix_cache.datasets.text.prompt_set import PromptSet
from ais_bench_prefix_cache.exact_text.corpus import Corpus, load_corpus
from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer, load_tokenizer
from ais_bench_prefix_cache.foundation.errors import GenerationError
from ais_bench_prefix_cache.planning.plan import Plan
from ais_bench_prefix_cache.scenario.model import TokenizerConfig

# ---- a plan by hand, and the judge -----------------------------------------------------------------------------------


def sha256_of(ids: Sequence[int]) -> str:
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()


def judge(prompts: PromptSet, plan: Plan, raw: Any, corpus: Corpus) -> list[str]:
    """Check every promise against the raw tokenizer's ids of the whole texts; returns the texts."""
    block, seed_tokens = plan.block_size, plan.seed_tokens
    added = [str(token) for token in raw.added_tokens_decoder.values()]
    canonical_blocks: set[tuple[int, ...]] = set()
    first_blocks: set[tuple[int, ...]] = set()
    assert [prefix.group for prefix in prompts.canonical_prefixes] == list(range(plan.group_count))
    for group, prefix in enumerate(prompts.canonical_prefixes):
        ids = prefix.token_ids
        assert len(ids) == plan.canonical_prefix_tokens[group]
        assert prefix.sha256 == sha256_of(ids)
        assert [corpus.row_sha256[row] for row in prefix.corpus_indices] == list(prefix.corpus_sha256)
        if ids:
            assert ids[:block] not in first_blocks
            first_blocks.add(ids[:block])
        canonical_blocks |= {ids[start : start + block] for start in range(0, len(ids), block)}

    chains: set[tuple[int, tuple[int, ...]]] = set()
    divergence: set[tuple[int, ...]] = set()

    def judge_tail(ids: list[int], shared: int) -> None:
        first = tuple(ids[shared : shared + block])
        assert len(first) == block
        assert first not in divergence
        assert first not in canonical_blocks
        divergence.add(first)

    warmed = [warmup.group for warmup in prompts.warmup_prompts]
    has_prefix = [group for group in range(plan.group_count) if plan.canonical_prefix_tokens[group]]
    assert warmed == (has_prefix if plan.mode == "warmup" else [])
    for warmup in prompts.warmup_prompts:
        ids = raw(warmup.text)["input_ids"]
        canonical = prompts.canonical_prefixes[warmup.group].token_ids
        assert len(ids) == warmup.input_tokens
        assert tuple(ids[: len(canonical)]) == canonical
        assert warmup.shared_prefix_tokens == len(canonical)
        judge_tail(ids, len(canonical))

    texts: list[str] = []
    assert len(prompts) == len(plan)
    for index, prompt in enumerate(prompts):
        text = prompt.text
        texts.append(text)
        ids = raw(text)["input_ids"]
        shared, length = int(plan.shared_prefix_tokens[index]), int(plan.input_tokens[index])
        canonical = prompts.canonical_prefixes[int(plan.group[index])].token_ids
        assert prompt.sequence_index == index
        assert len(ids) == length == prompt.actual_input_tokens
        assert tuple(ids[:shared]) == canonical[:shared]
        assert shared + seed_tokens + prompt.natural_suffix_tokens == length
        judge_tail(ids, shared)
        assert prompt.divergence_block_sha256 == sha256_of(ids[shared : shared + block])
        assert prompt.seed_sha256 == sha256_of(ids[shared : shared + seed_tokens])
        assert [corpus.row_sha256[row] for row in prompt.corpus_indices] == list(prompt.corpus_sha256)
        # No two requests share a block past their shared prefixes.
        for end in range(shared + block, length + 1, block):
            chain = (end, tuple(ids[:end]))
            assert chain not in chains
            chains.add(chain)
        assert text == " ".join(text.split())
        assert not set(text) & set("\ufffd\u2028\u2029\x85{}▁")
        assert all(character.isprintable() or ord(character) > 0x9F for character in text)
        assert not any(token in text for token in added if token.strip())
    return texts


@pytest.mark.parametrize("corpus_name", CORPORA)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_exact_on_every_corpus(
    family: str, corpus_name: str, tokenizer_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    tokenizer, raw = load(tokenizer_dir(family))
    corpus = corpus_at(tmp_path / "corpus.jsonl", CORPORA[corpus_name])
    plan = plan_of(requests_around_edges(16), block=16)
    proof = build_prompt_set(scenario(), plan, tokenizer, corpus)
    texts = judge(proof, plan, raw, corpus)
    full = build_prompt_set(scenario(), plan, tokenizer, corpus, verify="full")
    assert [prompt.text for prompt in full] == texts
    assert list(proof) == list(full)


@pytest.mark.parametrize("corpus_name", ["chinese", "one letter", "long word"])
def test_tokens_across_spaces_are_exact_where_the_corpus_allows(
    corpus_name: str, tokenizer_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    tokenizer, raw = load(tokenizer_dir("byte-level across spaces"))
    corpus = corpus_at(tmp_path / "corpus.jsonl", CORPORA[corpus_name])
    plan = plan_of(requests_around_edges(16), block=16)
    judge(build_prompt_set(scenario(), plan, tokenizer, corpus), plan, raw, corpus)


def test_tokens_across_spaces_are_refused_before_the_first_prompt_where_they_hold_the_joins(
    tokenizer_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    tokenizer, _ = load(tokenizer_dir("byte-level across spaces"))
    corpus = corpus_at(tmp_path / "corpus.jsonl", ENGLISH)
    with pytest.raises(GenerationError) as caught:
        build_prompt_set(scenario(), plan_of(requests_around_edges(16), block=16), tokenizer, corpus)
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("PROMPTS_NOT_EXACT", "scenario: tokenizer.path")
    assert "tokens of the vocabulary hold a space after another character, such as '" in problem.message


@pytest.mark.parametrize("block", [2, 16, 128])
@pytest.mark.parametrize("fixture", ["qwen3_tokenizer_dir", "deepseek_tokenizer_dir"])
def test_real_tokenizers_are_exact(fixture: str, block: int, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    tokenizer, raw = load(request.getfixturevalue(fixture))
    for name in ("chinese", "one letter", "long word", "mixed"):
        corpus = corpus_at(tmp_path / f"{name}.jsonl", CORPORA[name])
        plan = plan_of(requests_around_edges(block, 2), block=block, seed_blocks=2)
        prompts = build_prompt_set(scenario(), plan, tokenizer, corpus)
        texts = judge(prompts, plan, raw, corpus)
        assert [p.text for p in build_prompt_set(scenario(), plan, tokenizer, corpus, verify="full")] == texts


def test_gsm8k_prompts_are_exact_and_another_seed_gives_others(qwen3_tokenizer_dir: Path, gsm8k_path: Path) -> None:
    tokenizer, raw = load(qwen3_tokenizer_dir)
    corpus = load_corpus(gsm8k_path, "question")
    plan = plan_of([(n % 4, 300 + 7 * n, n % 17) for n in range(60)], block=16)
    texts = judge(build_prompt_set(scenario(1), plan, tokenizer, corpus), plan, raw, corpus)
    assert texts == [p.text for p in build_prompt_set(scenario(1), plan, tokenizer, corpus)]
    assert not set(texts) & {p.text for p in build_prompt_set(scenario(2), plan, tokenizer, corpus)}


def test_iterating_twice_gives_the_same_prompts(tokenizer_dir: Callable[[str], Path], tmp_path: Path) -> None:
    tokenizer, _ = load(tokenizer_dir("unigram without split"))
    corpus = corpus_at(tmp_path / "corpus.jsonl", CORPORA["mixed"])
    prompts = build_prompt_set(scenario(), plan_of(requests_around_edges(16), block=16), tokenizer, corpus)
    assert list(prompts) == list(prompts)


def test_cold_mode_has_no_warmup_prompts(tokenizer_dir: Callable[[str], Path], tmp_path: Path) -> None:
    tokenizer, raw = load(tokenizer_dir("llama2"))
    corpus = corpus_at(tmp_path / "corpus.jsonl", ENGLISH)
    plan = plan_of(requests_around_edges(16), block=16, mode="cold")
    judge(build_prompt_set(scenario(), plan, tokenizer, corpus), plan, raw, corpus)


@pytest.mark.parametrize(
    "family", ["gpt2", "bytes only", "llama2", "wordpiece", "gpt2 with eos", "unigram without split"]
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_lengths_are_exact(
    family: str, data: st.DataObject, tokenizer_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    block = data.draw(st.sampled_from([8, 12, 16, 32]), label="block")
    seed_blocks = data.draw(st.integers(1, 3), label="seed blocks")
    request = st.tuples(
        st.integers(0, 3), st.integers(0, 6), st.one_of(st.integers(0, 3), st.integers(0, 5 * block))
    ).map(lambda r: (r[0], (r[1] + seed_blocks) * block + r[2], r[1]))
    requests = data.draw(st.lists(request, min_size=1, max_size=12), label="requests")
    rows = data.draw(st.sampled_from(sorted(CORPORA)), label="corpus")
    tokenizer, raw = load(tokenizer_dir(family))
    corpus = corpus_at(tmp_path_factory.mktemp("corpus") / "corpus.jsonl", CORPORA[rows])
    plan = plan_of(requests, block=block, seed_blocks=seed_blocks)
    judge(build_prompt_set(scenario(), plan, tokenizer, corpus), plan, raw, corpus)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.text(min_size=1, max_size=80).filter(lambda text: text.strip()), min_size=1, max_size=6))
def test_any_text_is_exact_or_refused(
    rows: list[str], tokenizer_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    for family in ("qwen", "byte-level, nfkc, lowercase", "gemma", "wordpiece", "unigram nfkc"):
        tokenizer, raw = load(tokenizer_dir(family))
        corpus = corpus_at(tmp_path_factory.mktemp("corpus") / "corpus.jsonl", rows)
        plan = plan_of([(0, 70, 2), (1, 53, 0), (1, 81, 3), (0, 49, 1)], block=16)
        try:
            prompts = build_prompt_set(scenario(), plan, tokenizer, corpus)
        except GenerationError as error:
            assert error.problems[0].code == "CORPUS_NOT_USABLE"
            continue
        judge(prompts, plan, raw, corpus)


# ---- what cannot be made exact is refused, with the reason -----------------------------------------------------------


def refusal(
    tokenizer: PromptTokenizer, corpus: Corpus, requests: Sequence[tuple[int, int, int]], block: int
) -> tuple[str, str]:
    with pytest.raises(GenerationError) as caught:
        list(build_prompt_set(scenario(), plan_of(requests, block=block), tokenizer, corpus))
    return caught.value.problems[0].code, str(caught.value)


def test_blocks_of_one_token_are_exact_without_bos(qwen3_tokenizer_dir: Path, tmp_path: Path) -> None:
    tokenizer, raw = load(qwen3_tokenizer_dir)
    corpus = corpus_at(tmp_path / "corpus.jsonl", ENGLISH)
    plan = plan_of([(n % 2, 20 + n % 5, n % 15) for n in range(200)], block=1)
    judge(build_prompt_set(scenario(), plan, tokenizer, corpus), plan, raw, corpus)


def test_a_first_block_of_bos_alone_is_refused(tokenizer_dir: Callable[[str], Path], tmp_path: Path) -> None:
    tokenizer, _ = load(tokenizer_dir("llama2"))
    corpus = corpus_at(tmp_path / "corpus.jsonl", ENGLISH)
    assert refusal(tokenizer, corpus, [(0, 20, 3)], 1) == (
        "BLOCK_SIZE_TOO_SMALL",
        "scenario: tokenizer.block_size: the tokenizer puts 1 special token(s) before every prompt, so with blocks of 1"
        " the first block of all prompts is the same and every request hits it (allowed: a block size of at least 2)",
    )


def test_more_seeds_than_words_are_refused(tokenizer_dir: Callable[[str], Path], tmp_path: Path) -> None:
    tokenizer, raw = load(tokenizer_dir("gpt2"))
    corpus = corpus_at(tmp_path / "corpus.jsonl", ENGLISH)
    code, message = refusal(tokenizer, corpus, [(0, 20, 3)] * 2000, 1)
    assert code == "SEEDS_EXHAUSTED"
    assert "2001 seeds must differ in their first block of 1 token(s), but corpus and vocabulary give only" in message
    # What is left is used to the last: as many seeds as the message offers can be made.
    free = int(message.split("give only ")[1].split()[0])
    plan = plan_of([(0, 20, 3)] * (free - 1), block=1)
    judge(build_prompt_set(scenario(), plan, tokenizer, corpus), plan, raw, corpus)


def test_a_tokenizer_that_joins_words_is_exact_or_refused(tmp_path: Path) -> None:
    """Tokens that span spaces, as SuperBPE makes them: no proof, so every prompt is encoded whole."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    assert any("Ġ" in token[1:] for token in tokenizer.get_vocab())
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(str(tmp_path / "joining"))
    loaded, raw = load(tmp_path / "joining")
    corpus = corpus_at(tmp_path / "corpus.jsonl", [*ENGLISH, *CHINESE])
    plan = plan_of(requests_around_edges(16), block=16)
    try:
        prompts = list(build_prompt_set(scenario(), plan, loaded, corpus))
    except GenerationError as error:
        assert "hold a space after another character" in str(error) or "Ġ" in str(error)
    else:
        assert prompts
        judge(build_prompt_set(scenario(), plan, loaded, corpus), plan, raw, corpus)


SLOW_TOKENIZER = '''
from transformers import PreTrainedTokenizer


class LetterTokenizer(PreTrainedTokenizer):
    """One token a byte, in Python."""

    def __init__(self, **kwargs):
        self.offset = 3
        super().__init__(pad_token="<pad>", eos_token="</s>", unk_token="<unk>", **kwargs)

    @property
    def vocab_size(self):
        return 256 + self.offset

    def get_vocab(self):
        return {"<pad>": 0, "</s>": 1, "<unk>": 2, **{chr(i): i + self.offset for i in range(256)}}

    def _tokenize(self, text, **kwargs):
        return [chr(i) for i in text.encode("utf-8")]

    def _convert_token_to_id(self, token):
        return self.get_vocab().get(token, 2)

    def _convert_id_to_token(self, index):
        return chr(index - self.offset)

    def build_inputs_with_special_tokens(self, token_ids_0, token_ids_1=None):
        return token_ids_0 + [1]

    def save_vocabulary(self, save_directory, filename_prefix=None):
        return ()
'''


@pytest.fixture
def slow_tokenizer_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "slow"
    directory.mkdir()
    (directory / "tokenization_letters.py").write_text(SLOW_TOKENIZER)
    config = {
        "tokenizer_class": "LetterTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_letters.LetterTokenizer", None]},
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def test_a_python_tokenizer_is_exact(slow_tokenizer_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    tokenizer = load_tokenizer(TokenizerConfig(str(slow_tokenizer_dir), 16, None, True))
    raw = AutoTokenizer.from_pretrained(str(slow_tokenizer_dir), trust_remote_code=True)
    assert tokenizer.backend is None
    for name in ("english", "chinese", "emoji", "one letter"):
        corpus = corpus_at(tmp_path / "corpus.jsonl", CORPORA[name])
        plan = plan_of(requests_around_edges(16), block=16)
        judge(build_prompt_set(scenario(), plan, tokenizer, corpus), plan, raw, corpus)


def test_a_python_tokenizer_with_a_vocabulary_of_bytes_is_exact(slow_tokenizer_dir: Path, tmp_path: Path) -> None:
    """As tokenizers on ``tiktoken`` have it (Qwen 1, Hunyuan, Kimi); few words in the corpus, so that it is read."""
    from transformers import AutoTokenizer

    code = slow_tokenizer_dir / "tokenization_letters.py"
    text = (
        code.read_text()
        .replace("def get_vocab(self):", "def letters(self):")
        .replace("self.get_vocab()", "self.letters()")
    )
    vocabulary = (
        "    def get_vocab(self):\n        return {k.encode('latin-1'): v for k, v in self.letters().items()}\n"
    )
    code.write_text(text.replace("    def letters", vocabulary + "\n    def letters", 1))
    tokenizer = load_tokenizer(TokenizerConfig(str(slow_tokenizer_dir), 16, None, True))
    raw = AutoTokenizer.from_pretrained(str(slow_tokenizer_dir), trust_remote_code=True)
    assert set(map(type, raw.get_vocab())) == {bytes}
    corpus = corpus_at(tmp_path / "corpus.jsonl", CORPORA["one letter"])
    plan = plan_of(requests_around_edges(16), block=16)
    judge(build_prompt_set(scenario(), plan, tokenizer, corpus), plan, raw, corpus)
    assert len(tokenizer.identity()["fingerprint_sha256"]) == 64


def test_remote_code_is_not_run_unasked(slow_tokenizer_dir: Path) -> None:
    with pytest.raises(GenerationError) as caught:
        load_tokenizer(TokenizerConfig(str(slow_tokenizer_dir), 16, None, False))
    assert str(caught.value) == (
        f"scenario: tokenizer.path: {str(slow_tokenizer_dir)!r} needs Python code from its repository, which was not "
        "allowed\n    If you trust that code, set tokenizer.trust_remote_code to true."
    )
