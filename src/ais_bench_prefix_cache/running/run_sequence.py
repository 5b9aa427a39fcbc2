"""One run from beginning to end: verify, understand the server, empty and warm its caches, send, count, analyze.

Nothing is written before the end: until :func:`run_benchmark` returns, ``analysis.json`` is what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ais_bench_prefix_cache.aisbench.config_rendering import own_template
from ais_bench_prefix_cache.aisbench.job import AISBenchJob, AISBenchResult, job_from_scenario
from ais_bench_prefix_cache.aisbench.request_usage import SentRequests, load_request_usage
from ais_bench_prefix_cache.analysis.performance import PERFORMANCE_KEY, performance_section
from ais_bench_prefix_cache.analysis.request_record import request_records
from ais_bench_prefix_cache.counters.ranks import read_engine_loads
from ais_bench_prefix_cache.counters.reader import EngineLoad
from ais_bench_prefix_cache.datasets.format.engine import VerifiedDataSet
from ais_bench_prefix_cache.datasets.format.paths import RunDirectory, RunPaths
from ais_bench_prefix_cache.datasets.format.sources import tokenizer_problem
from ais_bench_prefix_cache.datasets.format.writing import claimed, update_analysis
from ais_bench_prefix_cache.datasets.kinds import planned_here, verify_data_set
from ais_bench_prefix_cache.exact_text.tokenizer import PromptTokenizer, load_tokenizer
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError, ServiceError
from ais_bench_prefix_cache.foundation.telling import Note, ProgressBar, warning_line
from ais_bench_prefix_cache.running.phases import Phases
from ais_bench_prefix_cache.running.run_files import keep_aisbench, recorded_run, write_run_files
from ais_bench_prefix_cache.running.sender import Sender, Sending, sender_for
from ais_bench_prefix_cache.running.traffic import FormalTraffic, formal_traffic
from ais_bench_prefix_cache.running.understanding import UnderstoodServer, understand_server
from ais_bench_prefix_cache.running.verdict import Observations, analysis_of_run, planned_queries
from ais_bench_prefix_cache.running.warm_up import warm_up, warmup_section
from ais_bench_prefix_cache.scenario.model import Scenario, TokenizerConfig
from ais_bench_prefix_cache.service.client import ServiceClient
from ais_bench_prefix_cache.service.load_sampling import LoadSampler
from ais_bench_prefix_cache.service.readings import Reading
from ais_bench_prefix_cache.service.resetting import ResetOutcome, empty_the_caches


@dataclass(frozen=True)
class RunOutcome:
    """The complete analysis, as written to ``analysis_path``, what AISBench left, and the run's own directory."""

    analysis: dict[str, Any]
    data_set: RunPaths
    aisbench: AISBenchResult
    directory: RunDirectory

    @property
    def analysis_path(self) -> Path:
        """The data set's analysis, which is the newest run's."""
        return self.data_set.analysis


def run_benchmark(
    scenario: Scenario,
    manifest_path: Path,
    *,
    phases: Phases,
    bar: ProgressBar,
    load: Callable[[TokenizerConfig], PromptTokenizer] = load_tokenizer,
    template_path: Path | None = None,
    sender: Sender | None = None,
    labels: Mapping[str, str] = MappingProxyType({}),
) -> RunOutcome:
    """Run the prepared data set of ``manifest_path`` against the Scenario's service and write its analysis.

    Everything that is measured is also kept in a directory of this run alone, with ``labels``.

    ``load`` loads the tokenizer, ``template_path`` overrides ``aisbench.config``, ``sender`` is
    what ``aisbench.load`` asks for unless another one is given. Raises ArtifactError, ServiceError or AISBenchError;
    after any of them, or an interruption, nothing more is sent and ``phases.current`` says where it happened.
    """
    sender = sender or sender_for(scenario.aisbench.load)
    paths = RunPaths.of_manifest(manifest_path)
    with (
        _only_run(paths),
        recorded_run(scenario, paths, phases, labels) as directory,
        ServiceClient(scenario.service, generation_kwargs=scenario.aisbench.model.generation_kwargs) as client,
        ExitStack() as started,
    ):
        with phases.enter("verify"):
            data = planned_here(verify_data_set(manifest_path))
            tokenizer = _tokenizer(scenario, data, load)
            traffic = formal_traffic(data)
            job = _job(scenario, data, traffic, template_path, phases)
        with phases.enter("precheck"):
            sender.check(job)
            # It sends nothing yet: what takes time is done while the server is looked at.
            sending = started.enter_context(sender.started(job))
            server = understand_server(client, traffic, tokenizer)
            phases.notes(server.notes)
        with phases.enter("reset"):
            reset = _empty(server, phases)
        with phases.enter("warmup"):
            warmed = warm_up(server, traffic, tokenizer, bar)
        with phases.enter("baseline"):
            baseline = _baseline(server)
        with phases.enter("formal"):
            result, sent, load_samples = _send(sending, job, server, bar, phases.note)
            traffic = traffic.as_answered(sent.requests)
            keep_aisbench(directory, result.exp_dir, job.log_path, result.generator_logs)
        with phases.enter("after"):
            after = _after(server, baseline, planned_queries(traffic, sent.requests), phases)
        with phases.enter("analysis"):
            runtime = {
                "run": directory.name,
                "rows_sha256": data.rows_sha256,
                "precheck": server.facts,
                "reset": {"accepted": reset.accepted, "proven": reset.proven, "attempts": reset.attempts},
                "warmup": warmup_section(warmed),
                "aisbench_exit_code": result.exit_code,
                "aisbench": result.to_json(),
                "kv_cache_polling": load_samples.as_json(sent.begin, sent.end),
                "phases": phases.records,
            }
            observed = Observations(server, reset, baseline, after, sent.requests, result.senders)
            document = analysis_of_run(scenario, data, traffic, observed, runtime, phases.note)
            records = list(request_records(traffic.columns, sent.requests))
            document.pop(PERFORMANCE_KEY, None)
            if records:
                document[PERFORMANCE_KEY] = performance_section(
                    records,
                    batch_size=result.batch_size,
                    request_rate=scenario.aisbench.model.request_rate,
                    slo=scenario.validation.slo,
                    are_turns=traffic.columns is not None and traffic.columns.are_turns,
                )
            analysis = update_analysis(data.paths.analysis, document)
            write_run_files(
                directory,
                analysis=analysis,
                records=records,
                series=load_samples.samples(sent.begin, sent.end),
                begin=sent.begin,
                baseline=baseline,
                after=after,
            )
    return RunOutcome(analysis, data.paths, result, directory)


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


