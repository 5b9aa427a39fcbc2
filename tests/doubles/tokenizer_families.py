"""Small tokenizers with the pipelines of the real families, trained on a few lines, and texts hard for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

# ---- corpora ---------------------------------------------------------------------------------------------------------

ENGLISH = [
    "Janet’s ducks lay 16 eggs per day.  She eats three for breakfast every morning and bakes muffins for her friends.",
    "A robe takes 2 bolts of blue fiber and half that much white fiber.  How many bolts in total does it take?",
    "Josh decides to try flipping a house. He buys a house for $80,000 and then puts in $50,000 in repairs. "
    "This increased the value of the house by 150%.",
    "James decides to run 3 sprints 3 times a week.\u00a0He runs 60 meters each sprint.  How many meters (or €)?",
    "Every day, Wendi feeds each of her chickens three cups of mixed chicken feed, containing seeds, mealworms and "
    "vegetables to help keep them healthy; don't you think she'll need more?",
    "Kylar went to the store to buy glasses for his new apartment. One glass costs $5, but every second one costs only "
    "60% of the price. Kylar wants to buy 16 glasses. How much does he need to pay for them?",
]
CHINESE = [
    "小明有三个苹果，他给了小红一个，又买了五个。请问小明现在有几个苹果？",
    "一列火车以每小时八十公里的速度行驶，三个半小时后它走了多远？",
    "春眠不觉晓，处处闻啼鸟。夜来风雨声，花落知多少。",
    "书店里有２４本书，每本１５元，老师买了其中的三分之一，一共要付多少钱呢？我们先算出三分之一是多少，然后再乘以单价，就能得到答案。",
]
EMOJI = [
    "👩‍👩‍👧‍👦 went to 🇨🇳🇩🇪 and 👍🏽 ate 🍜🍜🍜 e\u0301te\u0301 n\u0303",
    "👩🏽‍🚀👨‍🚒🧑‍🤝‍🧑🏳️‍🌈🏴󠁧󠁢󠁥󠁮󠁧󠁿❤️‍🔥✌🏻 flags 🇫🇷 🇯🇵",
    "\u0301 lone mark, \u200djoiner\u200d, नमस्ते दुनिया สวัสดี น้ำ",
]
CODE = [
    "def f(x):\r\n\treturn {name} if x != 0 else f'{x!r}'  # naïve ﬁx\r\n",
    'for (int i = 0; i < n; ++i) {\n\t\tsum += a[i] * b[i];\n}\nprintf("%d\\n", sum);',
    "SELECT a.id, COUNT(*) AS n FROM t_a AS a WHERE x >= 10_000 AND y <> 'z' GROUP BY a.id;",
]
SPECIAL = [
    "Say <s> and </s> and <|endoftext|> or [CLS] then [SEP] [UNK] <unk> <pad> twice<|endoftext|>",
    "The {question} is {answer}: how many <extra_id_0> WORDFUSE wordfuse are in {0} of {}?",
    "plain words here please",
]
CORPORA: dict[str, list[str]] = {
    "english": ENGLISH,
    "chinese": CHINESE,
    "emoji": EMOJI,
    "code": CODE,
    "special": SPECIAL,
    "one-word rows": ["cat", "dogs", "Elephant", "的", "x", "42", "hello", "incomprehensibilities"],
    "one row": ["How many apples does Tom have?"],
    "one letter": ["a"],
    "long row": [" ".join(ENGLISH) * 30],
    "long word": ["abcdefghij" * 200, "处处闻啼鸟" * 150, "🍜" * 300],
    "mixed": [*ENGLISH, *CHINESE, *EMOJI, *CODE, *SPECIAL],
}
TRAINING = [*ENGLISH, *CHINESE, *EMOJI, *CODE, "plain words here please"] * 3 + [
    "the quick brown fox jumps over the lazy dog while seven wizards box five dozen jugs of liquor",
    "time year people way day man thing woman life child world school state family student group country problem hand",
    "part place case week company system program question work government number night point home water room mother",
    "money story fact month lot right study book eye job word business issue side kind head house service friend",
]

# ---- tokenizer families ----------------------------------------------------------------------------------------------

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"


def split_at(pattern: str, behavior: str, *, invert: bool = False) -> Any:
    """A ``Split`` pre-tokenizer with a regular expression."""
    return pre_tokenizers.Split(Regex(pattern), behavior, invert=invert)


def _split(pattern: str) -> Any:
    return split_at(pattern, "isolated")


def _byte_level(
    *splits: str,
    normalizer: Any = None,
    specials: Sequence[str] = ("<|endoftext|>",),
    vocab: int = 1200,
    texts: Sequence[str] = TRAINING,
) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    stages = [_split(pattern) for pattern in splits]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*stages, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not splits)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=list(specials), initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _with_template(tokenizer: Tokenizer, *, bos: str | None = None, eos: str | None = None) -> Tokenizer:
    pieces = [f"{bos}:0"] if bos else []
    pieces.append("$A:0")
    pieces += [f"{eos}:0"] if eos else []
    ids = [(token, tokenizer.token_to_id(token)) for token in (bos, eos) if token]
    tokenizer.post_processor = processors.TemplateProcessing(single=" ".join(pieces), special_tokens=ids)
    return tokenizer


_SP_SPECIALS = ["<unk>", "<s>", "</s>"]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _metaspace_bpe(scheme: str, *, split: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=True)
    trainer = trainers.BpeTrainer(vocab_size=1400, special_tokens=[*_SP_SPECIALS, *_BYTES])
    tokenizer.train_from_iterator(TRAINING, trainer)
    if not split:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return _with_template(tokenizer, bos="<s>")


def _llama2() -> Tokenizer:
    tokenizer = _metaspace_bpe("first")
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


def _gemma() -> Tokenizer:
    tokenizer = _metaspace_bpe("never")
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return tokenizer


def _gemma3() -> Tokenizer:
    """Like Gemma, with one token across a space, as Gemma 3 has ``>▁</``: here ``.▁How``, which the corpora hold."""
    definition = json.loads(_gemma().to_str())
    model = definition["model"]
    pairs = [(".", "▁How")] if "▁How" in model["vocab"] else [("▁", "H"), ("▁H", "ow"), (".", "▁How")]
    for pair in pairs:
        model["vocab"].setdefault("".join(pair), max(model["vocab"].values()) + 1)
        if list(pair) not in model["merges"]:
            model["merges"].append(list(pair))
    return Tokenizer.from_str(json.dumps(definition))


def _clip() -> Tokenizer:
    """CLIP: runs of white space become one space, which no match holds, and words end with ``</w>``."""
    tokenizer = Tokenizer(models.BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    words = split_at(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+", "removed", invert=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    trainer = trainers.BpeTrainer(
        vocab_size=1200,
        special_tokens=["<|startoftext|>", "<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        end_of_word_suffix="</w>",
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    return _with_template(tokenizer, bos="<|startoftext|>", eos="<|endoftext|>")


def _spaces_around_dashes() -> Tokenizer:
    """A normalizer that puts spaces into words: around dashes, and a line's end for a full stop in Chinese."""
    dashes = normalizers.Sequence(
        [normalizers.Replace("-", " - "), normalizers.Replace("。", "\n"), normalizers.NFKC()]
    )
    return _byte_level(GPT2, normalizer=dashes)


