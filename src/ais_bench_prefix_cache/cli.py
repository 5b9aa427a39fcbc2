"""The argument tree and the one place where errors become words on stderr and an exit code."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from types import FrameType
from typing import NoReturn

from ais_bench_prefix_cache import __version__
from ais_bench_prefix_cache.errors import (
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_INVALID_INPUT,
    EXIT_OK,
    EXIT_TERMINATED,
    PrefixCacheError,
    Terminated,
)

PROGRAM = "ais-bench-prefix-cache"
DEBUG_VARIABLE = "AISBENCH_PREFIX_CACHE_DEBUG"

COMMANDS = (
    "inspect",
    "prepare",
    "validate",
    "run",
    "analyze",
    "report",
    "schema",
    "distribution",
    "extract",
    "prompts",
    "kv",
    "batching",
    "simulate",
    "serve",
    "demo",
)
"""Subcommands in the order of ``--help``; each is ``commands/<name>_command.py``."""


def build_parser() -> argparse.ArgumentParser:
    """The whole argument tree. Imports no heavy library."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Prefix-cache benchmarks whose hit rate is known, to the token, before they run.",
        epilog="Exit codes: 0 success (warnings included), 2 bad usage, Scenario, data set or snapshots, 3 service, "
        "4 AISBench, 70 internal error, 130 interrupted, 143 terminated.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = import_module(f"ais_bench_prefix_cache.commands.{name}_command")
        subparser = subparsers.add_parser(name, help=module.SUMMARY, description=module.DESCRIPTION, allow_abbrev=False)
        module.add_arguments(subparser)
        subparser.set_defaults(execute=module.execute)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code; never lets a traceback out."""
    signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        arguments = build_parser().parse_args(argv)
        code = int(arguments.execute(arguments))
        sys.stdout.flush()
        return code
    except PrefixCacheError as error:
        for problem in error.problems:
            _say(f"error [{problem.code}] {problem}")
        if error.closing:
            _say(error.closing)
        return error.exit_code
    except KeyboardInterrupt as interrupt:
        _say(str(interrupt) or "interrupted")
        return EXIT_INTERRUPTED
    except Terminated as termination:
        _say(str(termination) or "terminated")
        return EXIT_TERMINATED
    except BrokenPipeError:
        # The reader went away: nothing is left to say, and Python's own flush at exit would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _say(f"error [OS_ERROR] {where}{error.strerror or error}")
        return EXIT_INVALID_INPUT
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        _say(f"error [INTERNAL] {type(error).__name__}: {error}")
        _say(f"This is a fault of {PROGRAM}. Set {DEBUG_VARIABLE}=1 for the traceback, and please report it.")
        return EXIT_INTERNAL


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _raise_terminated(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated
