"""Whatever goes wrong while AISBench runs: a clear error, no success, no process left, nothing sent afterwards."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.aisbench_runs import run_aisbench

from ais_bench_prefix_cache.aisbench.job import AISBenchJob
from ais_bench_prefix_cache.aisbench.request_usage import load_request_usage
from ais_bench_prefix_cache.foundation.errors import AISBenchError

pytestmark = pytest.mark.aisbench

ROWS = [{"question": f"{index} text", "max_tokens": 4} for index in range(20)]


def _processes_that_work_in(directory: Path) -> list[int]:
    """Ids of processes whose working directory lies below ``directory``."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(directory) in str((entry / "cwd").readlink()):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def test_failed_and_broken_answers_are_an_error_that_counts_the_reasons(
    fake_server: Any, prepare_rows: Callable[..., AISBenchJob], make_answer: type[Any], scratch: Path
) -> None:
    misbehaviour = {
        3: make_answer(status=500, error_body="out of luck"),
        7: make_answer(status=500, error_body="out of luck"),
        9: make_answer(error_chunk_after=2),
        11: make_answer(cut_after=1),
        13: make_answer(end_without_done_after=2),
    }
    fake_server.behave = lambda request: misbehaviour.get(int(request.prompt.split()[0]), make_answer())
    job = prepare_rows(ROWS, fake_server.url, retry=0)
    with pytest.raises(AISBenchError) as caught:
        run_aisbench(job)
    problem = caught.value.problems[0]
    assert [problem.code for problem in caught.value.problems] == ["AISBENCH_REQUESTS_FAILED"]
    assert problem.message.startswith("5 of 20 requests failed: 2 x HTTP 500 Internal Server Error: out of luck; ")
    reasons = Path(problem.where).read_text(encoding="utf-8")
    assert "the server reported an error in the stream: the engine died" in reasons
    assert "the stream ended without [DONE]" in reasons
    assert "Payload" in reasons or "Disconnected" in reasons or "reset" in reasons.lower()
    assert "AISBench's last lines:" in str(problem.hint)
    assert str(job.log_path) in str(problem.hint)
    assert list(scratch.iterdir()) == []


def test_answers_that_are_no_answers_fail_and_nothing_follows_a_redirect(
    fake_server: Any, prepare_rows: Callable[..., AISBenchJob], make_answer: type[Any]
) -> None:
    misbehaviour = {
        2: make_answer(location=f"http://127.0.0.1:{fake_server.port}/v1/elsewhere"),
        4: make_answer(tokens=5),
        6: make_answer(tokens=1, events_twice=True),
        8: make_answer(endless=True),
    }
    fake_server.behave = lambda request: misbehaviour.get(int(request.prompt.split()[0]), make_answer())
    with pytest.raises(AISBenchError) as caught:
        run_aisbench(prepare_rows(ROWS, fake_server.url, retry=0))
    problem = caught.value.problems[0]
    assert problem.message.startswith("4 of 20 requests failed: ")
    reasons = Path(problem.where).read_text(encoding="utf-8")
    assert "HTTP 307 Temporary" in reasons
    assert "the answer has more tokens than max_tokens, 4" in reasons
    assert "the answer came in 2 parts with text, but has 1 tokens: sent twice?" in reasons
    assert "the answer is longer than 327680 bytes" in reasons
    assert {request.path for request in fake_server.seen} == {"/v1/completions"}
    assert len(fake_server.seen) == 20


@pytest.mark.parametrize("retries", [0, 1])
def test_a_retry_is_a_retry(
    fake_server: Any, prepare_rows: Callable[..., AISBenchJob], make_answer: type[Any], retries: int
) -> None:
    sent = []

    def behave(request: Any) -> Any:
        sent.append(request.prompt)
        return make_answer(cut_after=0) if request.prompt == "5 text" and sent.count("5 text") == 1 else make_answer()

    fake_server.behave = behave
    rows = [{"question": f"{index} text"} for index in range(8)]
    job = prepare_rows(rows, fake_server.url, retry=retries)
    if retries:
        path = run_aisbench(job).usage_path
        assert path is not None
        usage = load_request_usage(path).requests
        assert [row.attempts for row in usage] == [1, 1, 1, 1, 1, 2, 1, 1]
    else:
        with pytest.raises(AISBenchError, match="1 of 8 requests failed"):
            run_aisbench(job)
    assert sent.count("5 text") == 1 + retries