def _white_space_removed() -> Tokenizer:
    """Words apart, their spaces dropped by an expression in place of ``WhitespaceSplit``."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = split_at(r"\s+", "removed")
    trainer = trainers.WordPieceTrainer(vocab_size=900, special_tokens=["[UNK]", "[CLS]"])
    tokenizer.train_from_iterator(TRAINING, trainer)
    return _with_template(tokenizer, bos="[CLS]")


def _unigram(*, split: bool = True, normalizer: Any = None, eos: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    trainer = trainers.UnigramTrainer(vocab_size=700, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>")
    tokenizer.train_from_iterator(TRAINING, trainer)
    if not split:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    return _with_template(tokenizer, eos="</s>") if eos else tokenizer


def _wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=900, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.train_from_iterator(TRAINING, trainer)
    return _with_template(tokenizer, bos="[CLS]", eos="[SEP]")


def _ignore_merges() -> Tokenizer:
    tokenizer = _byte_level(LLAMA3, specials=("<|begin_of_text|>", "<|endoftext|>"))
    definition = json.loads(tokenizer.to_str())
    definition["model"]["ignore_merges"] = True
    return _with_template(Tokenizer.from_str(json.dumps(definition)), bos="<|begin_of_text|>")


def _across_spaces() -> Tokenizer:
    """Tokens of several words, as SuperBPE has them: nothing splits before the model."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    words = [text.split(" ") for text in TRAINING]
    phrases = [" " + " ".join(row[start : start + 5]) for row in words for start in range(0, len(row), 5)]
    tokenizer.train_from_iterator(phrases, trainer)
    assert any("Ġ" in token[1:] for token in tokenizer.get_vocab())
    return tokenizer


