"""Run the real AISBench, watch it, stop it, and judge it by its files."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from errno import EDQUOT, ENOSPC
from pathlib import Path
from urllib.parse import urlsplit

from ais_bench_prefix_cache.aisbench.config_rendering import (
    check_extra_args,
    command_line_arguments,
    python_path_with_this_package,
    render_config,
)
from ais_bench_prefix_cache.aisbench.environment import SENDING_VARIABLE
from ais_bench_prefix_cache.aisbench.job import AISBenchJob, AISBenchResult
from ais_bench_prefix_cache.aisbench.judging import ResultFiles, judge
from ais_bench_prefix_cache.aisbench.processes import ProcessFamily
from ais_bench_prefix_cache.aisbench.sending_settings import SendingSettings
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import AISBenchError, Problem
from ais_bench_prefix_cache.foundation.interruptions import signals_held
from ais_bench_prefix_cache.foundation.names import API_KEY_VARIABLE

_SECONDS_TO_START = 600.0
"""The first start on a machine compiles every module; it took 47 s on a slow one."""
_SECONDS_BETWEEN_LOOKS = 0.2
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


def check_job(job: AISBenchJob) -> None:
    """Find out before anything is sent whether :func:`run_aisbench` could start: installation, arguments, template."""
    check_installed()
    problems = check_extra_args(job.extra_args)
    if problems:
        raise AISBenchError(problems)
    with _private_directory() as private:
        render_config(job, private, _environment(job, private))


def run_aisbench(job: AISBenchJob) -> AISBenchResult:
    """Send all formal requests through AISBench; returns only when every one of them is proven to have succeeded.

    On any way out - success, :class:`AISBenchError`, an interruption - no process of AISBench is left. Results, also
    those of a failed run, lie in a directory of their own below ``job.work_dir``.
    """
    check_installed()
    problems = check_extra_args(job.extra_args)
    if problems:
        raise AISBenchError(problems)
    started = time.monotonic()
    with _private_directory() as private, _locked(private / "supervisor"), _staging_directory(job.work_dir) as staging:
        environment = _environment(job, private)
        config = render_config(job, private, environment)
        _tell_the_adapters(job, private)
        config_path = private / "prefix_cache_perf.py"
        config_path.write_text(config.text, encoding="utf-8")
        with ExitStack() as clean_up:
            # From its first moment on, no interruption loses sight of the family.
            with signals_held():
                family = ProcessFamily(
                    [
                        sys.executable,
                        "-m",
                        "ais_bench.benchmark.cli.main",
                        config_path.name,
                        *("--mode", "perf", "--debug", "--work-dir", str(staging)),
                        *command_line_arguments(job.extra_args),
                    ],
                    cwd=private,
                    environment=environment,
                    log=job.log_path,
                    # The log is read when the secret must be gone and the results lie where they stay.
                    replacements={str(staging): str(job.work_dir)},
                    secret=job.api_key,
                )
                clean_up.callback(family.end)
            try:
                exit_code = _wait(family, job, private / "heartbeat")
            finally:
                family.end()
                exp_dir = _publish(staging, job.work_dir)
    if exp_dir is None:
        raise _with_last_lines(
            [
                Problem(
                    Code.AISBENCH_FAILED, sys.executable, f"AISBench ended with exit code {exit_code} before it began"
                )
            ],
            family,
            job,
        )
    files = ResultFiles(exp_dir / "performances" / config.model_abbr, config.dataset_abbr)
    problems = judge(
        files, exit_code=exit_code, expected_max_tokens=job.index.column("max_tokens"), ignore_eos=config.ignore_eos
    )
    if problems:
        raise _with_last_lines(problems, family, job)
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
        duration_seconds=time.monotonic() - started,
    )


def _tell_the_adapters(job: AISBenchJob, private: Path) -> None:
    """Leave what the adapters need where :func:`_environment` says that it is."""
    index = private / "index.npy"
    job.index.save(index)
    SendingSettings(
        rows=str(job.rows_path),
        index=str(index),
        heartbeat=str(private / "heartbeat"),
        supervisor=str(private / "supervisor"),
        request_seconds=job.stall_seconds,
    ).save(private / "sending.json")


def _wait(family: ProcessFamily, job: AISBenchJob, heartbeat: Path) -> int:
    """Wait for AISBench's end and report progress; raises when it makes none for too long."""
    started = time.monotonic()
    last_sign, last_seen, finished = started, (0, ""), 0
    while (exit_code := family.wait(_SECONDS_BETWEEN_LOOKS)) is None:
        now = time.monotonic()
        seen = _read_heartbeat(heartbeat)
        if seen != last_seen:
            last_sign, last_seen = now, seen
            if seen[1].isdigit() and int(seen[1]) != finished:
                finished = int(seen[1])
                _report(job, finished)
        if job.timeout_seconds is not None and now - started > job.timeout_seconds:
            raise _with_last_lines(
                [Problem(Code.AISBENCH_TIMEOUT, "AISBench", f"did not end within {job.timeout_seconds:g} seconds")],
                family,
                job,
            )
        patience = _SECONDS_TO_START if last_seen == (0, "") else job.stall_seconds
        # AISBench goes on alone when all answers are there: it sums up, which takes longer the more there are.
        if finished >= len(job.index):
            patience = _SECONDS_TO_START + 0.05 * len(job.index)
        if now - last_sign > patience:
            state = f"after {finished} of {len(job.index)} requests" if last_seen != (0, "") else "while starting"
            raise _with_last_lines(
                [
                    Problem(
                        Code.AISBENCH_STALLED,
                        "AISBench",
                        f"nothing arrived for {patience:g} seconds {state}; it was stopped",
                        hint="Look whether the server still answers, and at its log.",
                    )
                ],
                family,
                job,
            )
    seen = _read_heartbeat(heartbeat)
    if seen[1].isdigit() and int(seen[1]) != finished:
        _report(job, int(seen[1]))
    return exit_code


def _report(job: AISBenchJob, finished: int) -> None:
    if job.on_progress is not None:
        job.on_progress(finished, len(job.index))


def _read_heartbeat(path: Path) -> tuple[int, str]:
    """Time of the last beat (ns) and its text."""
    try:
        return path.stat().st_mtime_ns, path.read_text(encoding="ascii")
    except OSError:
        return 0, ""


def _with_last_lines(problems: list[Problem], family: ProcessFamily, job: AISBenchJob) -> AISBenchError:
    """The problems; the first also shows what AISBench said last and where to read on."""
    family.end()
    lines = list(family.tail)[-_LAST_LINES_SHOWN:]
    first = problems[0]
    disk_is_full = any(os.strerror(number) in line for number in (ENOSPC, EDQUOT) for line in family.tail)
    hint = "\n    ".join(
        [
            *([first.hint] if first.hint else []),
            *([f"AISBench found the disk full: free some space below {job.work_dir}."] if disk_is_full else []),
            *(["AISBench's last lines:", *(f"| {line}" for line in lines)] if lines else []),
            *([f"All of its output: {job.log_path}"] if job.log_path is not None else []),
        ]
    )
    return AISBenchError([Problem(first.code, first.where, first.message, first.allowed, hint or None), *problems[1:]])


def _environment(job: AISBenchJob, private: Path) -> dict[str, str]:
    """The environment of AISBench and of the template."""
    environment = {name: value for name, value in os.environ.items() if name not in ("TERM", API_KEY_VARIABLE)}
    environment.update(
        {
            SENDING_VARIABLE: str(private / "sending.json"),
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
            with _if_free(directory / "supervisor") as free:
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
def _staging_directory(work_dir: Path) -> Iterator[Path]:
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
