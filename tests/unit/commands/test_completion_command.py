"""Completion in a real bash, and the examples of every command's help."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from ais_bench_prefix_cache.cli import COMMANDS, PROGRAM, build_parser
from ais_bench_prefix_cache.commands.completion_command import execute
from ais_bench_prefix_cache.foundation.errors import PrefixCacheError

COMPLETE = """
source completion.bash
COMP_WORDS=({words}) COMP_CWORD={last}
_shtab_ais_bench_prefix_cache
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
Completion = Callable[..., set[str]]


@pytest.fixture(scope="module")
def completion(tmp_path_factory: pytest.TempPathFactory) -> Completion:
    """``completion("run", "--sc")``: what bash offers for the last word."""
    directory = tmp_path_factory.mktemp("completion")
    (directory / "scenario.json").touch()
    made = subprocess.run(
        [sys.executable, "-m", "ais_bench_prefix_cache", "completion", "bash"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (directory / "completion.bash").write_text(made.stdout, encoding="utf-8")

    def offered(*words: str) -> set[str]:
        script = COMPLETE.format(words=shlex.join((PROGRAM, *words)), last=len(words))
        done = subprocess.run(["bash", "-c", script], cwd=directory, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        return {word.strip() for word in done.stdout.split()}

    return offered


def test_commands_options_choices_and_files_are_offered(completion: Completion) -> None:
    assert completion("") == set(COMMANDS)
    assert completion("--v") == {"--version"}
    assert completion("ru") == {"run", "runs"}
    assert completion("run", "--sc") == {"--scenario"}
    assert completion("prepare", "--verify", "") == {"proof", "full"}
    assert completion("run", "--scenario", "scen") == {"scenario.json"}
    assert completion("completion", "") >= {"bash", "zsh", "tcsh"}


def test_without_its_library_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden: Any = None
    monkeypatch.setitem(sys.modules, "shtab", hidden)
    with pytest.raises(PrefixCacheError) as caught:
        execute(build_parser("completion").parse_args(["completion", "zsh"]))
    assert str(caught.value) == (
        "completion: shtab, which makes the script, is not installed\n"
        "    pip install 'ais-bench-prefix-cache[completion]'"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_of_a_command_are_right(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    examples = import_module(f"ais_bench_prefix_cache.commands.{command}_command").EXAMPLES
    assert examples
    for example in examples:
        words = shlex.split(example)
        words = words[: words.index(">")] if ">" in words else words
        assert words[0] == command
        build_parser(command).parse_args(words)
    with pytest.raises(SystemExit):
        build_parser(command).parse_args([command, "--help"])
    shown = capsys.readouterr().out
    assert all(f"\n  {PROGRAM} {example}" in shown for example in examples)
