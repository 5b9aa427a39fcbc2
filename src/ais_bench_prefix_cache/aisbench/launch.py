"""Run the real AISBench, watch it, stop it, and judge it by its files."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import math
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ais_bench_prefix_cache.aisbench.config_rendering import (
    PARTS_FILE,
    SUPERVISOR_FILE,
    RenderedConfig,
    check_extra_args,
    command_line_arguments,
    python_path_with_this_package,
    render_config,
)
from ais_bench_prefix_cache.aisbench.division import divided, shares
from ais_bench_prefix_cache.aisbench.environment import SENDING_VARIABLE
from ais_bench_prefix_cache.aisbench.job import AISBenchJob, AISBenchResult
from ais_bench_prefix_cache.aisbench.judging import ResultFiles, judge
from ais_bench_prefix_cache.aisbench.merging import Part, write_parts
from ais_bench_prefix_cache.aisbench.processes import ProcessFamily
from ais_bench_prefix_cache.aisbench.sending_settings import SendingSettings
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import AISBenchError, Problem
from ais_bench_prefix_cache.foundation.interruptions import signals_held
from ais_bench_prefix_cache.foundation.names import API_KEY_VARIABLE

Progress = Callable[[int], None]
"""Hears how many requests are finished."""

SECONDS_TO_START = 600.0
"""The first start on a machine compiles every module; it took 47 s on a slow one."""
SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_UNTIL_GO = 0.1
"""Between the word and the moment: senders look for it fifty times a second."""
_REQUESTS_FOR_A_SENDER = 1000
"""Fewer are sent before another process would have helped."""
_LAST_LINES_SHOWN = 15
_STAGING_PREFIX = ".running-"
_PRIVATE_PREFIX = "aisbench-"
_SCRATCH_PATH_BYTES = 50


def check_installed() -> None:
    """Raise ``AISBENCH_NOT_INSTALLED`` if this Python has no AISBench. Imports nothing."""
    spec = importlib.util.find_spec("ais_bench")
    if spec is None:
        raise AISBenchError.of(
            Code.AISBENCH_NOT_INSTALLED,
            sys.executable,
            "AISBench is not installed in this Python",
            hint="Install it with: pip install 'ais-bench-prefix-cache[aisbench]'",
        )
    for path in (sys.executable, *(spec.submodule_search_locations or ())):
        if any(character.isspace() for character in path):
            raise AISBenchError.of(
                Code.AISBENCH_PATH_HAS_SPACE,
                path,
                "AISBench starts its workers through a shell without quotes, so its own path must not contain a space",
                hint="Put the virtual environment into a directory without spaces.",
            )


def check_job(job: AISBenchJob) -> RenderedConfig:
    """Find out before anything is sent whether AISBench could start: installation, arguments, template."""
    check_installed()
    problems = check_extra_args(job.extra_args)
    if problems:
        raise AISBenchError(problems)
    with _private_directory() as private:
        return render_config(job, private, _environment(job, private, []))


@contextmanager
def started_aisbench(job: AISBenchJob) -> Iterator[StartedAISBench]:
    """An AISBench that imports and loads, and then waits until it is told to send.

    On any way out of the block - success, :class:`AISBenchError`, an interruption - no process of it is left. Results,
    also those of a failed run, lie in a directory of their own below ``job.work_dir``.

    One that would not wait (because a template has another inferencer, or AISBench is to send warm-ups of its own) is
    only started when it may send.
    """
    check_installed()
    problems = check_extra_args(job.extra_args)
    if problems:
        raise AISBenchError(problems)
    with (
        _private_directory() as private,
        _locked(private / SUPERVISOR_FILE),
        staging_directory(job.work_dir) as staging,
        ExitStack() as clean_up,
    ):
        senders: list[SendingSettings] = []
        config = render_config(job, private, _environment(job, private, senders))
        if job.role != "summing":
            senders = _settings_of_senders(job, config, private)
        aisbench = StartedAISBench(job, config, private, staging, senders, clean_up)
        if config.waits and not job.extra_args.get("--num-warmups"):
            aisbench.start()
        yield aisbench


class StartedAISBench:
    """One AISBench on its way; made by :func:`started_aisbench`.

    :meth:`send` does everything in turn. Who has several of them calls its steps: :meth:`start`, :meth:`look` until
    :attr:`ready`, :meth:`go`, :meth:`look` until it says the exit code, :meth:`results`.
    """

    def __init__(
        self,
        job: AISBenchJob,
        config: RenderedConfig,
        private: Path,
        staging: Path,
        senders: list[SendingSettings],
        clean_up: ExitStack,
    ) -> None:
        self.job = job
        self.config = config
        self._private = private
        self._staging = staging
        self._senders = senders
        self._clean_up = clean_up
        self._family: ProcessFamily | None = None
        self._exp_dir: Path | None = None
        self._began = self._last_sign = time.monotonic()
        self._last_seen: list[tuple[int, str]] = []
        self._may_send = False
        self._exit_code: int | None = None
        self.finished = 0

    def start(self) -> None:
        """Start it, once."""
        if self._family is not None:
            return
        config_path = self._private / "prefix_cache_perf.py"
        config_path.write_text(self.config.text, encoding="utf-8")
        job = self.job
        self._began = self._last_sign = time.monotonic()
        # From its first moment on, no interruption loses sight of the family.
        with signals_held():
            self._family = ProcessFamily(
                [
                    sys.executable,
                    "-m",
                    "ais_bench.benchmark.cli.main",
                    config_path.name,
                    *("--mode", "perf", "--debug", "--work-dir", str(self._staging)),
                    *command_line_arguments(job.extra_args),
                ],
                cwd=self._private,
                environment=_environment(job, self._private, self._senders),
                log=job.log_path,
                # The log is read when the secret must be gone and the results lie where they stay.
                replacements={str(self._staging): str(job.work_dir)},
                secret=job.api_key,
            )
            self._clean_up.callback(self._end)

    @property
    def ready(self) -> bool:
        """Whether every sender waits for :meth:`go`; one that has ended waits for nothing any more."""
        return self._exit_code is not None or all(Path(sender.heartbeat).exists() for sender in self._senders)

    def go(self, moment: float) -> None:
        """All senders begin at ``moment`` of this machine's monotonic clock."""
        self._may_send = True
        self._began = self._last_sign = time.monotonic()
        if self._senders:
            go = Path(self._senders[0].go)
            unfinished = go.with_name("go.unfinished")
            unfinished.write_text(str(moment), encoding="ascii")
            unfinished.replace(go)

    def sum_up(self, parts: Sequence[Part]) -> None:
        """What the load generators have sent is there."""
        self._may_send = True
        self._began = self._last_sign = time.monotonic()
        write_parts(parts, self._private / PARTS_FILE)

    def send(self, on_progress: Progress = lambda _: None) -> AISBenchResult:
        """Send everything, sum it up and judge it."""
        self.start()
        while self.config.waits and not self.ready:
            self.look(SECONDS_BETWEEN_LOOKS)
        self.go(time.perf_counter() + _SECONDS_UNTIL_GO)
        self.wait(on_progress)
        return self.results(self.load())

    def wait(self, on_progress: Progress = lambda _: None) -> None:
        """Wait for its end."""
        told = 0
        while self.look(SECONDS_BETWEEN_LOOKS) is None:
            if self.finished != told:
                told = self.finished
                on_progress(told)
        if self.finished != told:
            on_progress(self.finished)

    def look(self, seconds: float) -> int | None:
        """Its exit code, if it ends within so many seconds. Raises when it makes no progress for too long."""
        assert self._family is not None
        job = self.job
        self._exit_code = self._family.wait(seconds)
        now = time.monotonic()
        seen = [_read_heartbeat(Path(sender.heartbeat)) for sender in self._senders]
        if seen != self._last_seen:
            self._last_sign, self._last_seen = now, seen
            self.finished = sum(int(text) for _, text in seen if text.isdigit())
        if self._exit_code is not None:
            return self._exit_code
        if self._may_send and job.timeout_seconds is not None and now - self._began > job.timeout_seconds:
            raise self._failure(
                Problem(Code.AISBENCH_TIMEOUT, "AISBench", f"did not end within {job.timeout_seconds:g} seconds")
            )
        if now - self._last_sign > self._patience():
            state = f"after {self.finished} of {len(job.index)} requests" if self.ready else "while starting"
            raise self._failure(
                Problem(
                    Code.AISBENCH_STALLED,
                    "AISBench",
                    f"nothing arrived for {self._patience():g} seconds {state}; it was stopped",
                    hint="Look whether the server still answers, and at its log.",
                )
            )
        return None

    def _patience(self) -> float:
        """Seconds without a sign of life after which it is stopped."""
        requests = len(self.job.index)
        if not self.ready:
            return SECONDS_TO_START
        if not self._may_send:
            return math.inf
        # AISBench goes on alone when all answers are there: it sums up, which takes longer the more there are.
        if not self._senders or self.finished >= requests:
            return SECONDS_TO_START + 0.05 * requests
        return self.job.stall_seconds

    def load(self) -> dict[str, Any]:
        """Who sent how much, and what that cost: ``senders`` of one AISBench."""
        senders = []
        for sender in self._senders:
            try:
                senders.append(json.loads(Path(sender.account).read_text(encoding="ascii")))
            except (OSError, ValueError):
                continue
        return {"host": socket.gethostname(), "senders": senders}

    def results(self, load: dict[str, Any]) -> AISBenchResult:
        """What it left after its end, with ``load``. Raises AISBenchError where that is not what it was asked for."""
        job, config, exit_code = self.job, self.config, self._exit_code
        assert exit_code is not None
        seconds = time.monotonic() - self._began
        exp_dir = self.publish()
        files = ResultFiles(exp_dir / "performances" / config.model_abbr, config.dataset_abbr)
        problems = judge(
            files, exit_code=exit_code, expected_max_tokens=job.index.column("max_tokens"), ignore_eos=config.ignore_eos
        )
        if problems:
            raise self._failure(*problems)
        return AISBenchResult(
            exit_code=exit_code,
            work_dir=job.work_dir,
            exp_dir=exp_dir,
            relative_exp_dir=os.path.relpath(exp_dir, job.manifest_path.parent),
            model_abbr=config.model_abbr,
            dataset_abbr=config.dataset_abbr,
            csv_path=files.csv,
            json_path=files.json,
            details_path=files.details,
            usage_path=files.usage if files.usage.is_file() else None,
            stream=config.stream,
            batch_size=config.batch_size,
            request_count=len(job.index),
            duration_seconds=seconds,
            load=load,
        )

    def records(self) -> Path:
        """Where the raw records of a load generator lie after its end. Raises AISBenchError where it failed."""
        exp_dir = self.publish()
        if self._exit_code:
            raise self._failure(
                Problem(Code.AISBENCH_FAILED, sys.executable, f"AISBench ended with exit code {self._exit_code}")
            )
        return exp_dir / "performances" / self.config.model_abbr

    def publish(self) -> Path:
        """End what is left of it and move what it wrote into ``job.work_dir``. Raises where it wrote nothing."""
        self._end()
        if self._exp_dir is None:
            raise self._failure(
                Problem(
                    Code.AISBENCH_FAILED,
                    sys.executable,
                    f"AISBench ended with exit code {self._exit_code} before it began",
                )
            )
        return self._exp_dir

    def _end(self) -> None:
        """Results are kept of whatever may have sent something, also of a failed run."""
        assert self._family is not None
        self._family.end()
        if self._exp_dir is None and (self._may_send or self._exit_code is not None):
            self._exp_dir = _publish(self._staging, self.job.work_dir)

    def _failure(self, *problems: Problem) -> AISBenchError:
        """The problems; the first also shows what AISBench said last and where to read on."""
        assert self._family is not None
        self._family.end()
        job, tail = self.job, self._family.tail
        lines = list(tail)[-_LAST_LINES_SHOWN:]
        first = problems[0]
        disk_is_full = any(os.strerror(number) in line for number in (ENOSPC, EDQUOT) for line in tail)
        hint = "\n    ".join(
            [
                *([first.hint] if first.hint else []),
                *([f"AISBench found the disk full: free some space below {job.work_dir}."] if disk_is_full else []),
                *(["AISBench's last lines:", *(f"| {line}" for line in lines)] if lines else []),
                *([f"All of its output: {job.log_path}"] if job.log_path is not None else []),
            ]
        )
        first = Problem(first.code, first.where, first.message, first.allowed, hint or None)
        return AISBenchError([first, *problems[1:]])