def test_a_killed_worker_is_an_error(
    fake_server: Any, prepare_rows: Callable[..., AISBenchJob], make_answer: type[Any], scratch: Path
) -> None:
    def behave(request: Any) -> Any:
        if request.prompt.startswith("12 "):
            # The others are the program itself and Python's resource tracker.
            worker = max(pid for pid in _processes_that_work_in(scratch) if "cli.main" in _command_line(pid))
            os.kill(worker, signal.SIGKILL)
        return make_answer()

    fake_server.behave = behave
    with pytest.raises(AISBenchError) as caught:
        run_aisbench(prepare_rows(ROWS, fake_server.url))
    assert caught.value.problems[0].code in ("AISBENCH_FAILED", "AISBENCH_INCOMPLETE")
    assert not _processes_that_work_in(scratch)


def test_a_silent_server_ends_the_run(
    fake_server: Any, prepare_rows: Callable[..., AISBenchJob], make_answer: type[Any], scratch: Path
) -> None:
    fake_server.behave = lambda request: make_answer(never=request.prompt.startswith("5 "))
    with pytest.raises(AISBenchError) as caught:
        run_aisbench(prepare_rows(ROWS, fake_server.url, stall_seconds=3.0))
    problem = caught.value.problems[0]
    assert problem.code == "AISBENCH_STALLED"
    assert problem.message == "nothing arrived for 3 seconds after 5 of 20 requests; it was stopped"
    assert not _processes_that_work_in(scratch)


DISK_IS_FULL = """
import errno, io, os
opened = io.open
def full(path, *arguments, **options):
    if str(path).endswith("_usage.jsonl"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    return opened(path, *arguments, **options)
io.open = full
"""


def test_a_full_disk_is_named(
    fake_server: Any, prepare_rows: Callable[..., AISBenchJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "sitecustomize.py").write_text(DISK_IS_FULL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "python"))
    job = prepare_rows(ROWS, fake_server.url)
    with pytest.raises(AISBenchError) as caught:
        run_aisbench(job)
    assert f"AISBench found the disk full: free some space below {job.work_dir}." in str(caught.value.problems[0].hint)


PROGRAM = """
import pickle, sys
from ais_bench_prefix_cache.aisbench.launch import started_aisbench
from ais_bench_prefix_cache.foundation.interruptions import ended_by_the_first_signal
import tempfile
tempfile.tempdir = sys.argv[2]
with ended_by_the_first_signal():
    with started_aisbench(pickle.load(open(sys.argv[1], "rb"))) as aisbench:
        aisbench.send()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_program_leaves_no_process_and_sends_nothing_more(
    fake_server: Any,
    prepare_rows: Callable[..., AISBenchJob],
    make_answer: type[Any],
    scratch: Path,
    tmp_path: Path,
    number: int,
) -> None:
    fake_server.behave = lambda _: make_answer(first_token_after=0.1)
    rows = [{"question": f"{index} text"} for index in range(600)]
    job = tmp_path / "job.pickle"
    job.write_bytes(pickle.dumps(prepare_rows(rows, fake_server.url, batch_size=2)))
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, job, scratch], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(fake_server.seen) < 10 and time.monotonic() < deadline:
        time.sleep(0.05)
    program.send_signal(number)
    program.wait(timeout=30)
    deadline = time.monotonic() + (10 if number == signal.SIGKILL else 0)
    while _processes_that_work_in(scratch) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _processes_that_work_in(scratch)
    seen = len(fake_server.seen)
    time.sleep(1.0)
    assert len(fake_server.seen) == seen < 600
    if number != signal.SIGKILL:
        assert list(scratch.iterdir()) == []
