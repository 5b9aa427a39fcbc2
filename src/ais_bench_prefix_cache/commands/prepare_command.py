"""``prepare``: make a data set."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ais_bench_prefix_cache.commands.argument_types import positive_integer
from ais_bench_prefix_cache.commands.quiet_start import load_quietly

if TYPE_CHECKING:
    from logging import Logger

    from ais_bench_prefix_cache.datasets.format.paths import RunPaths
    from ais_bench_prefix_cache.datasets.text.assembly import VerifyMode
    from ais_bench_prefix_cache.exact_text.corpus import Corpus
    from ais_bench_prefix_cache.foundation.errors import Problem
    from ais_bench_prefix_cache.scenario.model import BenchmarkMode, Scenario

DESCRIPTION = (
    "Make the prompts of a Scenario, exact to the token, and write full.jsonl, requests.jsonl, analysis.json and, "
    "last, manifest.json; with --mode mm choose the image, and write <image scenario>.requests.jsonl in place of the "
    "two. Continues in the directory of the newest matching `inspect`, otherwise in a new one. "
    "The last line on stdout is one JSON object with the files' paths."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``prepare``."""
    parser.add_argument(
        "--mode",
        choices=("text", "mm", "trace"),
        required=True,
        help="text prompts, multimodal requests with images, or prompts that share what a trace shares",
    )
    parser.add_argument("--scenario", type=Path, required=True, metavar="FILE", help="the Scenario (JSON)")
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
    """Run ``prepare``; returns the exit code."""
    from ais_bench_prefix_cache.commands.console import print_json
    from ais_bench_prefix_cache.foundation.errors import PrefixCacheError
    from ais_bench_prefix_cache.scenario.loading import load_scenario

    benchmark_mode: BenchmarkMode = "mm" if arguments.mode == "mm" else "text"
    if arguments.mode == "trace" and arguments.trace is None:
        raise PrefixCacheError.of("OPTIONS", "--trace", "is needed with --mode trace")
    scenario = load_scenario(arguments.scenario, benchmark_mode=benchmark_mode)
    replace = arguments.overwrite or scenario.run.overwrite
    if arguments.mode == "mm":
        report = _prepare_images(scenario, replace=replace)
    elif arguments.mode == "trace":
        report = _prepare_trace(
            scenario, arguments.trace, arguments.trace_block_size, replace=replace, verify=arguments.verify
        )
    else:
        report = _prepare_text(scenario, replace=replace, verify=arguments.verify)
    print_json(report, indent=None)
    return 0


def _prepare_text(scenario: Scenario, *, replace: bool, verify: VerifyMode) -> dict[str, Any]:
    from ais_bench_prefix_cache.commands.capacity_check import capacity_warnings
    from ais_bench_prefix_cache.commands.console import progress, run_log, warn
    from ais_bench_prefix_cache.datasets.text.assembly import build_prompt_set
    from ais_bench_prefix_cache.datasets.text.data_set import write_data_set
    from ais_bench_prefix_cache.exact_text.corpus import load_corpus
    from ais_bench_prefix_cache.planning.planner import plan_scenario

    plan = plan_scenario(scenario)
    capacity = capacity_warnings(scenario, plan)
    with _all_problems_at_once() as collecting:
        with collecting():
            corpus = load_corpus(scenario.corpus.path, scenario.corpus.field)
        with collecting():
            tokenizer = load_quietly(scenario.tokenizer)
    identity = tokenizer.identity()
    prompts = build_prompt_set(scenario, plan, tokenizer, corpus, verify=verify)
    # What is refused before the first prompt has been: only now does a directory come into being.
    with _directory(scenario, "text", replace=replace) as paths, run_log(paths.log("prepare")) as log:
        _log_sources(log, scenario, corpus, identity)
        log.info("%d requests, planned by %s (%s)", len(plan), plan.trajectory.path, plan.trajectory.status)
        analysis = write_data_set(
            scenario,
            paths,
            plan=plan,
            prompts=prompts,
            corpus_sha256=corpus.sha256,
            tokenizer=identity,
            warnings=capacity,
            replace=replace,
            progress=lambda rows: progress(rows, total=len(plan), label="Generate prompts"),
        )
        for warning in analysis["warnings"]:
            log.warning("%s %s", warning["code"], warning["message"])
            warn(warning)
        log.info("theoretical hit rate %.6f, wrote %s", analysis["theoretical_hit_rate"], paths.manifest)
    return _paths(paths)


