"""``prepare``: make a data set."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.commands.argument_types import positive_integer
from ais_bench_prefix_cache.commands.choosing import add_settings
from ais_bench_prefix_cache.commands.console import note, print_json, progress_bar, warn
from ais_bench_prefix_cache.commands.quiet_start import load_quietly, stdout_to_stderr
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.kinds import PREPARED_KINDS
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import EXIT_OK, PrefixCacheError, Problem, ScenarioError
from ais_bench_prefix_cache.foundation.log_files import run_log

if TYPE_CHECKING:
    from ais_bench_prefix_cache.datasets.format.kind import Sources
    from ais_bench_prefix_cache.scenario.model import Scenario

DESCRIPTION = (
    "Make the prompts of a Scenario, exact to the token, and write full.jsonl, requests.jsonl, analysis.json and, "
    "last, manifest.json; with --mode mm choose the image, and write <image scenario>.requests.jsonl in place of the "
    "two. Continues in the directory of the newest matching `inspect`, otherwise in a new one. "
    "The last line on stdout is one JSON object with the files' paths."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the Scenario, the kind of data set, and how it is made."""
    parser.add_argument(
        "--mode",
        choices=PREPARED_KINDS,
        help="text prompts, multimodal requests with images, or prompts that share what a trace shares (default: trace "
        "with --trace, mm where the Scenario has multimodal.mmmu_parquet_dir, else text)",
    )
    parser.add_argument("--scenario", type=Path, required=True, metavar="FILE", help="the Scenario (JSON)")
    add_settings(parser)
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="remake the newest data set of this Scenario in place, replacing its own files only "
        "(the same as run.overwrite); without it every prepared data set is kept",
    )
    parser.add_argument(
        "--verify",
        choices=("proof", "full"),
        default="proof",
        help="proof (default) encodes every distinct piece and join once more, full every whole prompt; "
        "both give the same files (--mode mm always encodes whole texts)",
    )
    parser.add_argument(
        "--workers",
        type=positive_integer,
        default=1,
        metavar="N",
        help="with --mode text: how many processes make the prompts (default 1); the files are the same. Tokenizers "
        "whose words are not proven to be encoded one by one stay on one",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="with --mode trace: a JSONL with hash_ids, in Mooncake's or Qwen-Bailian's format; the Scenario gives "
        "tokenizer, corpus, output and ranks",
    )
    parser.add_argument(
        "--trace-block-size", type=positive_integer, metavar="TOKENS", help="tokens of a hash_id (512 or 16)"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Make the data set and print where its files are; returns the exit code."""
    report = prepare(
        arguments.scenario,
        mode=arguments.mode or ("trace" if arguments.trace is not None else None),
        settings=arguments.settings,
        overwrite=arguments.overwrite,
        check_whole=arguments.verify == "full",
        workers=arguments.workers,
        trace=arguments.trace,
        trace_block_size=arguments.trace_block_size,
    )
    print_json(report, indent=None)
    return EXIT_OK


def prepare(
    path: Path,
    *,
    mode: str | None = None,
    settings: Sequence[str] = (),
    overwrite: bool = False,
    check_whole: bool = False,
    workers: int = 1,
    trace: Path | None = None,
    trace_block_size: int | None = None,
) -> dict[str, Any]:
    """Make the data set of the Scenario at ``path``; returns what the command prints: its files and figures.

    Without ``mode`` the Scenario tells. ``settings`` replace fields of the Scenario; ``overwrite`` remakes the newest
    data set in place; ``check_whole`` encodes every prompt whole; ``workers`` processes make the prompts
    where they are proven.

    Raises:
        ScenarioError, GenerationError, ArtifactError: with everything that is wrong, before anything is written.
    """
    from ais_bench_prefix_cache.datasets.format.engine import write_data_set
    from ais_bench_prefix_cache.datasets.format.kind import Preparation
    from ais_bench_prefix_cache.datasets.format.manifest import scenario_origin
    from ais_bench_prefix_cache.datasets.kinds import kind_named
    from ais_bench_prefix_cache.scenario.loading import load_scenario

    kind = kind_named(mode or load_scenario(path, rules=None, settings=settings).benchmark_mode)
    scenario = load_scenario(path, rules=kind.scenario_rules, settings=settings)
    loaded: list[Sources] = []

    def load(*further: Callable[[], object]) -> Sources:
        loaded.append(_load_sources(scenario, *further))
        return loaded[-1]

    preparation = Preparation(scenario, load, check_whole, workers, trace, trace_block_size)
    with stdout_to_stderr():  # A tokenizer that is sent to workers may print.
        content = kind.prepare(preparation)
    (sources,) = loaded
    if workers > 1 and not (kind.name == "text" and sources.tokenizer.join_proof.proven):
        reason = "only text data sets are made by several"
        if kind.name == "text":
            reason = f"nothing proves that words are encoded one by one: {sources.tokenizer.join_proof.reason}"
        note(f"note: one process makes this data set: {reason}")
    if ignored := sources.tokenizer.ignored_settings:
        warn(_ignored_settings(scenario.tokenizer.path, ignored))
    replace = overwrite or scenario.run.overwrite
    # What is refused before the first prompt has been: only now does a directory come into being.
    with _directory(scenario, kind.name, replace=replace) as paths, run_log(paths.log("prepare")) as log:
        log.info("scenario %s sha256 %s", scenario.path, scenario.sha256)
        log.info("corpus %s sha256 %s, %d rows", sources.corpus.path, sources.corpus.sha256, len(sources.corpus))
        log.info("tokenizer %s", sources.tokenizer.identity())
        for text in content.notes:
            log.info("%s", text)
        identity = sources.tokenizer.identity()
        origin = scenario_origin(scenario, paths, sources.corpus.sha256, identity, kind.tokenizer_keys)
        with progress_bar("Generate prompts", content.count) as show:
            manifest, analysis = write_data_set(kind, paths, content, origin, replace=replace, show=show)
        for warning in analysis["warnings"]:
            log.warning("%s %s", warning["code"], warning["message"])
            warn(warning)
        log.info("%d requests, wrote %s", content.count, paths.manifest)
    report = kind.report(paths, manifest)
    files = {"manifest": paths.manifest, "analysis": paths.analysis, "log": paths.log("prepare")}
    return {**report, **{key: str(path) for key, path in files.items()}}


def _ignored_settings(tokenizer: str, ignored: Sequence[str]) -> dict[str, str]:
    return {
        "code": Code.SPECIAL_TOKENS_IGNORED.value,
        "message": f"tokenizer_config.json of {tokenizer!r} has {' and '.join(ignored)}, which the installed "
        "transformers does not follow, so the prompts are made without; some servers follow it (SGLang, vLLM with "
        "transformers 4). If yours does, set tokenizer.add_special_tokens to true; `run` compares before it sends",
    }


def _load_sources(scenario: Scenario, *further: Callable[[], object]) -> Sources:
    """Corpus and tokenizer; ``further`` sources are loaded, too. Raises with the problems of all of them."""
    from ais_bench_prefix_cache.datasets.format.kind import Sources
    from ais_bench_prefix_cache.exact_text.corpus import load_corpus

    with _all_problems_at_once() as collecting:
        with collecting():
            corpus = load_corpus(scenario.corpus.path, scenario.corpus.field)
        with collecting():
            tokenizer = load_quietly(scenario.tokenizer)
        for load in further:
            with collecting():
                load()
    return Sources(corpus, tokenizer)


@contextmanager
def _all_problems_at_once() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Blocks under ``with collecting()`` may fail; the problems of all of them are raised at the end."""
    problems: list[Problem] = []

    @contextmanager
    def collecting() -> Iterator[None]:
        try:
            yield
        except PrefixCacheError as error:
            problems.extend(error.problems)

    yield collecting
    if problems:
        raise ScenarioError(problems)


@contextmanager
def _directory(scenario: Scenario, benchmark_mode: str, *, replace: bool) -> Iterator[RunPaths]:
    """The directory to write into, claimed for this process.

    The newest matching inspected one; with ``replace`` also a prepared one of this mode; otherwise, or where another
    command is writing there or an earlier one left data files behind, a new one, which a refusal removes again.
    """
    from ais_bench_prefix_cache.datasets.format.manifest_search import ManifestStatus, find_manifest
    from ais_bench_prefix_cache.datasets.format.writing import claimed

    run = scenario.run
    with ExitStack() as stack:
        statuses: tuple[ManifestStatus, ...] = ("inspected", "prepared") if replace else ("inspected",)
        search = find_manifest(scenario, statuses, benchmark_modes=(benchmark_mode,))
        for text in search.notes:
            note(f"note: {text}")
        if search.found is not None:
            paths = search.found.paths
            if (replace or not paths.data_files()) and stack.enter_context(claimed(paths.result_dir)):
                yield paths
                return
            note(f"note: {paths.directory} is in use or holds data files; a new directory is made")
        paths = RunPaths.create(run.output_dir, run.run_id, datetime.now())
        stack.enter_context(claimed(paths.result_dir))
        try:
            yield paths
        except BaseException:
            # Refused, which some prompts show only when they are made, or interrupted: nothing is left behind.
            if not paths.manifest.exists() and not paths.data_files():
                rmtree(paths.directory)
            raise
