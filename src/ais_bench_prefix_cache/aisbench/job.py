"""What a run of AISBench needs, and what is left of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ais_bench_prefix_cache.aisbench.arrivals import arrival_seconds
from ais_bench_prefix_cache.aisbench.request_index import RequestIndex
from ais_bench_prefix_cache.scenario.model import LoadConfig, Scenario


@dataclass(frozen=True)
class AISBenchJob:
    """The requests of ``index``, sent once each. Paths are absolute; ``rows_path`` is the file that the index is of.

    ``config`` is the effective configuration, without the API key: a template reads from it what shapes the requests
    (URLs, model, abbreviations, streaming, batch size). ``api_key`` goes into the child's environment and nowhere else.
    ``stall_seconds`` is how long no byte may arrive from the server before the run is stopped.

    ``load`` says how many processes send. AISBench's ``role`` is to send everything and sum it up, or, where several
    load generators share the requests, to be one of them (``sending``, at most ``batch_size`` at a time) or the one
    that sends nothing and sums up what all of them have sent (``summing``).
    """

    scenario_path: Path
    manifest_path: Path
    rows_path: Path
    index: RequestIndex
    template_path: Path
    work_dir: Path
    config: Mapping[str, Any]
    api_key: str = field(default="", repr=False)
    extra_args: Mapping[str, Any] = field(default_factory=lambda: {"--num-warmups": 0})
    log_path: Path | None = None
    stall_seconds: float = 600.0
    timeout_seconds: float | None = None
    load: LoadConfig = field(default_factory=LoadConfig)
    role: Literal["all", "sending", "summing"] = "all"
    batch_size: int | None = None

    @property
    def is_divided(self) -> bool:
        """Whether more than one process sends, so that each must be able to share the work."""
        return self.load.senders != 1 or self.role != "all"


@dataclass(frozen=True)
class AISBenchResult:
    """A run that was judged complete: every planned request was sent once and succeeded.

    ``exp_dir`` holds everything that AISBench wrote; ``usage_path`` is our own side file with one row a
    request (:mod:`.request_usage`); it is None when a template of the user's own does not use our adapters.
    ``load`` says who sent how much, and what that cost.
    """

    exit_code: int
    work_dir: Path
    exp_dir: Path
    relative_exp_dir: str
    model_abbr: str
    dataset_abbr: str
    csv_path: Path
    json_path: Path
    details_path: Path
    usage_path: Path | None
    stream: bool
    batch_size: int
    request_count: int
    duration_seconds: float
    load: Mapping[str, Any]

    @property
    def senders(self) -> list[Mapping[str, Any]]:
        """``requests``, ``batch_size``, ``first_sent_ms``, ``seconds`` and ``processor_seconds`` of each process."""
        generators = self.load.get("generators", [self.load])
        return [sender for generator in generators for sender in generator["senders"]]

    @property
    def generator_logs(self) -> list[Path]:
        """What each of several load generators printed."""
        return [Path(generator["log"]) for generator in self.load.get("generators", [])]

    def to_json(self) -> dict[str, Any]:
        """For ``analysis.json`` (``runtime.aisbench``); ``report`` finds the results by it."""
        return {
            "work_dir": str(self.work_dir),
            "exp_dir": str(self.exp_dir),
            "relative_exp_dir": self.relative_exp_dir,
            "model_abbr": self.model_abbr,
            "dataset_abbr": self.dataset_abbr,
            "csv": str(self.csv_path),
            "json": str(self.json_path),
            "details": str(self.details_path),
            "usage": None if self.usage_path is None else str(self.usage_path),
            "stream": self.stream,
            "batch_size": self.batch_size,
            "requests": self.request_count,
            "duration_seconds": round(self.duration_seconds, 3),
            "load": dict(self.load),
        }


def _sent_to(scenario: Scenario) -> Mapping[str, Any]:
    """The effective configuration, in which a router stands in the place of every engine behind it."""
    service = scenario.service
    if service.router_url is None:
        return scenario.effective
    urls = [service.router_url] * len(service.inference_urls)
    return {**scenario.effective, "service": {**scenario.effective["service"], "inference_url": urls}}


def job_from_scenario(
    scenario: Scenario,
    *,
    manifest_path: Path,
    rows_path: Path,
    index: RequestIndex,
    template_path: Path,
    log_path: Path | None = None,
) -> AISBenchJob:
    """The job that a Scenario asks for, over the rows of its prepared data set.

    Silence ends a streaming run after ten times ``service.timeout_seconds`` (at least a minute). Without streaming a
    server says nothing until a request is finished: forty times, at least ten minutes.
    """
    timeout = scenario.service.timeout_seconds
    model = scenario.aisbench.model
    if model.request_rate is not None:
        count = int(index.arriving.sum())
        seconds = arrival_seconds(count, model.request_rate, model.arrivals, scenario.run.random_seed)
        index = index.due_at(seconds)
    return AISBenchJob(
        scenario_path=scenario.path,
        manifest_path=manifest_path,
        rows_path=rows_path,
        index=index,
        template_path=template_path,
        work_dir=scenario.aisbench.work_dir,
        config=_sent_to(scenario),
        api_key=scenario.service.api_key,
        extra_args=scenario.aisbench.extra_args,
        log_path=log_path,
        load=scenario.aisbench.load,
        stall_seconds=max(60.0, 10 * timeout) if model.stream else max(600.0, 40 * timeout),
    )