def _prepare_images(scenario: Scenario, *, replace: bool) -> dict[str, Any]:
    from ais_bench_prefix_cache.commands.console import progress, run_log, warn
    from ais_bench_prefix_cache.datasets.images.data_set import write_image_data_set
    from ais_bench_prefix_cache.datasets.images.image_scenarios import IMAGE_SCENARIOS
    from ais_bench_prefix_cache.datasets.images.mmmu_parquet import find_image
    from ais_bench_prefix_cache.datasets.images.plain_texts import PlainTexts
    from ais_bench_prefix_cache.exact_text.corpus import load_corpus
    from ais_bench_prefix_cache.scenario.model import FixedLength

    requests, multimodal = scenario.requests, scenario.multimodal
    assert multimodal is not None and multimodal.mmmu_parquet_dir is not None
    assert isinstance(requests.input_length, FixedLength) and isinstance(requests.output_length, FixedLength)
    (name,) = multimodal.scenarios
    wanted = IMAGE_SCENARIOS[name]
    with _all_problems_at_once() as collecting:
        with collecting():
            corpus = load_corpus(scenario.corpus.path, scenario.corpus.field)
        with collecting():
            tokenizer = load_quietly(scenario.tokenizer)
        with collecting():
            image, record = find_image(multimodal.mmmu_parquet_dir, wanted.width, wanted.height)
    identity = tokenizer.identity()
    texts = PlainTexts(
        corpus,
        scenario.corpus.selection,
        tokenizer,
        random_seed=scenario.run.random_seed,
        tokens=requests.input_length.value,
        count=requests.count,
    )
    # Everything that can be refused has been: only now does a directory come into being.
    with _directory(scenario, "mm", replace=replace) as paths, run_log(paths.log("prepare")) as log:
        _log_sources(log, scenario, corpus, identity)
        log.info("image %s row %d %s", image.parquet_path, image.row_index, image.image_column)
        for warning in record.warnings():
            log.warning("%s %s", warning["code"], warning["message"])
            warn(warning)
        manifest = write_image_data_set(
            scenario,
            paths,
            name=name,
            image=image,
            record=record,
            texts=texts,
            text_tokens=requests.input_length.value,
            max_tokens=requests.output_length.value,
            corpus_sha256=corpus.sha256,
            tokenizer=identity,
            replace=replace,
            progress=lambda each: progress(each, total=requests.count, label="Generate texts"),
        )
        log.info("%d requests of %d images, wrote %s", requests.count, wanted.images, paths.manifest)
    shown = manifest["datasets"][name]["image"]
    return {
        "ok": True,
        "request_count": requests.count,
        "text_tokens": requests.input_length.value,
        "output_tokens": requests.output_length.value,
        "datasets": {name: str(paths.image_requests(name))},
        "selected_images": {
            name: {
                "size": [shown["width"], shown["height"]],
                **{key: shown[key] for key in ("sample_id", "image_column", "parquet_path", "sha256")},
            }
        },
        "manifest": str(paths.manifest),
        "analysis": str(paths.analysis),
        "log": str(paths.log("prepare")),
    }


def _log_sources(log: Logger, scenario: Scenario, corpus: Corpus, tokenizer: Mapping[str, Any]) -> None:
    log.info("scenario %s sha256 %s", scenario.path, scenario.sha256)
    log.info("corpus %s sha256 %s, %d rows", corpus.path, corpus.sha256, len(corpus))
    log.info("tokenizer %s", tokenizer)