def _tokenizer(
    scenario: Scenario, data: VerifiedDataSet, load: Callable[[TokenizerConfig], PromptTokenizer]
) -> PromptTokenizer:
    """The Scenario's tokenizer. Raises ArtifactError where it is not the one that the data set was made with."""
    tokenizer = load(scenario.tokenizer)
    problem = tokenizer_problem(data.manifest, tokenizer)
    if problem is not None:
        raise ArtifactError(problem)
    return tokenizer


def _job(
    scenario: Scenario, data: VerifiedDataSet, traffic: FormalTraffic, template_path: Path | None, phases: Phases
) -> AISBenchJob:
    """Templates of the user's own are for text: other data sets always go through the built-in one."""
    own = template_path or scenario.aisbench.config
    if not data.kind.takes_template and own is not None:
        what = "images are" if traffic.images_per_request else "this data set is"
        phases.note(f"note: aisbench.config is a template for text; {what} sent with the built-in one")
        own = None
    own, told = own_template(own)
    if told is not None:
        phases.note(f"note: {told}")
    return job_from_scenario(
        scenario,
        manifest_path=data.paths.manifest,
        rows_path=traffic.rows_path,
        index=traffic.index,
        template_path=own or traffic.template,
        log_path=data.paths.log("aisbench"),
    )


def _empty(server: UnderstoodServer, phases: Phases) -> ResetOutcome:
    outcome = empty_the_caches(server.client, server.reader, server.probed.probes, engine=server.engine)
    if outcome.warning is not None:
        phases.note(warning_line(outcome.warning))
    return outcome


def _baseline(server: UnderstoodServer) -> Reading:
    service = server.client.config
    stable = server.reader.stable(timeout=service.timeout_seconds)
    if not stable.stable:
        raise ServiceError.of(
            Code.FOREIGN_TRAFFIC,
            ", ".join(service.metrics_urls),
            f"the counters did not stand still for {service.timeout_seconds:g} s although nothing was sent",
            hint="Someone else uses this server. Stop other clients during a run: their prompts would be counted, too.",
        )
    return stable.reading


def _send(
    sending: Sending, job: AISBenchJob, server: UnderstoodServer, bar: ProgressBar, note: Note
) -> tuple[AISBenchResult, SentRequests, LoadSampler]:
    """Everything is sent; beside it the server's load is sampled."""
    service = server.client.config
    labels = service.engine_label_map or server.engine_label_map

    def look() -> Mapping[int, EngineLoad]:
        return read_engine_loads(
            server.client.scrape(), dp_size=service.dp_size, engine_label_map=labels, where=service.metrics_urls
        )

    note("note: AISBench starts, which takes some seconds")
    sampler = LoadSampler(look, service.poll_interval_seconds)
    with bar("Formal requests", len(job.index)) as show, sampler:
        result = sending.send(show)
    sent = SentRequests() if result.usage_path is None else load_request_usage(result.usage_path)
    return result, sent, sampler


def _after(server: UnderstoodServer, baseline: Reading, planned: int | None, phases: Phases) -> Reading:
    timeout = server.client.config.timeout_seconds
    stable = server.reader.stable(timeout=timeout, since=baseline, planned_queries=planned)
    if not stable.stable:
        phases.note("note: the counters still move after the last answer; another client uses the server")
    return stable.reading
