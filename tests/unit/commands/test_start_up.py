"""What a command may import: ``--help`` and usage errors the standard library and this package, nothing else.

A command then imports transformers only if it tokenises, httpx only if it sends, and AISBench never: that runs in a
process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from ais_bench_prefix_cache.cli import COMMANDS

PACKAGE = "ais_bench_prefix_cache"
CODE = """
import sys
from ais_bench_prefix_cache.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as stop:
    code = stop.code
print(code, *sys.modules, file=sys.stderr)
"""


def imported_by(*arguments: str) -> tuple[int, set[str]]:
    """The exit code of a command, and the packages (``numpy``, not ``numpy.random``) that it imported."""
    done = subprocess.run([sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, timeout=60)
    code, *modules = done.stderr.splitlines()[-1].split()
    return int(code), {name.partition(".")[0] for name in modules}


@pytest.fixture(scope="module")
def beforehand() -> set[str]:
    """What Python itself imports here before any of our code runs."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True, timeout=60
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["--version"], 0),
        ([], 2),
        (["prepair"], 2),
        *(([command, "--help"], 0) for command in COMMANDS),
        *(([command, "--no-such-option"], 2) for command in COMMANDS),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_help_and_usage_errors_need_only_the_standard_library(
    arguments: list[str], code: int, beforehand: set[str]
) -> None:
    found, imported = imported_by(*arguments)
    assert found == code
    assert imported - beforehand <= {*sys.stdlib_module_names, PACKAGE}


def test_validate_needs_no_tokenizer_and_no_network(make_data_set: Any) -> None:
    code, imported = imported_by("validate", "--manifest", str(make_data_set("cold").manifest))
    assert code == 0
    assert imported & {"transformers", "torch", "httpx", "ais_bench", "pyarrow", "PIL"} == set()


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "ascii"])
@pytest.mark.parametrize("command", ["distribution", "simulate"])
def test_help_on_a_terminal_that_is_not_utf_8(command: str, encoding: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", PACKAGE, command, "--help"],
        env=os.environ | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"usage: ")


def test_a_table_on_a_terminal_without_drawn_lines_has_plain_ones() -> None:
    command = [sys.executable, "-m", PACKAGE, "batching", "--slots", "2", "--output-tokens", "2,4"]

    def shown(encoding: str) -> str:
        environment = os.environ | {"PYTHONIOENCODING": encoding}
        return subprocess.run(command, env=environment, capture_output=True, timeout=60, check=True).stdout.decode()

    plain = shown("latin-1")
    assert plain.isascii() and "?" not in plain
    assert [len(line) for line in plain.splitlines()] == [len(line) for line in shown("utf-8").splitlines()]


def test_json_on_a_terminal_that_is_not_utf_8_is_still_json() -> None:
    code = f"from {PACKAGE}.commands.console import print_json; print_json({{'a': '\u6570\U0001f600'}})"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONIOENCODING": "latin-1"}, capture_output=True, timeout=60
    )
    assert json.loads(done.stdout) == {"a": "\u6570\U0001f600"}
