"""The phases of one run, and what text and images do differently in them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.aisbench.job import AISBenchJob, AISBenchResult
from ais_bench_prefix_cache.aisbench.launch import check_job, run_aisbench
from ais_bench_prefix_cache.aisbench.request_usage import load_request_usage
from ais_bench_prefix_cache.analysis.analysis_document import SnapshotTexts
from ais_bench_prefix_cache.analysis.run_facts import ProbeFact, ResetFact, RunFacts
from ais_bench_prefix_cache.counters.snapshot import parse_kv_cache_usage
from ais_bench_prefix_cache.datasets.format.engine import VerifiedDataSet
from ais_bench_prefix_cache.datasets.format.sources import corpus_warning
from ais_bench_prefix_cache.datasets.format.writing import update_analysis
from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem, ServiceError, SnapshotError
from ais_bench_prefix_cache.foundation.names import PASS_WITH_WARNING
from ais_bench_prefix_cache.running.phases import Phases
from ais_bench_prefix_cache.scenario.model import Scenario
from ais_bench_prefix_cache.service.client import ServiceClient
from ais_bench_prefix_cache.service.counters import EngineId, Reading
from ais_bench_prefix_cache.service.engine_readings import engine_facts, reading_parser
from ais_bench_prefix_cache.service.kv_sampling import KvSampler
from ais_bench_prefix_cache.service.preflight import (
    EngineFacts,
    Preflight,
    Workload,
    check_engines,
    check_inference,
)
from ais_bench_prefix_cache.service.probing import ProbedRanks, probe_ranks
from ais_bench_prefix_cache.service.resetting import ResetOutcome, empty_the_caches
from ais_bench_prefix_cache.service.scraping import CounterReader

ProgressBar = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""``with bar(label, total) as show``: ``show`` is told how many are done."""


@dataclass(frozen=True)
class RunOutcome:
    """The complete analysis, as written to ``analysis_path``, and what AISBench left."""

    analysis: dict[str, Any]
    analysis_path: Path
    aisbench: AISBenchResult


