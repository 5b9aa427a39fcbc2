"""The argument tree and the one place where errors become words on stderr and an exit code."""

from __future__ import annotations

import argparse
import codecs
import importlib
import io
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from ais_bench_prefix_cache import __version__
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import (
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_INVALID_INPUT,
    EXIT_OK,
    EXIT_TERMINATED,
    PrefixCacheError,
    Terminated,
    os_error_problem,
)
from ais_bench_prefix_cache.foundation.findings import nearest
from ais_bench_prefix_cache.foundation.interruptions import ended_by_the_first_signal

PROGRAM = "ais-bench-prefix-cache"
DEBUG_VARIABLE = "AISBENCH_PREFIX_CACHE_DEBUG"

COMMANDS = {
    "init": "write a Scenario from what a running server tells of itself",
    "inspect": "preview a Scenario: reachable hit rates, groups, lengths, routes",
    "prepare": "make the data set of a Scenario: requests, manifest, theoretical analysis",
    "validate": "prove that the files of a data set are intact",
    "run": "send a data set through AISBench and compare theory with the server's counters",
    "runs": "list the runs of a Scenario: when, how they ended, what was counted",
    "sweep": "run a Scenario at many points, several times: one table, one page",
    "compare": "set two runs or sweeps beside each other: differences, intervals, verdicts",
    "analyze": "recompute the actual hit rate from two saved /metrics texts",
    "report": "show the performance and prefix-cache tables of a finished run",
    "schema": "print the Scenario's JSON Schema",
    "distribution": "make a data set whose prompts copy the beginning of earlier ones",
    "extract": "keep only the requests of a data set, for this or another benchmark",
    "conversations": "write a Scenario whose conversations are as long as those of a file",
    "prompts": "print prompts that repeat, are unique, or share a prefix",
    "kv": "size a KV cache: bytes per token, memory, page tables, fragmentation, what fits",
    "batching": "static against continuous batching: start, finish, slots over time",
    "simulate": "replay any JSONL of requests through prefix caches: hit rate, evictions, capacity curve",
    "serve": "run the embedded OpenAI-compatible server, which caches and counts as vLLM does",
    "demo": "run the main job on the embedded server with the real AISBench",
    "completion": "print a script with which a shell completes commands and options",
}
"""Subcommands in the order of ``--help``, with what it says about them; each is ``commands/<name>_command.py``."""


_PLAIN = "ais_bench_prefix_cache.plain"
_PLAIN_LINES = dict.fromkeys("╒╤╕╞╪╡├┼┤╘╧╛", "+") | {"│": "|", "─": "-", "═": "=", "█": "#"}

_EXAMPLES_TITLE = "examples:"
EXAMPLES = """\
The main job:
  %(prog)s inspect --scenario scenario.json
  %(prog)s prepare --scenario scenario.json
  %(prog)s run --scenario scenario.json
  %(prog)s report --scenario scenario.json
All of it on an embedded server:
  %(prog)s demo

Exit codes:
  0 success (warnings included), 1 a condition of compare --fail-if is met,
  2 bad usage, Scenario, data set or snapshots, 3 service, 4 AISBench,
  5 too few data to judge --fail-if, 70 internal error, 130 interrupted, 143 terminated
"""


class _Parser(argparse.ArgumentParser):
    """argparse's, with a guess at what a mistyped command was to be."""

    def error(self, message: str) -> NoReturn:
        """Print usage and the message on stderr and exit with 2."""
        mistyped = re.search(r"argument COMMAND: invalid choice: '([^']*)'", message)
        near = nearest(mistyped[1], COMMANDS) if mistyped else None
        super().error(f"{message}\n    did you mean {near}?" if near else message)


class _HelpFormatter(argparse.HelpFormatter):
    """Breaks the lines of a description, but not those of examples, which are to be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(_EXAMPLES_TITLE) else super()._fill_text(text, width, indent)


def build_parser(*commands: str) -> argparse.ArgumentParser:
    """The argument tree: of the named commands with their options, or of all commands without any."""
    parser = _Parser(
        prog=PROGRAM,
        description="Prefix-cache benchmarks whose hit rate is known, to the token, before they run.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    subparsers = parser.add_subparsers(prog=PROGRAM, dest="command", metavar="COMMAND", required=True)
    if not commands:
        for name, summary in COMMANDS.items():
            subparsers.add_parser(name, help=summary, add_help=False)
    for name in commands:
        module = importlib.import_module(f"ais_bench_prefix_cache.commands.{name}_command")
        subparser = subparsers.add_parser(
            name,
            help=COMMANDS[name],
            description=module.DESCRIPTION,
            epilog="\n".join([_EXAMPLES_TITLE, *(f"  {PROGRAM} {example}" for example in module.EXAMPLES)]),
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(subparser)
        subparser.set_defaults(execute=module.execute, whole_parser=lambda: build_parser(*COMMANDS))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code; never lets a traceback out."""
    _never_fail_to_write()
    words = sys.argv[1:] if argv is None else argv
    try:
        # What comes before a command (--help, --version, a mistake) ends the program in the tree without options.
        parser = build_parser(*(word for word in words[:1] if word in COMMANDS))
        if not words:
            parser.print_help(sys.stderr)
            return EXIT_INVALID_INPUT
        arguments = parser.parse_args(words)
    except KeyboardInterrupt:
        _say("interrupted")
        return EXIT_INTERRUPTED
    return _execute(arguments)


def _never_fail_to_write() -> None:
    """A terminal or pipe that is not UTF-8 gets plain lines for drawn ones, ``?`` for what else it lacks."""
    codecs.register_error(_PLAIN, _plainly)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_PLAIN)


def _plainly(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    unknown = error.object[error.start : error.end]
    return "".join(_PLAIN_LINES.get(character, "?") for character in unknown), error.end


def _execute(arguments: argparse.Namespace) -> int:
    try:
        with ended_by_the_first_signal():
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
        problem = os_error_problem(error)
        _say(f"error [{problem.code}] {problem}")
        return EXIT_INVALID_INPUT
    except MemoryError:
        _say(f"error [{Code.NOT_ENOUGH_MEMORY}] this machine has less memory than what was asked for takes")
        _say("    Ask for fewer or shorter requests, or use a larger machine.")
        return EXIT_INVALID_INPUT
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            traceback.print_exc()
        _say(f"error [{Code.INTERNAL}] {type(error).__name__}: {error}")
        _say(f"This is a fault of {PROGRAM}. Set {DEBUG_VARIABLE}=1 for the traceback, and please report it.")
        return EXIT_INTERNAL


def _say(line: str) -> None:
    from ais_bench_prefix_cache.foundation.quoting import printable

    print(printable(line), file=sys.stderr, flush=True)
