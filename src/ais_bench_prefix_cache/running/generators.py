"""Several load generators send the formal requests of one run, each some of the lanes; this program coordinates them.

They send and nothing else. All of them are ready before one moment at which all begin; one that is lost ends the run,
because the caches hold a part of what was planned and nothing may be sent a second time. What they recorded is put
together, and AISBench sums up the records of all, as if one had sent them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty
from typing import Any

from ais_bench_prefix_cache.aisbench.division import divided, shares
from ais_bench_prefix_cache.aisbench.engines import Engine, Generator, Inbox
from ais_bench_prefix_cache.aisbench.generator import job_line, this_boot
from ais_bench_prefix_cache.aisbench.job import AISBenchJob, AISBenchResult
from ais_bench_prefix_cache.aisbench.launch import (
    SECONDS_BETWEEN_LOOKS,
    SECONDS_TO_START,
    Progress,
    StartedAISBench,
    check_job,
    staging_directory,
    started_aisbench,
)
from ais_bench_prefix_cache.aisbench.merging import Part
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import AISBenchError, Problem

_SECONDS_UNTIL_GO = 1.0
"""Between the word and the moment: it must have reached every machine."""
_SECONDS_OF_GRACE = 120.0
"""A generator finds out itself that nothing arrives; after this time more, it is not there any more."""
_CLOCK_READINGS = 5


class GeneratorsSender:
    """``job.load.generators`` load generators, started by ``engine``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def check(self, job: AISBenchJob) -> None:
        check_job(replace(job, role="summing"))

    @contextmanager
    def started(self, job: AISBenchJob) -> Iterator[_Sending]:
        with (
            closing(self._engine),
            started_aisbench(replace(job, role="summing")) as summing,
            staging_directory(job.work_dir) as shared,
            ExitStack() as clean_up,
        ):
            self._engine.open()
            sending = _Sending(job, summing, shared, self._engine, clean_up)
            if not job.extra_args.get("--num-warmups"):
                sending.start()
            yield sending


@dataclass(frozen=True)
class _Clock:
    """Seconds that bring a generator's moments onto this machine's clock, and by how many they may be wrong."""

    offset: float
    uncertainty: float


@dataclass
class _Generator:
    """One load generator, and what it has said."""

    number: int
    job: AISBenchJob
    process: Generator
    last_sign: float
    ready: Mapping[str, Any] | None = None
    clock_answer: list[float] | None = None
    clocks: list[_Clock] = field(default_factory=list)
    finished: int = 0
    result: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        return f"load generator {self.number}"


