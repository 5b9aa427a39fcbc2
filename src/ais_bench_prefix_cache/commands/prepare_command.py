"""``prepare``: make a data set."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ais_bench_prefix_cache.artifacts.paths import RunPaths
    from ais_bench_prefix_cache.scenario.model import Scenario

DESCRIPTION = (
    "Make the prompts of a Scenario, exact to the token, and write full.jsonl, requests.jsonl, analysis.json and, "
    "last, manifest.json. Continues in the directory of the newest matching `inspect`, otherwise in a new one. "
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
        "both give the same files",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="with --mode trace: a JSONL with hash_ids, in Mooncake's or Qwen-Bailian's format; the Scenario gives "
        "tokenizer, corpus, output and ranks",
    )
    parser.add_argument("--trace-block-size", type=int, metavar="TOKENS", help="tokens of a hash_id (512 or 16)")


def execute(arguments: argparse.Namespace) -> int:
    """Run ``prepare``; returns the exit code."""
    from ais_bench_prefix_cache.artifacts.data_set import write_data_set
    from ais_bench_prefix_cache.commands.capacity_check import capacity_warnings
    from ais_bench_prefix_cache.commands.console import print_json, progress, run_log, warn
    from ais_bench_prefix_cache.errors import PrefixCacheError
    from ais_bench_prefix_cache.planning.planner import plan_scenario
    from ais_bench_prefix_cache.prompts.assembly import build_prompt_set
    from ais_bench_prefix_cache.prompts.corpus import load_corpus
    from ais_bench_prefix_cache.prompts.tokenizer import load_tokenizer
    from ais_bench_prefix_cache.scenario.loading import load_scenario

    if arguments.mode == "trace":
        return _prepare_trace(arguments)
    if arguments.mode == "mm":
        raise PrefixCacheError.of(
            "MULTIMODAL",
            "--mode mm",
            "multimodal data sets are not available yet in this version",
            allowed="--mode text",
        )
    scenario = load_scenario(arguments.scenario)
    replace = arguments.overwrite or scenario.run.overwrite
    plan = plan_scenario(scenario)
    corpus = load_corpus(scenario.corpus.path, scenario.corpus.field)
    tokenizer = load_tokenizer(scenario.tokenizer)
    identity = tokenizer.identity()
    prompts = build_prompt_set(scenario, plan, tokenizer, corpus, verify=arguments.verify)
    # What is refused before the first prompt has been: only now does a directory come into being.
    with _directory(scenario, replace=replace) as paths, run_log(paths.log("prepare")) as log:
        log.info("scenario %s sha256 %s", scenario.path, scenario.sha256)
        log.info("corpus %s sha256 %s, %d rows", corpus.path, corpus.sha256, len(corpus))
        log.info("tokenizer %s", identity)
        log.info("%d requests, planned by %s (%s)", len(plan), plan.trajectory.path, plan.trajectory.status)
        analysis = write_data_set(
            scenario,
            paths,
            plan=plan,
            prompts=prompts,
            corpus_sha256=corpus.sha256,
            tokenizer=identity,
            replace=replace,
            progress=lambda rows: progress(rows, total=len(plan), label="Generate prompts"),
        )
        for warning in [*analysis["warnings"], *capacity_warnings(scenario, plan)]:
            log.warning("%s %s", warning["code"], warning["message"])
            warn(warning)
        log.info("theoretical hit rate %.6f, wrote %s", analysis["theoretical_hit_rate"], paths.manifest)
    print_json(_paths(paths), indent=None)
    return 0


def _prepare_trace(arguments: argparse.Namespace) -> int:
    from ais_bench_prefix_cache.artifacts.sources import file_sha256
    from ais_bench_prefix_cache.artifacts.trace_data_set import write_trace_data_set
    from ais_bench_prefix_cache.commands.console import print_json, progress, run_log
    from ais_bench_prefix_cache.errors import PrefixCacheError
    from ais_bench_prefix_cache.prompts.corpus import load_corpus
    from ais_bench_prefix_cache.prompts.tokenizer import load_tokenizer
    from ais_bench_prefix_cache.prompts.trace_prompts import TracePrompts
    from ais_bench_prefix_cache.scenario.loading import load_scenario
    from ais_bench_prefix_cache.traces.reading import check_block_trace, read_trace

    if arguments.trace is None:
        raise PrefixCacheError.of("OPTIONS", "--trace", "is needed with --mode trace")
    scenario = load_scenario(arguments.scenario)
    replace = arguments.overwrite or scenario.run.overwrite
    # The whole trace is read once before anything is written: nothing half-made, and a progress bar that knows its end.
    block_size, count = check_block_trace(arguments.trace, arguments.trace_block_size)
    corpus = load_corpus(scenario.corpus.path, scenario.corpus.field)
    tokenizer = load_tokenizer(scenario.tokenizer)
    prompts = TracePrompts(tokenizer, corpus, trace_block_size=block_size, block_size=scenario.block_size)
    trace = {"path": str(arguments.trace.resolve()), "sha256": file_sha256(arguments.trace), "block_size": block_size}
    with _directory(scenario, replace=replace) as paths, run_log(paths.log("prepare")) as log:
        log.info("scenario %s sha256 %s", scenario.path, scenario.sha256)
        log.info("trace %s", trace)
        analysis = write_trace_data_set(
            scenario,
            paths,
            read_trace(arguments.trace, trace_block_size=block_size),
            prompts,
            trace=trace,
            corpus_sha256=corpus.sha256,
            tokenizer=tokenizer.identity(),
            replace=replace,
            progress=lambda rows: progress(rows, total=count, label="Generate prompts"),
        )
        log.info("theoretical hit rate %.6f, wrote %s", analysis["theoretical_hit_rate"], paths.manifest)
    print_json(_paths(paths), indent=None)
    return 0


def _paths(paths: RunPaths) -> dict[str, str]:
    return {
        "full": str(paths.full),
        "requests": str(paths.requests),
        "manifest": str(paths.manifest),
        "analysis": str(paths.analysis),
        "log": str(paths.log("prepare")),
    }


@contextmanager
def _directory(scenario: Scenario, *, replace: bool) -> Iterator[RunPaths]:
    """The directory to write into, claimed for this process.

    The newest matching inspected one; with ``replace`` also a prepared one; otherwise, or where another command is
    writing there or an earlier one left data files behind, a new one, which a refusal removes again.
    """
    from shutil import rmtree

    from ais_bench_prefix_cache.artifacts.paths import RunPaths, find_manifest
    from ais_bench_prefix_cache.artifacts.writing import claimed
    from ais_bench_prefix_cache.commands.console import note
    from ais_bench_prefix_cache.errors import GenerationError

    run = scenario.run
    with ExitStack() as stack:
        search = find_manifest(
            run.output_dir, run.run_id, scenario.sha256, ("inspected", "prepared") if replace else ("inspected",)
        )
        for text in search.notes:
            note(f"note: {text}")
        if search.found is not None:
            paths = search.found.paths
            empty = not any(path.exists() for path in (paths.full, paths.requests, paths.analysis))
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
