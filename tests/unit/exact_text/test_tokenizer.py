"""Loading a tokenizer: identity, special tokens, and a sentence for each way it can fail."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.tokenizer_families import QWEN
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from ais_bench_prefix_cache.exact_text.tokenizer import load_tokenizer
from ais_bench_prefix_cache.foundation.errors import GenerationError
from ais_bench_prefix_cache.scenario.model import TokenizerConfig


def config(path: Path | str) -> TokenizerConfig:
    return TokenizerConfig(str(path), 16, None, False)


def message(path: Path | str) -> str:
    with pytest.raises(GenerationError) as caught:
        load_tokenizer(config(path))
    return str(caught.value)


def test_ids_are_those_of_the_raw_tokenizer(deepseek_tokenizer_dir: Path) -> None:
    from transformers import AutoTokenizer

    raw = AutoTokenizer.from_pretrained(str(deepseek_tokenizer_dir))
    texts = ["", " two  spaces ", "it's 1234 中文\n\t👍🏽", "<｜end▁of▁sentence｜>x"]
    tokenizer = load_tokenizer(config(deepseek_tokenizer_dir))
    expected = [raw(text)["input_ids"] for text in texts]
    assert [tokenizer.encode(text) for text in texts] == expected
    assert tokenizer.encode_batch(texts) == expected


def test_truncation_and_padding_of_the_file_are_ignored(qwen3_tokenizer_dir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(qwen3_tokenizer_dir, copy, ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    definition = json.loads((copy / "tokenizer.json").read_text(encoding="utf-8"))
    definition["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    (copy / "tokenizer.json").write_text(json.dumps(definition), encoding="utf-8")
    text = "one two three four five six seven eight nine ten"
    original = load_tokenizer(config(qwen3_tokenizer_dir))
    changed = load_tokenizer(config(copy))
    assert changed.encode_batch([text, "a"]) == original.encode_batch([text, "a"])
    # The path and what the endpoint ignores leave the fingerprint alone; one merge less does not.
    assert changed.identity()["fingerprint_sha256"] == original.identity()["fingerprint_sha256"]
    assert changed.identity()["path"] == str(copy)
    definition["model"]["merges"].pop()
    (copy / "tokenizer.json").write_text(json.dumps(definition), encoding="utf-8")
    assert load_tokenizer(config(copy)).identity()["fingerprint_sha256"] != original.identity()["fingerprint_sha256"]


def test_identity_has_the_keys_of_the_manifest(deepseek_tokenizer_dir: Path) -> None:
    identity = load_tokenizer(config(deepseek_tokenizer_dir)).identity()
    assert list(identity) == ["path", "revision", "class", "vocab_size", "special_token_ids", "fingerprint_sha256"]
    assert json.loads(json.dumps(identity)) == identity


def test_a_missing_directory_a_file_and_an_empty_directory_are_named(tmp_path: Path) -> None:
    where = "scenario: tokenizer.path"
    assert message(tmp_path / "none") == (
        f"{where}: the directory {str(tmp_path / 'none')!r} does not exist "
        "(allowed: a directory with the tokenizer of the served model, or a model name)"
    )
    (tmp_path / "file").write_text("x")
    assert message(tmp_path / "file") == (
        f"{where}: {str(tmp_path / 'file')!r} is a file "
        "(allowed: the directory that holds tokenizer.json or tokenizer_config.json, or a model name)"
    )
    (tmp_path / "empty").mkdir()
    assert message(tmp_path / "empty") == (
        f"{where}: {str(tmp_path / 'empty')!r} holds no tokenizer files\n"
        "    Name the directory that has tokenizer.json or tokenizer_config.json in it."
    )


def test_a_git_lfs_pointer_is_named(tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 17477929\n"
    (tmp_path / "tokenizer.json").write_text(pointer)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GemmaTokenizer"}')
    assert message(tmp_path) == (
        f"scenario: tokenizer.path: {str(tmp_path)!r} holds a Git LFS pointer, the few lines that stand for a "
        "large file, in place of the file tokenizer.json\n"
        "    Fetch the file itself, for example with `git lfs pull`."
    )


def test_half_a_tokenizer_that_transformers_refuses_is_named_alike(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizerFast", "eos_token": "<e>"}')
    assert message(tmp_path).startswith(
        f"scenario: tokenizer.path: {str(tmp_path)!r} holds half a tokenizer: its vocabulary is missing; it has "
        "tokenizer_config.json\n"
    )


def test_half_a_tokenizer_a_page_and_a_file_that_is_cut_off_are_named(tmp_path: Path) -> None:
    where = f"scenario: tokenizer.path: {str(tmp_path)!r} holds"
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<e>"}')
    assert message(tmp_path) == (
        f"{where} half a tokenizer: its vocabulary is missing; it has tokenizer_config.json\n"
        "    Add the tokenizer.json of the model, or its vocab.json and merges.txt, or tokenizer.model."
    )
    (tmp_path / "tokenizer.json").write_text("<!DOCTYPE html>\n<html>")
    assert message(tmp_path) == (
        f"{where} an HTML page, not the file that it shows, in place of the file tokenizer.json\n"
        "    Download the file itself: the link to its raw content."
    )
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 1')
    assert message(tmp_path) == (
        f"{where} a damaged tokenizer.json: it is not JSON: Expecting ',' delimiter: line 1 column 28 (char 27)\n"
        "    Fetch the file again."
    )


def test_a_tokenizer_that_needs_no_vocabulary_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    assert load_tokenizer(TokenizerConfig(str(tmp_path), 16, None, False)).encode_plain_batch(["ab"]) == [[100, 101]]


def test_the_package_that_a_sentencepiece_model_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The file of such a model begins with a protobuf field; without the package it is taken for tiktoken's.
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert message(tmp_path) == (
        f"scenario: tokenizer.path: {str(tmp_path)!r} has no tokenizer.json, and to read its tokenizer.model the "
        "package sentencepiece is missing\n"
        "    Install it (`pip install sentencepiece`), or add the tokenizer.json of the model."
    )


HOST_PROCESS = """
import gc, importlib.util, json, os, sys, warnings