class _Sending:
    """Load generators on their way; made by :meth:`GeneratorsSender.started`."""

    def __init__(
        self, job: AISBenchJob, summing: StartedAISBench, shared: Path, engine: Engine, clean_up: ExitStack
    ) -> None:
        self._job = job
        self._summing = summing
        self._shared = shared
        self._engine = engine
        self._clean_up = clean_up
        self._inbox = Inbox()
        self._generators: dict[int, _Generator] = {}

    def start(self) -> None:
        """Start every generator with its job, once."""
        if self._generators:
            return
        job, batch_size = self._job, self._summing.config.batch_size
        urls = job.config["service"]["inference_url"]
        parts = divided(
            job.index,
            min(job.load.generators, batch_size),
            job.load.split,
            1 if isinstance(urls, str) else len(urls),
        )
        slots = shares(batch_size, [len(part) for part in parts])
        self._clean_up.callback(self._end)
        for number, (part, share) in enumerate(zip(parts, slots, strict=True), start=1):
            directory = self._shared / f"generator-{number}"
            directory.mkdir()
            index = directory / "index.npy"
            # AISBench's own warm-up requests are sent once, whatever the number of generators.
            extra_args = job.extra_args if number == 1 else {**job.extra_args, "--num-warmups": 0}
            own = replace(
                job,
                index=job.index.part(part),
                work_dir=directory,
                extra_args=extra_args,
                log_path=_log(job, number),
                batch_size=share,
            )
            own.index.save(index)
            process = self._engine.start(number, own.log_path or directory / "log", self._inbox)
            self._generators[number] = _Generator(number, own, process, time.monotonic())
            process.write(job_line(own, index))

    def send(self, on_progress: Progress) -> AISBenchResult:
        """Send everything, sum it up and judge it."""
        self.start()
        self._summing.start()
        generators = list(self._generators.values())
        self._listen_until(lambda: all(each.ready is not None for each in generators), SECONDS_TO_START)
        self._read_clocks()
        go = time.perf_counter() + _SECONDS_UNTIL_GO
        for each in generators:
            each.process.write(json.dumps({"go": go - each.clocks[0].offset}))
        self._listen_until(
            lambda: all(each.result is not None for each in generators), self._job.stall_seconds, on_progress
        )
        self._read_clocks()
        self._summing.sum_up([Part(_result(each)["records"], _shift(each)) for each in generators])
        self._summing.wait()
        return self._summing.results(self._load())

    def _load(self) -> dict[str, Any]:
        """Who sent how much, and by which clock."""
        job, rate = self._job, self._job.config["aisbench"]["model"].get("request_rate")
        generators, first = [], []
        for each in self._generators.values():
            load = _result(each)["load"]
            first += [sender["first_sent_ms"] for sender in load["senders"]]
            requests = len(each.job.index)
            before, after = each.clocks
            generators.append(
                {
                    **load,
                    "requests": requests,
                    "batch_size": each.job.batch_size,
                    "request_rate": None if rate is None else round(rate * requests / len(job.index), 6),
                    "clock_offset_s": round(before.offset, 6),
                    "clock_uncertainty_ms": round(1000 * max(before.uncertainty, after.uncertainty), 3),
                    "clock_drift_ms": round(1000 * (after.offset - before.offset), 3),
                    "log": str(each.job.log_path),
                }
            )
        return {
            "engine": job.load.engine,
            "split": job.load.split,
            "first_sent_spread_ms": round(max(first) - min(first), 3),
            "generators": generators,
        }

    def _listen_until(self, done: Callable[[], bool], patience: float, on_progress: Progress = lambda _: None) -> None:
        """Take in what the generators say; raises where one has a problem, is lost, or is silent for too long."""
        told = 0
        for each in self._generators.values():
            each.last_sign = time.monotonic()
        while not done():
            self._listen(SECONDS_BETWEEN_LOOKS)
            if self._summing.look(0) is not None:
                self._summing.results({})  # says what is wrong with it: it had nothing to sum up yet
            finished = sum(each.finished for each in self._generators.values())
            if finished != told:
                told = finished
                on_progress(told)
            for each in self._generators.values():
                if each.result is None and time.monotonic() - each.last_sign > patience + _SECONDS_OF_GRACE:
                    raise AISBenchError.of(
                        Code.AISBENCH_STALLED,
                        each.name,
                        f"said nothing for {patience + _SECONDS_OF_GRACE:g} seconds; the run was stopped",
                        hint=f"Its output: {each.job.log_path}",
                    )

    def _listen(self, seconds: float) -> None:
        """Take in one line, if one comes within so many seconds."""
        try:
            number, line = self._inbox.get(timeout=seconds)
        except Empty:
            return
        each = self._generators[number]
        each.last_sign = time.monotonic()
        try:
            message = {} if line is None else json.loads(line)
        except ValueError:
            raise self._lost(
                each, f"said what is no line of a load generator: {line[:200]!r}" if line else ""
            ) from None
        if line is None:
            raise self._lost(each, "ended in the middle of the run")
        if "ready" in message:
            each.ready = message["ready"]
        elif "clock" in message:
            each.clock_answer = message["clock"]
        elif "finished" in message:
            each.finished = message["finished"]
        elif "result" in message:
            each.result = message["result"]
            each.finished = len(each.job.index)
        elif "problems" in message:
            raise AISBenchError(_problem(each, problem) for problem in message["problems"])

    def _lost(self, each: _Generator, what: str) -> AISBenchError:
        return AISBenchError.of(
            Code.LOAD_GENERATOR_LOST,
            each.name,
            what,
            hint="All others were stopped: what was sent has left a part of the plan in the caches. "
            f"Its output: {each.job.log_path}",
        )

    def _read_clocks(self) -> None:
        """The offset of each generator's monotonic clock, by the shortest of some questions and answers."""
        for each in self._generators.values():
            assert each.ready is not None
            if each.ready["boot"] == this_boot():  # all processes of a machine have one clock
                each.clocks.append(_Clock(0.0, 0.0))
                continue
            readings = [self._read_clock(each) for _ in range(_CLOCK_READINGS)]
            each.clocks.append(min(readings, key=lambda clock: clock.uncertainty))

    def _read_clock(self, each: _Generator) -> _Clock:
        asked = time.perf_counter()
        each.process.write(json.dumps({"clock": asked}))
        while each.clock_answer is None or each.clock_answer[0] != asked:
            self._listen(SECONDS_BETWEEN_LOOKS)
            if time.perf_counter() - asked > _SECONDS_OF_GRACE:
                raise self._lost(each, "did not tell the time")
        answered = time.perf_counter()
        return _Clock((asked + answered) / 2 - each.clock_answer[1], (answered - asked) / 2)

    def _end(self) -> None:
        for each in self._generators.values():
            each.process.end()
        for each in self._generators.values():
            each.process.wait()


def _problem(each: _Generator, told: Mapping[str, Any]) -> Problem:
    code, where = Code.__members__[told["code"]], f"{each.name}: {told['where']}"
    return Problem(code, where, told["message"], told["allowed"], told["hint"])


def _result(each: _Generator) -> Mapping[str, Any]:
    assert each.result is not None
    return each.result


def _shift(each: _Generator) -> float:
    before, after = each.clocks
    return (before.offset + after.offset) / 2


def _log(job: AISBenchJob, number: int) -> Path | None:
    return None if job.log_path is None else job.log_path.with_name(f"{job.log_path.stem}.{number}.log")
