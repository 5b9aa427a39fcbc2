"""``validate``: prove that the files of a data set are intact."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.commands.console import print_json, run_log, warn
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.foundation.errors import ArtifactError, PrefixCacheError

if TYPE_CHECKING:
    from ais_bench_prefix_cache.datasets.format.verified_data_set import ProvenFiles, VerifiedDataSet

DESCRIPTION = (
    "Check every byte, row and figure of a prepared data set: edits, truncations, swapped rows, missing or foreign "
    "files are found and named, all at once. Prints one JSON object: ok, rows, run_id, or ok false and the errors."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``validate``."""
    parser.add_argument("--manifest", type=Path, required=True, metavar="FILE", help="the data set's manifest.json")
    parser.add_argument(
        "--deep",
        action="store_true",
        help="also encode every prompt with the tokenizer and replay it through a model of the cache "
        "(image data sets: encode every text)",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Run ``validate``; returns the exit code."""
    try:
        with _log(arguments.manifest):
            report = _report(arguments.manifest, deep=arguments.deep)
    except PrefixCacheError as error:
        print_json({"ok": False, "errors": [_as_json(problem) for problem in error.problems]})
        raise
    print_json(report)
    return 0


def _report(manifest: Path, *, deep: bool) -> dict[str, Any]:
    from ais_bench_prefix_cache.datasets.format.sources import corpus_warning
    from ais_bench_prefix_cache.datasets.text.manifest import stated_benchmark_mode

    mode = stated_benchmark_mode(manifest)
    data_set = _verify(mode, manifest)
    report: dict[str, Any] = {"ok": True, "rows": data_set.rows, "run_id": data_set.run_id}
    warning = corpus_warning(data_set.manifest)
    if warning is not None:
        warn(warning)
        report["warnings"] = [warning]
    if deep:
        report["deep"] = _check_deeply(mode, data_set)
    return report


def _verify(mode: str | None, manifest: Path) -> ProvenFiles:
    """Verify a data set by the rules of its kind; a manifest that does not say its kind is judged as text."""
    if mode == "distribution":
        from ais_bench_prefix_cache.datasets.copies.distribution_checks import verify_distribution

        return verify_distribution(manifest)
    if mode == "trace":
        from ais_bench_prefix_cache.datasets.traces.trace_data_set import verify_trace_data_set

        return verify_trace_data_set(manifest)
    from ais_bench_prefix_cache.datasets.kinds import verify_data_set

    data_set = verify_data_set(manifest)
    if data_set.manifest["benchmark_mode"] == "text" and _speaks_of_capacity(data_set):
        from ais_bench_prefix_cache.commands.capacity_check import check_capacity_warnings

        check_capacity_warnings(data_set)
    return data_set


def _speaks_of_capacity(data_set: VerifiedDataSet) -> bool:
    """Whether the configuration says how many blocks the server has, or a warning says that they do not suffice."""
    from ais_bench_prefix_cache.datasets.format.document_checks import capacity_warnings_of

    service = data_set.manifest["effective_config"]["service"]
    return service.get("kv_cache_blocks") is not None or bool(capacity_warnings_of(data_set.analysis))


def _check_deeply(mode: str | None, data_set: Any) -> dict[str, Any]:
    """Judge a verified data set's prompts by its tokenizer, by the rules of its kind."""
    from ais_bench_prefix_cache.commands.quiet_start import load_quietly
    from ais_bench_prefix_cache.scenario.model import TokenizerConfig

    stated = data_set.manifest["effective_config"]["tokenizer"]
    tokenizer = load_quietly(
        TokenizerConfig(
            path=stated["path"],
            block_size=stated["block_size"],
            revision=stated["revision"],
            trust_remote_code=stated["trust_remote_code"],
        )
    )
    if mode == "mm":
        from ais_bench_prefix_cache.datasets.images.verifying import check_texts

        return check_texts(data_set, tokenizer)
    if mode == "distribution":
        from ais_bench_prefix_cache.datasets.copies.distribution_checks import check_distribution_deeply

        return check_distribution_deeply(data_set, tokenizer)
    if mode == "trace":
        from ais_bench_prefix_cache.datasets.traces.trace_data_set import check_trace_deeply

        return check_trace_deeply(data_set, tokenizer)
    from ais_bench_prefix_cache.datasets.text.deep_check import check_deeply

    return check_deeply(data_set, tokenizer)


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