def state():
    return {
        "environment": dict(os.environ),
        "collector": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()],
        "filters": repr(warnings.filters),
        "streams": [[os.fstat(number).st_dev, os.fstat(number).st_ino] for number in (0, 1, 2)],
        "descriptors": sorted(os.listdir("/proc/self/fd")),
        "torch": id(sys.modules.get("torch")),
    }

import transformers  # What the import itself does to a process is the host's own affair.
installed = importlib.util.find_spec("torch") is not None
if installed:
    import torch
from transformers.utils import import_utils
scan = import_utils.create_import_structure_from_path
before = state()

from ais_bench_prefix_cache.exact_text.tokenizer import load_tokenizer
from ais_bench_prefix_cache.scenario.model import TokenizerConfig
load_tokenizer(TokenizerConfig(sys.argv[1], 16, None, False)).identity()

assert state() == before, (before, state())
assert import_utils.create_import_structure_from_path is scan
assert transformers.utils.is_torch_available() == installed
"""

FRESH_PROCESS = """
import importlib.util, sys

installed = importlib.util.find_spec("torch") is not None
from ais_bench_prefix_cache.exact_text.tokenizer import load_tokenizer
from ais_bench_prefix_cache.scenario.model import TokenizerConfig
load_tokenizer(TokenizerConfig(sys.argv[1], 16, None, False))

import transformers
assert transformers.utils.is_torch_available() == installed
assert not installed or importlib.util.find_spec("torch") is not None
assert sys.modules.get("torch", transformers) is not None
"""


@pytest.mark.parametrize("program", [HOST_PROCESS, FRESH_PROCESS], ids=["in a notebook", "before transformers"])
def test_loading_changes_nothing_in_the_callers_process(qwen3_tokenizer_dir: Path, program: str) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", program, str(qwen3_tokenizer_dir)], capture_output=True, text=True, timeout=300
    )
    assert finished.returncode == 0, finished.stderr


def fingerprint(path: Path) -> str:
    return str(load_tokenizer(config(path)).identity()["fingerprint_sha256"])


def test_the_fingerprint_depends_on_what_decides_ids_alone(qwen3_tokenizer_dir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(qwen3_tokenizer_dir, copy, ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    original = json.loads((copy / "tokenizer.json").read_text(encoding="utf-8"))
    expected = fingerprint(qwen3_tokenizer_dir)

    def changed(**parts: object) -> str:
        (copy / "tokenizer.json").write_text(json.dumps(original | parts), encoding="utf-8")
        return fingerprint(copy)

    # Defined in another way, to the same effect: as another release of transformers would.
    splits, nfc = original["pre_tokenizer"], original["normalizer"]
    assert changed(pre_tokenizer={"type": "Sequence", "pretokenizers": [splits]}, decoder=None) == expected
    assert changed(normalizer={"type": "Sequence", "normalizers": [nfc]}) == expected
    # Other ids for some texts.
    first, *others = splits["pretokenizers"]
    assert first["pattern"] == {"Regex": QWEN}
    letters = first | {"pattern": {"Regex": r"\p{L}"}}
    assert changed(pre_tokenizer=splits | {"pretokenizers": [letters, *others]}) != expected
    assert nfc == {"type": "NFC"}
    assert changed(normalizer=None) != expected
    assert changed(normalizer={"type": "Lowercase"}) != expected
    *_, last = original["added_tokens"]
    one_more = last | {"id": last["id"] + 1, "content": "two words"}
    assert changed(added_tokens=[*original["added_tokens"], one_more]) != expected


def test_a_damaged_tokenizer_is_an_error_without_traceback(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{ not json")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    assert "holds a damaged tokenizer.json: it is not JSON: " in message(tmp_path)


def test_a_model_name_without_network_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub.constants
    import transformers.utils.hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(transformers.utils.hub, "is_offline_mode", lambda: True, raising=False)
    text = message("some-owner/some-model-that-is-not-cached")
    assert text.startswith("scenario: tokenizer.path: 'some-owner/some-model-that-is-not-cached' is no")
    assert "Give the path of a directory with the tokenizer's files." in text


def test_dropout_is_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    model = models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=0.1)
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model)).save_pretrained(str(tmp_path))
    assert "uses BPE dropout, so the same text is encoded differently each time" in message(tmp_path)


def test_a_tokenizer_whose_code_fails_is_named(qwen3_tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of its own")

    monkeypatch.setattr("ais_bench_prefix_cache.exact_text.tokenizer.PromptTokenizer", fails)
    with pytest.raises(GenerationError, match="cannot encode text") as caught:
        load_tokenizer(config(qwen3_tokenizer_dir))
    assert caught.value.problems[0].code == "TOKENIZER_NOT_USABLE"


def copied(source: Path, target: Path, **settings: object) -> Path:
    """The tokenizer with a BOS and an EOS, and these settings in place of its own that say which of them to add."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    path = target / "tokenizer_config.json"
    known = json.loads(path.read_text(encoding="utf-8"))
    kept = {key: value for key, value in known.items() if key not in ("add_bos_token", "add_eos_token")}
    path.write_text(json.dumps(kept | {"bos_token": BOS, "eos_token": EOS} | settings), encoding="utf-8")
    return target


