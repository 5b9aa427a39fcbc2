"""What a run of AISBench needs, and what is left of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.aisbench.arrivals import arrival_seconds
from ais_bench_prefix_cache.aisbench.request_index import RequestIndex
from ais_bench_prefix_cache.scenario.model import Scenario


@dataclass(frozen=True)
class AISBenchJob:
    """The requests of ``index``, sent once each. Paths are absolute; ``rows_path`` is the file that the index is of.

    ``config`` is the effective configuration, without the API key: a template reads from it what shapes the requests
    (URLs, model, abbreviations, streaming, batch size). ``api_key`` goes into the child's environment and nowhere else.
    ``stall_seconds`` is how long no byte may arrive from the server before the run is stopped; ``on_progress`` hears
    ``(finished requests, all requests)``.
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
    on_progress: Callable[[int, int], None] | None = None


@dataclass(frozen=True)
class AISBenchResult:
    """A run that was judged complete: every planned request was sent once and succeeded.

    ``exp_dir`` holds everything that AISBench wrote; ``usage_path`` is our own side file with one row a
    request (:mod:`.request_usage`); it is None when a template of the user's own does not use our adapters.
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
        }


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
        config=scenario.effective,
        api_key=scenario.service.api_key,
        extra_args=scenario.aisbench.extra_args,
        log_path=log_path,
        stall_seconds=max(60.0, 10 * timeout) if model.stream else max(600.0, 40 * timeout),
    )
