"""docs/commands.md shows the program's own `--help`, and the exit codes in the docs are the program's.

After a change of options: ``python tests/contract/test_command_reference.py`` writes the reference anew.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ais_bench_prefix_cache.cli import COMMANDS
from ais_bench_prefix_cache.foundation import errors

PROJECT = Path(__file__).resolve().parent.parent.parent
REFERENCE = PROJECT / "docs" / "commands.md"

INTRODUCTION = """\
# Commands

What each command's `--help` says. `python -m ais_bench_prefix_cache` is the same program. stdout carries one JSON
document (for `run` and `report`, and without `--json` for `kv`, `batching` and `simulate`, tables), stderr everything
meant for people; [ci.md](ci.md) lists the exit codes.
"""


def help_of(*command: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-m", "ais_bench_prefix_cache", *command, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"COLUMNS": "100", "NO_COLOR": "1"},
    )
    return finished.stdout.rstrip()


def rendered_reference() -> str:
    sections = [f"## {name}\n\n```text\n{help_of(name)}\n```\n" for name in COMMANDS]
    return "\n".join([INTRODUCTION, f"```text\n{help_of()}\n```\n", *sections])


def without_layout(text: str) -> str:
    """Python releases break argparse's lines in different places."""
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize(
    "command", [(), *((name,) for name in COMMANDS)], ids=lambda command: "".join(command) or "all"
)
def test_reference_shows_the_current_help(command: tuple[str, ...]) -> None:
    assert without_layout(help_of(*command)) in without_layout(REFERENCE.read_text(encoding="utf-8"))


def test_every_exit_code_is_documented() -> None:
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    table = re.findall(r"^\| ([\d/ ]+) \|", (PROJECT / "docs" / "ci.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {int(code) for row in table for code in row.split("/")} == codes
    assert codes == {int(code) for code in re.findall(r"\b\d+\b", help_of().partition("Exit codes:")[2])}


if __name__ == "__main__":
    REFERENCE.write_text(rendered_reference(), encoding="utf-8")
