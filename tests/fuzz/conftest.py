"""What all fuzz tests share: how long they go on, and any JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.doubles.sealed_data_sets import one_of_each_kind


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory, qwen3_tokenizer_dir: Path) -> dict[str, Path]:
    """A small data set of each kind."""
    return one_of_each_kind(tmp_path_factory.mktemp("originals"), qwen3_tokenizer_dir)
