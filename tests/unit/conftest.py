"""Recorded metric texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def prom(project_root: Path) -> Callable[[str], str]:
    """``prom("08")``: the text of the one file in ``tests/data/prom`` whose name begins with that."""

    def read(beginning: str) -> str:
        (path,) = (project_root / "tests" / "data" / "prom").glob(f"{beginning}*")
        return path.read_bytes().decode("utf-8")

    return read
