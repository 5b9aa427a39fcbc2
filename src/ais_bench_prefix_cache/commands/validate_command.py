"""``validate``: prove that the files of a data set are intact."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.commands.choosing import add_choice, chosen
from ais_bench_prefix_cache.commands.console import print_json, warn
from ais_bench_prefix_cache.commands.quiet_start import load_quietly
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.foundation.errors import ArtifactError, PrefixCacheError
from ais_bench_prefix_cache.foundation.log_files import run_log

DESCRIPTION = (
    "Check every byte, row and figure of a prepared data set: edits, truncations, swapped rows, missing or foreign "
    "files are found and named, all at once. Prints one JSON object: ok, rows, run_id, or ok false and the errors."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is checked, and how deeply."""
    add_choice(parser, what="check the files")
    parser.add_argument(
        "--deep",
        action="store_true",
        help="also encode every prompt with the tokenizer and replay it through a model of the cache "
        "(image data sets: encode every text)",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Print ``ok`` and the rows, or every error; returns the exit code."""
    try:
        manifest = chosen(arguments).manifest
        with _log(manifest):
            report = _report(manifest, deep=arguments.deep)
    except PrefixCacheError as error:
        # On a terminal the lines on stderr say it already.
        if not sys.stdout.isatty():
            print_json({"ok": False, "errors": [_as_json(problem) for problem in error.problems]})
        raise
    print_json(report)
    return 0


def _report(manifest: Path, *, deep: bool) -> dict[str, Any]:
    from ais_bench_prefix_cache.datasets.format.engine import verify_deeply
    from ais_bench_prefix_cache.datasets.format.sources import corpus_warning
    from ais_bench_prefix_cache.datasets.kinds import verify
    from ais_bench_prefix_cache.scenario.model import TokenizerConfig

    data_set = verify(manifest)
    report: dict[str, Any] = {"ok": True, "rows": data_set.rows, "run_id": data_set.run_id}
    warning = corpus_warning(data_set.manifest)
    if warning is not None:
        warn(warning)
        report["warnings"] = [warning]
    if deep:
        stated = data_set.manifest["effective_config"]["tokenizer"]
        tokenizer = load_quietly(
            TokenizerConfig(stated["path"], stated["block_size"], stated["revision"], stated["trust_remote_code"])
        )
        report["deep"] = verify_deeply(data_set, tokenizer)
    return report


@contextmanager
def _log(manifest: Path) -> Iterator[None]:
    """Log beside a data set where one lies and its log directory can be written."""
    with ExitStack() as stack:
        log = None
        with suppress(ArtifactError, OSError):
            paths = RunPaths.of_manifest(manifest)
            if paths.directory.is_dir():
                log = stack.enter_context(run_log(paths.log("validate")))
        yield
        if log is not None:
            log.info("%s: all files are intact", manifest)


def _as_json(problem: Any) -> dict[str, Any]:
    fields = {
        "code": problem.code.value,
        "where": problem.where,
        "message": problem.message,
        "allowed": problem.allowed,
        "hint": problem.hint,
    }
    return {key: value for key, value in fields.items() if value is not None}
