"""``completion``: commands and options at the press of a key."""

from __future__ import annotations

import argparse
from pathlib import Path

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import EXIT_OK, PrefixCacheError

DESCRIPTION = (
    "Print a script with which a shell completes this program's commands, options, choices and files. Needs the extra "
    "`completion` (shtab) when it is made, and nothing when it is used."
)
EXAMPLES = (
    "completion bash > ~/.local/share/bash-completion/completions/ais-bench-prefix-cache",
    "completion zsh > ~/.zfunc/_ais-bench-prefix-cache",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the shell."""
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell that is to complete")


def execute(arguments: argparse.Namespace) -> int:
    """Print the script; returns the exit code."""
    try:
        import shtab
    except ImportError:
        raise PrefixCacheError.of(
            Code.COMPLETION_NEEDS,
            "completion",
            "shtab, which makes the script, is not installed",
            hint="pip install 'ais-bench-prefix-cache[completion]'",
        ) from None
    parser = arguments.whole_parser()
    _complete_files(parser, shtab.FILE)
    print(shtab.complete(parser, shell=arguments.shell))
    return EXIT_OK


def _complete_files(parser: argparse.ArgumentParser, files: object) -> None:
    """Whatever takes a path is completed with files, in every command."""
    for action in parser._actions:
        if action.type is Path:
            action.complete = files  # type: ignore[attr-defined]
        elif isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_files(command, files)