BOS, EOS = "<|endoftext|>", "<|im_end|>"
"""Tokens of Qwen's kind of tokenizer, whose post-processor adds neither."""


@pytest.mark.parametrize(
    ("settings", "choice", "before", "after", "ignored"),
    [
        ({}, "auto", [], [], ()),
        ({"add_bos_token": True, "add_eos_token": False}, "auto", [], [], ("add_bos_token",)),
        ({"add_bos_token": True, "add_eos_token": True}, "auto", [], [], ("add_bos_token", "add_eos_token")),
        ({"add_bos_token": True, "add_eos_token": True}, True, [BOS], [EOS], ()),
        ({"add_bos_token": False, "add_eos_token": True}, True, [], [EOS], ()),
        ({"add_bos_token": False}, True, [], [], ()),
        ({}, True, [BOS], [], ()),
        ({"add_bos_token": True}, False, [], [], ()),
    ],
)
def test_the_special_tokens_are_those_that_were_chosen(
    qwen3_tokenizer_dir: Path,
    tmp_path: Path,
    settings: dict[str, bool],
    choice: Any,
    before: list[str],
    after: list[str],
    ignored: tuple[str, ...],
) -> None:
    from transformers import AutoTokenizer

    raw = AutoTokenizer.from_pretrained(str(qwen3_tokenizer_dir))
    directory = copied(qwen3_tokenizer_dir, tmp_path / "copy", **settings)
    tokenizer = load_tokenizer(replace(config(directory), add_special_tokens=choice))
    texts = ["a", "it's 1234 中文\n\t👍🏽"]
    first, last = ([raw.get_vocab()[token] for token in tokens] for tokens in (before, after))
    expected = [[*first, *raw.encode(text, add_special_tokens=False), *last] for text in texts]
    assert [tokenizer.encode(text) for text in texts] == expected
    assert tokenizer.encode_batch(texts) == expected
    assert pickle.loads(pickle.dumps(tokenizer)).encode_batch(texts) == expected
    assert (tokenizer.prefix_ids, tokenizer.suffix_ids) == (tuple(first), tuple(last))
    assert tokenizer.ignored_settings == ignored
    # Two that encode alike are the same tokenizer, whoever said so.
    alike = load_tokenizer(config(qwen3_tokenizer_dir)).identity()["fingerprint_sha256"]
    assert (tokenizer.identity()["fingerprint_sha256"] == alike) is (before == after == [])


def test_a_bos_that_the_file_adds_is_left_out_or_not_doubled(qwen3_tokenizer_dir: Path, tmp_path: Path) -> None:
    directory = copied(qwen3_tokenizer_dir, tmp_path / "copy")
    raw = Tokenizer.from_file(str(directory / "tokenizer.json"))
    raw.post_processor = TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, raw.token_to_id(BOS))])
    raw.save(str(directory / "tokenizer.json"))
    plain, added, chosen = (
        load_tokenizer(replace(config(directory), add_special_tokens=choice)).encode("two words")
        for choice in (False, "auto", True)
    )
    assert plain == raw.encode("two words", add_special_tokens=False).ids
    assert added == chosen == [raw.token_to_id(BOS), *plain]


def test_no_bos_can_be_added_where_there_is_none(tokenizer_dir: Callable[[str], Path]) -> None:
    with pytest.raises(GenerationError, match="has no BOS token to add") as caught:
        load_tokenizer(replace(config(tokenizer_dir("gpt2")), add_special_tokens=True))
    assert "Leave tokenizer.add_special_tokens out, or set it to false." in str(caught.value)
