"""Making a data set: from a Scenario's file to the files of its kind, in a directory of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from shutil import rmtree
from typing import Any

from ais_bench_prefix_cache.datasets.format.engine import write_data_set
from ais_bench_prefix_cache.datasets.format.kind import Preparation, Sources
from ais_bench_prefix_cache.datasets.format.leftovers import clear_leftovers
from ais_bench_prefix_cache.datasets.format.manifest import scenario_origin
from ais_bench_prefix_cache.datasets.format.manifest_search import ManifestStatus, find_manifest
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.format.writing import claimed
from ais_bench_prefix_cache.datasets.kinds import kind_named
from ais_bench_prefix_cache.exact_text.corpus import load_corpus
from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer, load_tokenizer
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import PrefixCacheError, Problem, ScenarioError
from ais_bench_prefix_cache.foundation.log_files import run_log
from ais_bench_prefix_cache.foundation.telling import Note, ProgressBar, no_bar, no_note, warning_line
from ais_bench_prefix_cache.scenario.loading import load_scenario
from ais_bench_prefix_cache.scenario.model import Scenario, TokenizerConfig


@dataclass(frozen=True)
class PreparedDataSet:
    """A data set that has just been written; ``report`` is what ``prepare`` prints: files and figures."""

    paths: RunPaths
    manifest: dict[str, Any]
    warnings: list[dict[str, Any]]
    report: dict[str, Any]


def prepare_data_set(
    path: Path,
    *,
    mode: str | None = None,
    settings: Sequence[str] = (),
    overwrite: bool = False,
    check_whole: bool = False,
    workers: int = 1,
    ray: str | None = None,
    trace: Path | None = None,
    trace_block_size: int | None = None,
    load: Callable[[TokenizerConfig], PromptTokenizer] = load_tokenizer,
    note: Note = no_note,
    bar: ProgressBar = no_bar,
) -> PreparedDataSet:
    """Make the data set of the Scenario at ``path``.

    Without ``mode`` the Scenario tells. ``settings`` (``field=value``) replace fields of the Scenario; ``overwrite``
    remakes the newest data set in place; ``check_whole`` encodes every prompt whole; ``workers`` processes, or the
    Ray cluster at ``ray``, make the prompts where they are proven. ``load`` loads the tokenizer,
    ``note`` hears what a person should know, and the warnings.

    Raises:
        ScenarioError, GenerationError, ArtifactError: with everything that is wrong; nothing is left behind.
    """
    kind = kind_named(mode or load_scenario(path, rules=None, settings=settings).benchmark_mode)
    scenario = load_scenario(path, rules=kind.scenario_rules, settings=settings)
    loaded: list[Sources] = []

    def load_sources(*further: Callable[[], object]) -> Sources:
        loaded.append(_load_sources(scenario, load, *further))
        return loaded[-1]

    content = kind.prepare(Preparation(scenario, load_sources, check_whole, workers, ray, trace, trace_block_size))
    (sources,) = loaded
    if sources.corpus.field != scenario.corpus.field:
        note(f"note: the corpus has no {scenario.corpus.field!r}; its text is read from {sources.corpus.field!r}")
    if (workers > 1 or ray is not None) and content.one_process is not None:
        note(f"note: one process makes this data set: {content.one_process}")
    replace = overwrite or scenario.run.overwrite
    # What is refused before the first prompt has been: only now does a directory come into being.
    with _directory(scenario, kind.name, note, replace=replace) as paths, run_log(paths.log("prepare")) as log:
        identity = sources.tokenizer.identity()
        log.info("scenario %s sha256 %s", scenario.path, scenario.sha256)
        log.info("corpus %s sha256 %s, %d rows", sources.corpus.path, sources.corpus.sha256, len(sources.corpus))
        log.info("tokenizer %s", identity)
        for text in content.notes:
            log.info("%s", text)
        origin = scenario_origin(scenario, paths, sources.corpus.sha256, identity, kind.tokenizer_keys)
        with bar("Generate prompts", content.count) as show:
            manifest, analysis = write_data_set(kind, paths, content, origin, replace=replace, show=show)
        warnings = [*_tokenizer_warnings(sources.tokenizer), *analysis.get("warnings", ())]
        for warning in warnings:
            log.warning("%s %s", warning["code"], warning["message"])
            note(warning_line(warning))
        log.info("%d requests, wrote %s", content.count, paths.manifest)
    files = {"manifest": paths.manifest, "analysis": paths.analysis, "log": paths.log("prepare")}
    if not kind.has_analysis:
        del files["analysis"]
    report = {**kind.report(paths, manifest), **{key: str(file) for key, file in files.items()}}
    return PreparedDataSet(paths, manifest, warnings, report)


def _tokenizer_warnings(tokenizer: PromptTokenizer) -> list[dict[str, Any]]:
    """That special tokens are asked for and not added: no part of the analysis, which the plan alone determines."""
    if not (ignored := tokenizer.ignored_settings):
        return []
    return [
        {
            "code": Code.SPECIAL_TOKENS_IGNORED.value,
            "message": f"tokenizer_config.json sets {' and '.join(ignored)}, which the installed transformers does not "
            "follow, so the prompts are made without; some servers follow it (SGLang, vLLM with transformers 4). If "
            "yours does, set tokenizer.add_special_tokens to true and prepare again; `run` compares before it sends",
        }
    ]


def _load_sources(
    scenario: Scenario, load: Callable[[TokenizerConfig], PromptTokenizer], *further: Callable[[], object]
) -> Sources:
    """Corpus and tokenizer; ``further`` sources are loaded, too. Raises with the problems of all of them."""
    with _all_problems_at_once() as collecting:
        with collecting():
            corpus = load_corpus(scenario.corpus.path, scenario.corpus.field)
        with collecting():
            tokenizer = load(scenario.tokenizer)
        for load_further in further:
            with collecting():
                load_further()
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
def _directory(scenario: Scenario, benchmark_mode: str, note: Note, *, replace: bool) -> Iterator[RunPaths]:
    """The directory to write into, claimed for this process.

    The newest matching inspected one; with ``replace`` also a prepared one of this mode; otherwise, or where another
    command is writing there, a new one, which a refusal removes again. What killed commands left is cleared away.
    """
    run = scenario.run
    with ExitStack() as stack:
        for text in clear_leftovers(scenario):
            note(f"note: {text}")
        statuses: tuple[ManifestStatus, ...] = ("inspected", "prepared") if replace else ("inspected",)
        search = find_manifest(scenario, statuses, benchmark_modes=(benchmark_mode,))
        for text in search.notes:
            note(f"note: {text}")
        if search.found is not None:
            paths = search.found.paths
            if stack.enter_context(claimed(paths.result_dir)):
                if not replace:
                    # A plan has no data files: a command was killed before it could write the manifest.
                    for path in paths.data_files():
                        if path.name.endswith((".jsonl", ".analysis.json")):
                            path.unlink()
                yield paths
                return
            note(f"note: {paths.directory} is in use; a new directory is made")
        paths = RunPaths.create(run.output_dir, run.run_id, datetime.now())
        stack.enter_context(claimed(paths.result_dir))
        try:
            yield paths
        except BaseException:
            # Refused, which some prompts show only when they are made, or interrupted: nothing is left behind.
            if not paths.manifest.exists() and not paths.data_files():
                rmtree(paths.directory)
            raise