def _prepare_trace(
    scenario: Scenario, trace_path: Path, trace_block_size: int | None, *, replace: bool, verify: VerifyMode
) -> dict[str, Any]:
    from ais_bench_prefix_cache.commands.capacity_check import trace_capacity_warnings
    from ais_bench_prefix_cache.commands.console import progress, run_log, warn
    from ais_bench_prefix_cache.datasets.format.sources import file_sha256
    from ais_bench_prefix_cache.datasets.traces.reading import check_block_trace, read_trace
    from ais_bench_prefix_cache.datasets.traces.trace_data_set import write_trace_data_set
    from ais_bench_prefix_cache.datasets.traces.trace_prompts import TracePrompts
    from ais_bench_prefix_cache.exact_text.corpus import load_corpus

    # The whole trace is read once before anything is written: nothing half-made, and a progress bar that knows its end.
    block_size, count = check_block_trace(trace_path, trace_block_size)
    with _all_problems_at_once() as collecting:
        with collecting():
            corpus = load_corpus(scenario.corpus.path, scenario.corpus.field)
        with collecting():
            tokenizer = load_quietly(scenario.tokenizer)
    prompts = TracePrompts(
        tokenizer,
        corpus,
        trace_block_size=block_size,
        block_size=scenario.block_size,
        check_each=verify == "full",
    )
    trace = {"path": str(trace_path.resolve()), "sha256": file_sha256(trace_path), "block_size": block_size}
    with _directory(scenario, "trace", replace=replace) as paths, run_log(paths.log("prepare")) as log:
        log.info("scenario %s sha256 %s", scenario.path, scenario.sha256)
        log.info("trace %s", trace)
        analysis = write_trace_data_set(
            scenario,
            paths,
            read_trace(trace_path, trace_block_size=block_size),
            prompts,
            trace=trace,
            corpus_sha256=corpus.sha256,
            tokenizer=tokenizer.identity(),
            replace=replace,
            progress=lambda rows: progress(rows, total=count, label="Generate prompts"),
            capacity_warnings=partial(trace_capacity_warnings, scenario),
        )
        for warning in analysis["warnings"]:
            log.warning("%s %s", warning["code"], warning["message"])
            warn(warning)
        log.info("theoretical hit rate %.6f, wrote %s", analysis["theoretical_hit_rate"], paths.manifest)
    return _paths(paths)


def _paths(paths: RunPaths) -> dict[str, str]:
    return {
        "full": str(paths.full),
        "requests": str(paths.requests),
        "manifest": str(paths.manifest),
        "analysis": str(paths.analysis),
        "log": str(paths.log("prepare")),
    }


@contextmanager
def _all_problems_at_once() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Blocks under ``with collecting()`` may fail; the problems of all of them are raised at the end."""
    from ais_bench_prefix_cache.foundation.errors import PrefixCacheError, ScenarioError

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
    from shutil import rmtree

    from ais_bench_prefix_cache.commands.console import note
    from ais_bench_prefix_cache.datasets.format.manifest_search import find_manifest
    from ais_bench_prefix_cache.datasets.format.paths import RunPaths
    from ais_bench_prefix_cache.datasets.format.writing import claimed
    from ais_bench_prefix_cache.foundation.errors import GenerationError

    run = scenario.run
    with ExitStack() as stack:
        search = find_manifest(
            run.output_dir,
            run.run_id,
            scenario.sha256,
            ("inspected", "prepared") if replace else ("inspected",),
            benchmark_mode=benchmark_mode,
        )
        for text in search.notes:
            note(f"note: {text}")
        if search.found is not None:
            paths = search.found.paths
            empty = not any(path.exists() for path in paths.data_files)
            if (replace or empty) and stack.enter_context(claimed(paths.result_dir)):
                yield paths
                return
            note(f"note: {paths.directory} is in use or holds data files; a new directory is made")
        paths = RunPaths.create(run.output_dir, run.run_id, datetime.now())
        stack.enter_context(claimed(paths.result_dir))
        try:
            yield paths
        except GenerationError:
            # A prompt that cannot be made exact shows only when it is made, where the tokenizer gives no proof.
            rmtree(paths.directory)
            raise
