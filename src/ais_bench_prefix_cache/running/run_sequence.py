"""One run from beginning to end: verify, understand the server, empty and warm its caches, send, count, analyze.

Nothing is written before the end: until :func:`run_benchmark` returns, ``analysis.json`` is what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.format.sources import tokenizer_problem
from ais_bench_prefix_cache.datasets.format.writing import claimed
from ais_bench_prefix_cache.datasets.kinds import verify_data_set
from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer, load_tokenizer
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.running.benchmark_run import BenchmarkRun, ProgressBar, RunOutcome
from ais_bench_prefix_cache.running.image_run import ImageRun
from ais_bench_prefix_cache.running.phases import Phases
from ais_bench_prefix_cache.running.text_run import TextRun
from ais_bench_prefix_cache.scenario.model import Scenario, TokenizerConfig


def run_benchmark(
    scenario: Scenario,
    manifest_path: Path,
    *,
    phases: Phases,
    bar: ProgressBar,
    load: Callable[[TokenizerConfig], PromptTokenizer] = load_tokenizer,
    template_path: Path | None = None,
) -> RunOutcome:
    """Run the prepared data set of ``manifest_path`` against the Scenario's service and write its analysis.

    ``load`` loads the tokenizer, ``template_path`` overrides ``aisbench.config``.

    Raises ArtifactError, ServiceError or AISBenchError; after any of them, or an interruption, nothing more is sent
    and ``phases.current`` says where it happened.
    """
    with _only_run(RunPaths.of_manifest(manifest_path)):
        with phases.enter("verify"):
            data = verify_data_set(manifest_path)
            tokenizer = load(scenario.tokenizer)
            problem = tokenizer_problem(data.manifest, tokenizer)
            if problem is not None:
                raise ArtifactError(problem)
            run: BenchmarkRun
            if data.kind.hits_are_known:
                run = TextRun(scenario, data, tokenizer, phases, bar, template_path)
            else:
                run = ImageRun(scenario, data, tokenizer, phases, bar)
        return run.execute()


@contextmanager
def _only_run(paths: RunPaths) -> Iterator[None]:
    """No ``prepare --overwrite`` (which claims the data files), no ``analyze`` and no other ``run`` meanwhile."""
    with claimed(paths.directory) as directory_is_mine, claimed(paths.result_dir) as files_are_mine:
        if not (directory_is_mine and files_are_mine):
            raise ArtifactError.of(
                Code.DIRECTORY_IN_USE,
                str(paths.directory),
                "another command is working with this data set",
                hint="Wait until it has finished.",
            )
        yield
