"""A run of a text data set, whose hits are known before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.aisbench.job import AISBenchResult, job_from_scenario
from ais_bench_prefix_cache.aisbench.request_usage import load_request_usage
from ais_bench_prefix_cache.analysis.analysis_document import (
    SnapshotTexts,
    analyze_run,
    explain_unusable,
)
from ais_bench_prefix_cache.analysis.request_comparison import RequestComparison, SeenRequest, compare_requests
from ais_bench_prefix_cache.analysis.run_facts import RunFacts
from ais_bench_prefix_cache.datasets.format.engine import VerifiedDataSet
from ais_bench_prefix_cache.datasets.format.rows import read_rows
from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer
from ais_bench_prefix_cache.foundation.errors import SnapshotError
from ais_bench_prefix_cache.running.benchmark_run import BenchmarkRun, ProgressBar
from ais_bench_prefix_cache.running.hybrid_warmup import shared_lengths, sharers
from ais_bench_prefix_cache.running.phases import Phases
from ais_bench_prefix_cache.running.prepared_data import FormalRequests, read_formal_requests
from ais_bench_prefix_cache.scenario.model import Scenario
from ais_bench_prefix_cache.service.probing import ProbedRanks, new_nonce, probe_text
from ais_bench_prefix_cache.service.warming import WarmedEntry, WarmupEntry, warm_and_prove, warm_shorter_prefixes


class TextRun(BenchmarkRun):
    """A run of text prompts, whose hits are known before."""

    def __init__(
        self,
        scenario: Scenario,
        data: VerifiedDataSet,
        tokenizer: PromptTokenizer,
        phases: Phases,
        bar: ProgressBar,
        template_path: Path | None,
    ) -> None:
        self.formal = read_formal_requests(data)
        job = job_from_scenario(
            scenario,
            manifest_path=data.paths.manifest,
            full_path=data.paths.full,
            request_count=data.rows,
            template_path=template_path,
            log_path=data.paths.log("aisbench"),
        )
        super().__init__(scenario, data, tokenizer, phases, bar, job=job, workload=self.formal.workload)

    def _warm(self, probed: ProbedRanks) -> None:
        plan = [WarmupEntry.from_plan(entry) for entry in self.data.manifest["warmup"]["plan"]]
        warmed: list[WarmedEntry] = []
        if plan:
            with self.bar("Warm up", 2 * len(plan)) as show:
                warmed = warm_and_prove(
                    self.client,
                    self.reader,
                    plan,
                    probed.rank_of_engine,
                    probed.rule,
                    exact_hits=self.exact_hits,
                    on_progress=show,
                )
        if plan and self.service.hybrid_warmup:
            warmed += self._warm_shorter_prefixes(probed)
        self.runtime["warmup"] = [
            {
                "request_id": each.entry.request_id,
                "group_id": each.entry.group_id,
                "dp_rank": each.entry.dp_rank,
                "input_tokens": each.entry.input_tokens,
                "expected_hits": each.expected_hits,
                "cached_tokens": each.cached_tokens,
            }
            for each in warmed
        ]

    def _warm_shorter_prefixes(self, probed: ProbedRanks) -> list[WarmedEntry]:
        lengths = shared_lengths(read_rows(self.data.paths.full))
        pairs = sharers(
            lengths,
            self.tokenizer,
            self.service.dp_size,
            lambda characters: probe_text(new_nonce(), 0, characters),
        )
        if not pairs:
            return []
        with self.bar("Warm up shorter prefixes", 2 * len(pairs)) as show:
            return warm_shorter_prefixes(self.client, self.reader, pairs, probed.rank_of_engine, on_progress=show)

    def _planned_queries(self, result: AISBenchResult) -> int | None:
        planned: int = self.data.analysis["theory"]["input_tokens"]
        return planned

    def _document(
        self, baseline: SnapshotTexts, after: SnapshotTexts, result: AISBenchResult, facts: RunFacts
    ) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "manifest": self.data.manifest,
            "previous_analysis": self.data.analysis,
            "baseline": baseline,
            "after": after,
            "service": self.service,
            "facts": facts,
        }
        try:
            return analyze_run(
                **arguments,
                validation=self.scenario.validation,
                status="complete",
                columns=self.formal.columns,
                requests=_compare_requests(self.formal, result),
                runtime=self.runtime,
            )
        except SnapshotError as error:
            for finding in explain_unusable(error, **arguments):
                self.phases.note(f"finding [{finding.code}] {finding.message}\n    {finding.remedy}")
            raise


def _compare_requests(formal: FormalRequests, result: AISBenchResult) -> RequestComparison | None:
    if result.usage_path is None:
        return None
    return compare_requests(
        formal.columns,
        (
            SeenRequest(
                row.sequence_index,
                row.cached_tokens_state,
                row.cached_tokens,
                row.prompt_tokens,
                row.attempts,
                row.success,
                row.sent,
            )
            for row in load_request_usage(result.usage_path)
        ),
    )
