"""``validate``: prove that the files of a data set are intact."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.commands.argument_types import positive_integer
from ais_bench_prefix_cache.commands.choosing import Chosen, add_choice, chosen
from ais_bench_prefix_cache.commands.console import print_json, warn
from ais_bench_prefix_cache.commands.quiet_start import load_quietly
from ais_bench_prefix_cache.datasets.format.documents import render_document
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError, PrefixCacheError
from ais_bench_prefix_cache.foundation.log_files import run_log

if TYPE_CHECKING:
    from ais_bench_prefix_cache.datasets.format.engine import VerifiedDataSet
    from ais_bench_prefix_cache.datasets.format.kind import DataSetKind
    from ais_bench_prefix_cache.scenario.model import Scenario, TokenizerConfig

DESCRIPTION = (
    "Check every byte, row and figure of a prepared data set: edits, truncations, swapped rows, missing or foreign "
    "files are found and named, all at once, and so is everything that its recorded configuration, planned again, does "
    "not give. Prints one JSON object: ok, rows, run_id, or ok false and the errors."
)
EXAMPLES = (
    "validate --scenario scenario.json --deep",
    "validate --manifest outputs/job_20260825_123456/result/job_20260825_123456.manifest.json",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is checked, and how deeply."""
    add_choice(parser, what="check the files")
    parser.add_argument(
        "--deep",
        action="store_true",
        help="also encode every prompt with the tokenizer and replay it through a model of the cache (image data sets: "
        "encode every text); with the corpus at hand make the prompts again and compare their bytes",
    )
    sources = parser.add_argument_group(
        "what --deep trusts",
        "With --scenario what that names, permission to run code included; else these. No file that a manifest names "
        "outside of its data set is opened, so --deep needs a tokenizer from one of the two.",
    )
    sources.add_argument("--tokenizer", metavar="DIR|NAME", help="the server's tokenizer: a directory or a hub name")
    sources.add_argument(
        "--trust-remote-code", action="store_true", help="allow Python code of the tokenizer's repository"
    )
    sources.add_argument("--corpus", type=Path, metavar="FILE", help="the corpus that the data set was made from")
    sources.add_argument("--trace", type=Path, metavar="FILE", help="the trace that the data set was made from")
    sources.add_argument(
        "--workers",
        type=positive_integer,
        default=1,
        metavar="N",
        help="how many processes make the prompts again (default 1), as for prepare; encoding takes all cores anyway",
    )
    origin = parser.add_argument_group("who made it: a detached signature (HMAC-SHA256) beside the manifest")
    origin.add_argument(
        "--seal", type=Path, metavar="KEY_FILE", help="write MANIFEST.hmac, after everything else was found to be right"
    )
    origin.add_argument(
        "--signature", type=Path, metavar="KEY_FILE", help="refuse a manifest without a signature by this key"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Print ``ok`` and the rows, or every error; returns the exit code."""
    try:
        choice = chosen(arguments)
        with _log(choice.manifest):
            report = _report(arguments, choice)
    except PrefixCacheError as error:
        # On a terminal the lines on stderr say it already.
        if not sys.stdout.isatty():
            print_json({"ok": False, "errors": [_as_json(problem) for problem in error.problems]})
        raise
    print_json(report)
    return 0


def _report(arguments: argparse.Namespace, choice: Chosen) -> dict[str, Any]:
    from ais_bench_prefix_cache.datasets.format.document_checks import MEASURED_STATUSES
    from ais_bench_prefix_cache.datasets.format.documents import read_document
    from ais_bench_prefix_cache.datasets.format.signature import check_signature, sign, signature_path
    from ais_bench_prefix_cache.datasets.format.sources import corpus_warning
    from ais_bench_prefix_cache.datasets.format.writing import write_content
    from ais_bench_prefix_cache.datasets.kinds import verify

    manifest_path = choice.manifest
    if arguments.signature is not None:
        _, content = read_document(manifest_path, what="manifest")
        check_signature(manifest_path, content, arguments.signature)
    data_set = verify(manifest_path)
    report: dict[str, Any] = {"ok": True, "rows": data_set.rows, "run_id": data_set.run_id}
    lacking = [] if arguments.deep else data_set.planned_elsewhere
    if choice.run is not None or data_set.analysis.get("status") in MEASURED_STATUSES:
        from ais_bench_prefix_cache.running.recounting import recount, with_analysis_of

        lacking += recount(with_analysis_of(data_set, choice.run), choice.run)
    if lacking:
        report["not_proven"] = lacking
        warn({"code": Code.NOT_PROVEN.value, "message": "not proven: " + "; ".join(lacking)})
    scenario = _own_scenario(arguments, data_set.kind)
    corpus_path = arguments.corpus or (scenario.corpus.path if scenario else None)
    warning = None if corpus_path is None else corpus_warning(data_set.manifest, corpus_path)
    if warning is not None:
        warn(warning)
        report["warnings"] = [warning]
    if arguments.deep:
        report["deep"] = _deep(arguments, data_set, scenario, None if warning else corpus_path)
    if arguments.signature is not None:
        report["signature"] = "valid"
    if arguments.seal is not None:
        _, content = read_document(manifest_path, what="manifest")
        if content != render_document(data_set.manifest):
            message = "the manifest was changed while it was validated"
            raise ArtifactError.of(Code.CONTENT_EDITED, str(manifest_path), message)
        write_content(signature_path(manifest_path), sign(content, arguments.seal))
        report["sealed"] = str(signature_path(manifest_path))
    return report


def _own_scenario(arguments: argparse.Namespace, kind: DataSetKind) -> Scenario | None:
    """The user's Scenario, by which the data set was chosen: the two agree in all that shapes it."""
    from ais_bench_prefix_cache.scenario.loading import load_scenario

    if arguments.scenario is None:
        return None
    return load_scenario(arguments.scenario, rules=kind.scenario_rules, settings=arguments.settings)


def _deep(
    arguments: argparse.Namespace, data_set: VerifiedDataSet, scenario: Scenario | None, corpus_path: Path | None
) -> dict[str, Any]:
    """Judge the texts; says what was not proven for want of a corpus or trace."""
    from ais_bench_prefix_cache.datasets.format.engine import verify_deeply
    from ais_bench_prefix_cache.exact_text.corpus import load_corpus

    config, named_by = _tokenizer(arguments, data_set, scenario)
    fields = data_set.kind.corpus_fields(data_set.manifest)
    corpus = None if corpus_path is None else load_corpus(corpus_path, *fields)
    deep: dict[str, Any] = {
        **verify_deeply(data_set, load_quietly(config), corpus, arguments.trace, arguments.workers),
        "tokenizer_named_by": named_by,
    }
    not_proven = data_set.kind.not_proven(data_set.manifest)
    if not deep["rebuilt"] and not data_set.planned_elsewhere:
        missing = "the corpus (--corpus)" if corpus is None else "the trace (--trace)"
        not_proven.insert(0, f"that making the prompts again gives the same bytes: {missing} is not at hand")
    if not_proven:
        warn({"code": Code.NOT_PROVEN.value, "message": "not proven: " + "; ".join(not_proven)})
    return {**deep, "not_proven": not_proven}


def _tokenizer(
    arguments: argparse.Namespace, data_set: VerifiedDataSet, scenario: Scenario | None
) -> tuple[TokenizerConfig, str]:
    """What to load, and who named it: never the manifest."""
    from ais_bench_prefix_cache.scenario.model import TokenizerConfig

    if arguments.tokenizer is not None:
        recorded = data_set.manifest["effective_config"]["tokenizer"]
        special = recorded.get("add_special_tokens", "auto")
        return TokenizerConfig(
            arguments.tokenizer, recorded["block_size"], None, arguments.trust_remote_code, special
        ), "--tokenizer"
    if scenario is None:
        raise ArtifactError.of(
            Code.TOKENIZER_NEEDED,
            "--deep",
            f"bytes and plan of {data_set.paths.manifest.name} are proven, but nothing about its tokens: no tokenizer "
            "was named, and what a manifest names is not opened",
            allowed="--scenario FILE, or --tokenizer DIR|NAME",
            hint="Add --corpus FILE, too, to have the prompts made again and their bytes compared.",
        )
    trusted = scenario.tokenizer.trust_remote_code or arguments.trust_remote_code
    return replace(scenario.tokenizer, trust_remote_code=trusted), "--scenario"


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
