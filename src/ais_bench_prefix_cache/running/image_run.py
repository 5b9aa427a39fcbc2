"""A run of an image data set: the same phases, nothing to warm, and counters without a theory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ais_bench_prefix_cache.aisbench.job import AISBenchResult, job_from_scenario
from ais_bench_prefix_cache.aisbench.request_usage import load_request_usage
from ais_bench_prefix_cache.analysis.analysis_document import SnapshotTexts
from ais_bench_prefix_cache.analysis.image_analysis import ServerUsage, analyze_image_run
from ais_bench_prefix_cache.analysis.run_facts import RunFacts
from ais_bench_prefix_cache.datasets.format.engine import VerifiedDataSet
from ais_bench_prefix_cache.datasets.format.rows import read_rows
from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer
from ais_bench_prefix_cache.running.benchmark_run import BenchmarkRun, ProgressBar
from ais_bench_prefix_cache.running.phases import Phases
from ais_bench_prefix_cache.scenario.model import Scenario
from ais_bench_prefix_cache.service.counters import EngineId
from ais_bench_prefix_cache.service.preflight import EngineFacts, Preflight, SamplePrompt, Workload, check_images
from ais_bench_prefix_cache.service.probing import ProbedRanks


class ImageRun(BenchmarkRun):
    """Sends messages with images. Image tokens are the server's, so the server's own figures are all there is."""

    def __init__(
        self, scenario: Scenario, data: VerifiedDataSet, tokenizer: PromptTokenizer, phases: Phases, bar: ProgressBar
    ) -> None:
        manifest = data.manifest
        (dataset,) = manifest["datasets"].values()
        self.images_per_request: int = dataset["image_count_per_request"]
        rows = data.first_file
        text = next(read_rows(rows))["question"]
        requests = manifest["requests"]
        workload = Workload(
            mode="images",
            block_size=scenario.block_size,
            # Image tokens come on top of this: how many, only the server knows.
            longest_request_tokens=requests["text_tokens"] + requests["output_tokens"],
            canonical_prefix_tokens={},
            samples=(SamplePrompt("the first request", text, requests["text_tokens"]),),
        )
        job = job_from_scenario(
            scenario,
            manifest_path=data.paths.manifest,
            full_path=rows,
            request_count=data.rows,
            kind=data.kind.name,
            log_path=data.paths.log("aisbench"),
        )
        super().__init__(scenario, data, tokenizer, phases, bar, job=job, workload=workload)
        if scenario.aisbench.config is not None:
            phases.note("note: aisbench.config is a template for text; images are sent with the built-in one")

    def _checks(self) -> tuple[Callable[[], Preflight], ...]:
        return (*super()._checks(), lambda: check_images(self.client, self.images_per_request))

    def _check_engine_facts(self, engines: Mapping[EngineId, EngineFacts]) -> Preflight:
        # The data set has no blocks: probes go by the block size that the server tells.
        told = {facts.block_size for facts in engines.values() if facts.block_size is not None}
        if len(told) == 1:
            self.workload = replace(self.workload, block_size=told.pop())
        return super()._check_engine_facts(engines)

    def _warm(self, probed: ProbedRanks) -> None:
        self.runtime["warmup"] = []

    def _planned_queries(self, result: AISBenchResult) -> int | None:
        usage = _usage(result)
        return None if usage is None else usage.prompt_tokens

    def _document(
        self, baseline: SnapshotTexts, after: SnapshotTexts, result: AISBenchResult, facts: RunFacts
    ) -> dict[str, Any]:
        return analyze_image_run(
            previous_analysis=self.data.analysis,
            baseline=baseline,
            after=after,
            service=self.service,
            status="complete",
            usage=_usage(result),
            runtime=self.runtime,
            facts=facts,
        )


def _usage(result: AISBenchResult) -> ServerUsage | None:
    if result.usage_path is None:
        return None
    return ServerUsage.of((row.prompt_tokens, row.cached_tokens) for row in load_request_usage(result.usage_path))