def _settings_of_senders(job: AISBenchJob, config: RenderedConfig, private: Path) -> list[SendingSettings]:
    """Leave what each sender needs where its settings say that it is."""
    requests = len(job.index)
    wanted = job.load.senders
    if wanted == "auto":
        wanted = min((os.cpu_count() or 2) - 1, requests // _REQUESTS_FOR_A_SENDER)
    urls = job.config["service"]["inference_url"]
    parts = divided(
        job.index,
        max(1, min(int(wanted), config.batch_size)),
        job.load.split,
        1 if isinstance(urls, str) else len(urls),
    )
    slots = shares(config.batch_size, [len(part) for part in parts])
    senders = []
    for number, (part, batch_size) in enumerate(zip(parts, slots, strict=True), start=1):
        index = private / f"index-{number}.npy"
        job.index.part(part).save(index)
        settings = SendingSettings(
            rows=str(job.rows_path),
            index=str(index),
            batch_size=batch_size if len(parts) > 1 else None,
            heartbeat=str(private / f"heartbeat-{number}"),
            go=str(private / "go"),
            account=str(private / f"account-{number}.json"),
            supervisor=str(private / SUPERVISOR_FILE),
            request_seconds=job.stall_seconds,
        )
        settings.save(_settings_path(private, number))
        senders.append(settings)
    return senders


def _settings_path(private: Path, number: int) -> Path:
    return private / f"sending-{number}.json"


def _read_heartbeat(path: Path) -> tuple[int, str]:
    """Time of the last beat (ns) and its text."""
    try:
        return path.stat().st_mtime_ns, path.read_text(encoding="ascii")
    except OSError:
        return 0, ""


def _environment(job: AISBenchJob, private: Path, senders: Sequence[SendingSettings]) -> dict[str, str]:
    """The environment of AISBench and of the template."""
    environment = {name: value for name, value in os.environ.items() if name not in ("TERM", API_KEY_VARIABLE)}
    environment.update(
        {
            SENDING_VARIABLE: os.pathsep.join(
                str(_settings_path(private, number)) for number in range(1, len(senders) + 1)
            ),
            "PYTHONPATH": python_path_with_this_package(os.environ.get("PYTHONPATH")),
            "PYTHONUNBUFFERED": "1",
            # Whatever a library leaves behind goes with the private directory.
            "TMPDIR": str(private),
            # The tokenizer is a local directory: nothing may be asked of a hub.
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "TRANSFORMERS_VERBOSITY": os.environ.get("TRANSFORMERS_VERBOSITY", "error"),
        }
    )
    if job.api_key:
        environment[API_KEY_VARIABLE] = job.api_key
    hosts = _loopback_hosts(job.config["service"]["inference_url"])
    for name in ("NO_PROXY", "no_proxy"):
        environment[name] = ",".join(dict.fromkeys([*filter(None, environment.get(name, "").split(",")), *hosts]))
    return environment


def _loopback_hosts(urls: str | Sequence[str]) -> list[str]:
    """Hosts of ``service.inference_url`` on this machine: no proxy of the environment reaches them."""
    hosts = [urlsplit(url).hostname or "" for url in ([urls] if isinstance(urls, str) else urls)]
    return [host for host in hosts if host in ("localhost", "::1") or host.startswith("127.")]


@contextmanager
def _private_directory() -> Iterator[Path]:
    """AISBench's working and temporary directory.

    Its shell commands cannot cope with a space in it, and the names of its sockets must fit into 107 bytes.
    """
    candidates = [tempfile.gettempdir(), "/tmp", "/var/tmp", str(Path.home())]
    usable = [
        path
        for path in candidates
        if not any(character.isspace() for character in path)
        and len(os.fsencode(path)) <= _SCRATCH_PATH_BYTES
        and os.access(path, os.W_OK)
    ]
    if not usable:
        raise AISBenchError.of(
            Code.AISBENCH_NO_SCRATCH_DIRECTORY,
            candidates[0],
            f"AISBench needs a writable scratch directory whose path has no space and at most {_SCRATCH_PATH_BYTES} "
            "bytes",
            hint="Set TMPDIR to one.",
        )
    _clear_private_directories(Path(usable[0]))
    directory = Path(tempfile.mkdtemp(prefix=_PRIVATE_PREFIX, dir=usable[0]))
    try:
        yield directory
    finally:
        _remove(directory)


def _clear_private_directories(parent: Path) -> None:
    """Remove what killed runs of this user left there: their locks are free."""
    for directory in parent.glob(f"{_PRIVATE_PREFIX}*"):
        with suppress(OSError):
            if directory.is_symlink() or directory.stat().st_uid != os.getuid():
                continue
            with _if_free(directory / SUPERVISOR_FILE) as free:
                if free:
                    _remove(directory)


@contextmanager
def _if_free(path: Path) -> Iterator[bool]:
    """Whether nobody held the lock of a file or directory, which is held in the block then. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock as long as this process lives; AISBench stops sending when it is free."""
    with path.open("wb") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def staging_directory(work_dir: Path) -> Iterator[Path]:
    """A directory below ``work_dir`` for this run alone: AISBench's own names repeat within a second."""
    work_dir.mkdir(parents=True, exist_ok=True)
    for abandoned in work_dir.glob(f"{_STAGING_PREFIX}*"):
        with suppress(OSError), _if_free(abandoned) as free:
            if free:
                _remove(abandoned)
    staging = work_dir / f"{_STAGING_PREFIX}{secrets.token_hex(6)}"
    staging.mkdir()
    with _if_free(staging):
        try:
            yield staging
        finally:
            _remove(staging)


def _remove(directory: Path) -> None:
    with signals_held():
        shutil.rmtree(directory, ignore_errors=True)


def _publish(staging: Path, work_dir: Path) -> Path | None:
    """Move AISBench's time-stamped directory into ``work_dir``; None if it made none."""
    made = sorted(path for path in staging.iterdir() if path.is_dir())
    if not made:
        return None
    stamp = made[-1]
    for attempt in range(1, 1000):
        target = work_dir / (stamp.name if attempt == 1 else f"{stamp.name}_{attempt}")
        try:
            target.mkdir()
        except FileExistsError:
            continue
        stamp.replace(target)
        return target
    return None
