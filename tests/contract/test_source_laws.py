"""The laws that ``make lint`` checks beside ruff, where only the tests run: imports between rooms, and dead code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LAWS = {
    "imports": "from importlinter.cli import lint_imports_command; lint_imports_command(['--no-logo'])",
    "dead code": "from vulture.core import main; main()",
}


@pytest.mark.parametrize("law", LAWS)
def test_the_source_keeps_the_law(law: str, project_root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LAWS[law]], cwd=project_root, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