class BenchmarkRun(ABC):
    """The parts of one run, and its phases as methods; what text and images do differently is left open."""

    client: ServiceClient

    def __init__(
        self,
        scenario: Scenario,
        data: VerifiedDataSet,
        tokenizer: PromptTokenizer,
        phases: Phases,
        bar: ProgressBar,
        *,
        job: AISBenchJob,
        workload: Workload,
    ) -> None:
        self.scenario = scenario
        self.service = scenario.service
        self.data = data
        self.tokenizer = tokenizer
        self.phases = phases
        self.bar = bar
        self.job = job
        self.workload = workload
        self.runtime: dict[str, Any] = {}
        self.exact_hits = True

    def execute(self) -> RunOutcome:
        """All phases after the data set has been verified."""
        with ServiceClient(self.service, generation_kwargs=self.scenario.aisbench.model.generation_kwargs) as client:
            self.client = client
            self.reader = CounterReader(client, reading_parser(self.service, self.workload.block_size))
            with self.phases.enter("precheck"):
                probed = self._precheck()
            with self.phases.enter("reset"):
                reset = self._reset(probed)
            with self.phases.enter("warmup"):
                self._warm(probed)
            with self.phases.enter("baseline"):
                baseline = self._baseline()
            with self.phases.enter("formal"):
                result = self._formal(probed)
            with self.phases.enter("after"):
                after = self._after(baseline, result)
            with self.phases.enter("analysis"):
                analysis = self._analyze(baseline, after, result, probed, reset)
        return RunOutcome(analysis, self.data.paths.analysis, result)

    @abstractmethod
    def _warm(self, probed: ProbedRanks) -> None:
        """Fill the caches with what must be there."""

    @abstractmethod
    def _planned_queries(self, result: AISBenchResult) -> int | None:
        """The prompt tokens that the counters must have risen by; None where nobody knows."""

    @abstractmethod
    def _document(
        self, baseline: SnapshotTexts, after: SnapshotTexts, result: AISBenchResult, facts: RunFacts
    ) -> dict[str, Any]:
        """The new content of ``analysis.json``. Raises SnapshotError where the texts cannot be compared."""

    def _precheck(self) -> ProbedRanks:
        check_job(self.job)
        problems: list[Problem] = []
        found = Preflight()
        for check in self._checks():
            try:
                part = check()
            except ServiceError as error:
                problems.extend(error.problems)
            else:
                found.notes += part.notes
                found.facts |= part.facts
        if problems:
            raise ServiceError(problems)
        lengths = [length for length in found.facts.get("max_model_len", {}).values() if length is not None]
        probed = probe_ranks(
            self.client,
            self.reader,
            block_size=self.workload.block_size,
            most_tokens=min(lengths) if lengths else None,
            exact_hits=self.exact_hits,
        )
        for text in (*found.notes, *probed.notes):
            self.phases.note(f"note: {text}")
        self.runtime["precheck"] = {
            **found.facts,
            "probes": [
                {
                    "dp_rank": probe.dp_rank,
                    "engine": probe.engine.label,
                    "prompt_tokens": probe.prompt_tokens,
                    "repeat_hit_tokens": probe.repeat_hit_tokens,
                }
                for probe in probed.probes
            ],
            "notes": [*found.notes, *probed.notes],
        }
        return probed

    def _checks(self) -> tuple[Callable[[], Preflight], ...]:
        return (
            lambda: check_inference(self.client, self.workload, self.tokenizer.encode),
            self._check_engines,
        )

    def _check_engines(self) -> Preflight:
        texts = self.client.scrape()
        # SGLang matches token by token where its page size is 1, so it may hit more than whole blocks.
        self.exact_hits = not any("sglang:" in text or "sglang_" in text for text in texts)
        return self._check_engine_facts(engine_facts(self.service, texts))

    def _check_engine_facts(self, engines: Mapping[EngineId, EngineFacts]) -> Preflight:
        return check_engines(self.client, self.workload, engines)

    def _reset(self, probed: ProbedRanks) -> ResetOutcome:
        engine = "vllm" if self.exact_hits else "sglang"
        outcome = empty_the_caches(self.client, self.reader, probed.probes, engine=engine)
        if outcome.warning is not None:
            self.phases.note(f"warning [{outcome.warning['code']}] {outcome.warning['message']}")
        self.runtime["reset"] = {
            "accepted": outcome.accepted,
            "proven": outcome.proven,
            "attempts": outcome.attempts,
        }
        return outcome

    def _baseline(self) -> Reading:
        stable = self.reader.stable(timeout=self.service.timeout_seconds)
        if not stable.stable:
            raise ServiceError.of(
                Code.FOREIGN_TRAFFIC,
                ", ".join(self.service.metrics_urls),
                f"the counters did not stand still for {self.service.timeout_seconds:g} s although nothing was sent",
                hint="Someone else uses this server. Stop other clients during a run: their prompts would be counted, "
                "too.",
            )
        return stable.reading

    def _formal(self, probed: ProbedRanks) -> AISBenchResult:
        sampler = KvSampler(
            partial(_kv_cache_usage, self.client, _engine_label_map(self.service.engine_label_map, probed)),
            self.service.poll_interval_seconds,
        )
        with self.bar("Formal requests", self.data.rows) as show, sampler:
            result = run_aisbench(replace(self.job, on_progress=lambda finished, _all: show(finished)))
        self.runtime["aisbench_exit_code"] = result.exit_code
        self.runtime["aisbench"] = result.to_json()
        self.runtime["kv_cache_polling"] = sampler.as_json()
        return result

    def _after(self, baseline: Reading, result: AISBenchResult) -> Reading:
        planned = self._planned_queries(result)
        stable = self.reader.stable(timeout=self.service.timeout_seconds, since=baseline, planned_queries=planned)
        if not stable.stable:
            self.phases.note("note: the counters still move after the last answer; another client uses the server")
        return stable.reading

    def _analyze(
        self, baseline: Reading, after: Reading, result: AISBenchResult, probed: ProbedRanks, reset: ResetOutcome
    ) -> dict[str, Any]:
        usage = [] if result.usage_path is None else load_request_usage(result.usage_path)
        facts = RunFacts(
            probes=tuple(ProbeFact(probe.dp_rank, probe.engine.label, probe.dp_rank) for probe in probed.probes),
            reset=ResetFact(reset.accepted, attempts=reset.attempts, hits_after=reset.hits_after),
            assumed_empty=reset.warning is not None,
            dropped_blocks=probed.rule.dropped_blocks,
            hybrid_warmup=self.service.hybrid_warmup,
            retried_requests=sum(row.attempts > 1 for row in usage) if usage else None,
            failed_requests=sum(not row.success for row in usage) if usage else None,
            aisbench_warmups=_warmups(self.scenario.aisbench.extra_args),
            engine_label_map=_engine_label_map({}, probed),
        )
        self.runtime["phases"] = self.phases.records
        early = SnapshotTexts(baseline.texts, self.service.metrics_urls)
        late = SnapshotTexts(after.texts, self.service.metrics_urls)
        try:
            document = self._document(early, late, result, facts)
        except SnapshotError as error:
            # The texts were read by this run itself: that they do not fit together is the server's doing.
            raise ServiceError(error.problems) from error
        changed_corpus = corpus_warning(self.data.manifest)
        if changed_corpus is not None:
            document["warnings"].append(changed_corpus)
            document["validation"]["status"] = PASS_WITH_WARNING
        return update_analysis(self.data.paths.analysis, document)


def _engine_label_map(configured: Mapping[str, int], probed: ProbedRanks) -> dict[str, int]:
    """Label → rank, as configured or else as probed; empty where one label stands for several ranks (several ports)."""
    labels = probed.engine_labels
    if configured:
        return dict(configured)
    return labels if len(labels) == len(probed.probes) and "" not in labels else {}


def _kv_cache_usage(client: ServiceClient, engine_label_map: Mapping[str, int]) -> Mapping[int, float]:
    return parse_kv_cache_usage(
        client.scrape(),
        dp_size=client.config.dp_size,
        engine_label_map=engine_label_map,
        where=client.config.metrics_urls,
    )


def _warmups(extra_args: Mapping[str, Any]) -> int | None:
    """AISBench's own warm-up requests: one unless it is told otherwise."""
    value = extra_args.get("--num-warmups", 1)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