def _added_words() -> Tokenizer:
    tokenizer = _byte_level(GPT2)
    tokenizer.add_tokens(["how", AddedToken("bolts", lstrip=True, rstrip=True), AddedToken("run", single_word=True)])
    return tokenizer


def _lowercase() -> Tokenizer:
    tokenizer = _byte_level(normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]))
    tokenizer.add_tokens([AddedToken("WordFuse", normalized=True)])
    return tokenizer


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": _byte_level,
    "gpt2 with eos": lambda: _with_template(_byte_level(GPT2), eos="<|endoftext|>"),
    "cl100k": lambda: _byte_level(CL100K),
    "o200k": lambda: _byte_level(O200K),
    "qwen": lambda: _byte_level(QWEN, normalizer=normalizers.NFC()),
    "deepseek with bos": lambda: _with_template(
        _byte_level(r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK), bos="<|endoftext|>"
    ),
    "llama3 with bos, ignoring merges": _ignore_merges,
    "byte-level, nfkc, lowercase": _lowercase,
    "bytes only": lambda: _byte_level(vocab=257),
    "added words": _added_words,
    "metaspace bpe always": lambda: _metaspace_bpe("always"),
    "metaspace bpe first": lambda: _metaspace_bpe("first"),
    "metaspace bpe never": lambda: _metaspace_bpe("never"),
    "metaspace bpe without split": lambda: _metaspace_bpe("first", split=False),
    "bloom": lambda: _byte_level(BLOOM),
    "llama2": _llama2,
    "gemma": _gemma,
    "gemma with a token across a space": _gemma3,
    "clip": _clip,
    "byte-level, spaces put around dashes": _spaces_around_dashes,
    "white space removed by an expression": _white_space_removed,
    "unigram": _unigram,
    "unigram nfkc": lambda: _unigram(normalizer=normalizers.NFKC(), eos=False),
    "unigram without split": lambda: _unigram(split=False),
    "wordpiece": _wordpiece,
}

UNPROVEN: dict[str, Callable[[], Tokenizer]] = {"byte-level across spaces": _across_spaces}
"""Families for which some corpora must be refused."""


def family_params(*names: str) -> list[Any]:
    """Names of families as parameters of a test; `make check` takes the first three, `make test` all."""
    return [pytest.param(name, marks=[] if number < 3 else [pytest.mark.slow]) for number, name in enumerate(names)]


# ---- Qwen3 -----------------------------------------------------------------------------------------------------------

QWEN3_SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The chat format of Qwen, without tools."""


def qwen3(texts: Sequence[str]) -> Tokenizer:
    """Qwen3's pipeline and special tokens, which it has behind the vocabulary; trained on ``texts``."""
    tokenizer = _byte_level(QWEN, normalizer=normalizers.NFC(), specials=(), vocab=6000, texts=texts)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in QWEN3_SPECIALS])
    return tokenizer
