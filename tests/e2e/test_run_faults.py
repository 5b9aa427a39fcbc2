"""`run` against a service that fails in the middle: exit code and last line; nothing written, left behind or sent."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.fault_proxy import Answer, FaultProxy, Seen, fault_proxy
from tests.doubles.scenarios import scenario_file
from tests.doubles.word_data_set import prepare_words

from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.running import running_server

pytestmark = pytest.mark.aisbench

MODEL = "tiny"
SECRET = "sk-secret-of-the-fault-tests"
FAMILY_VARIABLE = "FAULT_TESTS_RUN"
NO_ROOM = """
import os
open_file = os.open
def open_or_full(path, flags, *more, **options):
    if str(path).endswith({!r}):
        path, flags = "/dev/full", os.O_WRONLY
    return open_file(path, flags, *more, **options)
os.open = open_or_full
"""
HTML = Answer(502, "<html><title>502 Bad Gateway</title></html>")


@dataclass
class Prepared:
    """A prepared data set whose service is ``proxy``; every failed run leaves it as it is."""

    scenario: Path
    analysis: Path
    log: Path
    proxy: FaultProxy
    scratch: Path
    log_start: int = 0

    def log_text(self) -> str:
        """What this test's run has logged so far."""
        return self.log.read_text()[self.log_start :] if self.log.exists() else ""

    def start(
        self, *settings: str, largest_file: int | None = None, full_disk: str | None = None
    ) -> subprocess.Popen[str]:
        """``full_disk`` is the end of the names of files for which there is no room."""
        environment = os.environ | {FAMILY_VARIABLE: str(self.scenario), "TMPDIR": str(self.scratch)}
        if full_disk is not None:
            customizing = self.scenario.parent / "customizing"
            customizing.mkdir(exist_ok=True)
            (customizing / "sitecustomize.py").write_text(NO_ROOM.format(full_disk))
            environment["PYTHONPATH"] = str(customizing)

        def limit() -> None:
            if largest_file is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

        return subprocess.Popen(
            [
                *(sys.executable, "-m", "ais_bench_prefix_cache", "run", "--scenario", str(self.scenario)),
                *(word for setting in settings for word in ("--set", setting)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.scenario.parent,
            env=environment,
            preexec_fn=limit,
        )

    def processes(self) -> dict[int, str]:
        """Command lines, by id, of the living processes of runs that :meth:`start` started."""
        mark = f"{FAMILY_VARIABLE}={self.scenario}".encode()
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                mine = mark in (entry / "environ").read_bytes().split(b"\0")
                if mine and "zombie" not in (entry / "status").read_text():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found


@pytest.fixture(scope="module")
def servers(deepseek_tokenizer_dir: Path) -> Iterator[Callable[[], Any]]:
    @contextmanager
    def start() -> Iterator[str]:
        configuration = ServerConfiguration(
            tokenizer=deepseek_tokenizer_dir, model=MODEL, data_parallel_size=2, decode_tokens_per_second=40
        )
        with running_server(configuration, api_key=SECRET) as url:
            yield url

    yield start


@pytest.fixture(scope="module")
def prepared_once(
    servers: Callable[[], Any], deepseek_tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Prepared, str]]:
    directory = tmp_path_factory.mktemp("faults")
    # AISBench's scratch directory needs a shorter path than pytest's.
    with servers() as url, fault_proxy(url) as proxy, tempfile.TemporaryDirectory(dir="/tmp") as scratch:
        scenario = scenario_file(
            directory,
            tokenizer=deepseek_tokenizer_dir,
            url=proxy.url,
            requests={"count": 40, "input_length": {"mode": "fixed", "value": 160}},
            prefix_cache={"mode": "warmup", "target_hit_rate": 0.6, "groups": {"count": 2}},
            service={"model": MODEL, "api_key": SECRET, "timeout_seconds": 6, "poll_interval_seconds": 0.5},
            aisbench={"work_dir": "./aisbench", "model": {"batch_size": 4, "retry": 0}},
        )
        paths = prepare_words(scenario)
        yield Prepared(scenario, paths.analysis, paths.log("run"), proxy, Path(scratch)), url


@pytest.fixture
def prepared(prepared_once: tuple[Prepared, str]) -> Iterator[Prepared]:
    run, url = prepared_once
    run.proxy.reset(url)
    run.log_start = len(run.log.read_text()) if run.log.exists() else 0
    before = run.analysis.read_bytes()
    runs = set(run.analysis.parents[1].glob("runs/*"))
    shared_memory = abandoned_shared_memory()
    yield run
    left = run.processes()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    scratch = sorted(run.scratch.iterdir())
    for directory in scratch:
        shutil.rmtree(directory)
    assert left == {}
    assert run.analysis.read_bytes() == before, "analysis.json was touched"
    for directory in set(run.analysis.parents[1].glob("runs/*")) - runs:
        record = directory / "run.json"
        # Only a run that was killed could not say how it ended.
        document = json.loads(record.read_text()) if record.exists() else {"status": "failed", "phase": "formal"}
        assert (document["status"] in ("failed", "interrupted"), bool(document["phase"])) == (True, True)
        assert {"effective_config.json", "run.log"} <= {path.name for path in directory.iterdir()}
        assert not (directory / "analysis.json").exists()
    assert scratch == []
    deadline = time.monotonic() + 10
    while (abandoned := abandoned_shared_memory() - shared_memory) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert abandoned == set()
    sent = len(run.proxy.seen)
    time.sleep(0.5)
    assert len(run.proxy.seen) == sent, "something was sent after the end"
    for path in run.scenario.parent.rglob("*"):
        if path.is_file() and path != run.scenario:
            assert SECRET.encode() not in path.read_bytes(), path


def abandoned_shared_memory() -> set[str]:
    """Segments of Python's ``SharedMemory`` that no process uses: AISBench keeps its data set in one."""
    segments = {path.name for path in Path("/dev/shm").glob("psm_*")}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            segments -= set(re.findall(r"/dev/shm/(psm_\w+)", maps.read_text()))
        except OSError:
            continue
    return segments


def finish(process: subprocess.Popen[str], expected: int) -> list[str]:
    """The lines on stderr of a run that must end with ``expected``; nothing may stand on stdout."""
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == expected, stderr
    assert "Traceback" not in stderr
    assert SECRET not in stderr
    assert stdout == ""
    return stderr.splitlines()


def unchanged(prepared: Prepared, phase: str) -> str:
    return f"run failed in the phase {phase}; {prepared.analysis.name} is unchanged"


def codes(lines: list[str]) -> list[str]:
    return [line.split("]")[0].removeprefix("error [") for line in lines if line.startswith("error [")]


def test_the_server_is_gone_behind_its_gateway(prepared: Prepared) -> None:
    prepared.proxy.target = "http://127.0.0.1:9"
    lines = finish(prepared.start(), 3)
    assert set(codes(lines)) == {"CONNECTION_LOST"}
    assert lines[-1] == unchanged(prepared, "precheck")


def test_metrics_are_an_error_page(prepared: Prepared) -> None:
    prepared.proxy.rule = lambda seen: HTML if seen.path == "/metrics" else "pass"
    lines = finish(prepared.start(), 3)
    assert codes(lines) == ["SERVER_ERROR"]
    assert "answered 502: <html><title>502 Bad Gateway</title></html>" in "\n".join(lines)
    assert lines[-1] == unchanged(prepared, "precheck")


def test_metrics_are_an_error_page_that_claims_success(prepared: Prepared) -> None:
    prepared.proxy.rule = lambda seen: Answer(200, HTML.body) if seen.path == "/metrics" else "pass"
    lines = finish(prepared.start(), 3)
    assert codes(lines) == ["NOT_METRICS"]


def test_reset_answers_success_and_does_nothing(prepared: Prepared) -> None:
    ok = Answer(200, '{"success": true}', "application/json")
    prepared.proxy.rule = lambda seen: ok if seen.path == "/reset_prefix_cache" else "pass"
    lines = finish(prepared.start(), 3)
    assert codes(lines) == ["RESET_INEFFECTIVE", "RESET_INEFFECTIVE"]
    assert lines[-1] == unchanged(prepared, "reset")


def after_the_reset(prepared: Prepared) -> bool:
    return any(seen.path == "/reset_prefix_cache" for seen in prepared.proxy.seen)


def test_silence_during_warm_up(prepared: Prepared) -> None:
    prepared.proxy.rule = lambda seen: (
        "hang" if seen.path == "/v1/completions" and after_the_reset(prepared) and seen.number > 12 else "pass"
    )
    started = time.monotonic()
    lines = finish(prepared.start(), 3)
    assert codes(lines) == ["TIMEOUT"]
    assert time.monotonic() - started < 60
    assert lines[-1] in (unchanged(prepared, "warmup"), unchanged(prepared, "reset"))


def formal_fails(action: Any, every: int = 10) -> Callable[[Seen], Any]:
    return lambda seen: action if seen.formal and seen.number % every == 0 else "pass"


def test_every_tenth_request_fails(prepared: Prepared) -> None:
    prepared.proxy.rule = formal_fails(Answer(500, '{"error": {"message": "boom"}}', "application/json"))
    lines = finish(prepared.start(), 4)
    assert "AISBENCH_REQUESTS_FAILED" in codes(lines)
    assert "4 of 40 requests failed" in "\n".join(lines)
    assert lines[-1] == unchanged(prepared, "formal")


def test_streams_are_cut(prepared: Prepared) -> None:
    prepared.proxy.rule = formal_fails("cut", every=7)
    lines = finish(prepared.start(), 4)
    assert lines[-1] == unchanged(prepared, "formal")


def test_the_server_falls_silent(prepared: Prepared) -> None:
    prepared.proxy.rule = lambda seen: "hang" if seen.formal and seen.number > 20 else "pass"
    lines = finish(prepared.start(), 4)
    assert codes(lines) == ["AISBENCH_STALLED"]
    assert "nothing arrived for 60 seconds after " in "\n".join(lines)
    assert lines[-1] == unchanged(prepared, "formal")


def test_the_server_dies_in_mid_run(prepared: Prepared) -> None:
    def rule(seen: Seen) -> Any:
        if seen.formal and seen.number == 20:
            prepared.proxy.target = "http://127.0.0.1:9"
        return "pass"

    prepared.proxy.rule = rule
    lines = finish(prepared.start(), 4)
    assert "AISBENCH_REQUESTS_FAILED" in codes(lines)
    assert lines[-1] == unchanged(prepared, "formal")


@pytest.mark.parametrize(("answer", "code"), [(Answer(404, "gone"), "NOT_FOUND"), (HTML, "SERVER_ERROR")])
def test_metrics_are_gone_after_the_baseline(prepared: Prepared, answer: Answer, code: str) -> None:
    prepared.proxy.rule = lambda seen: answer if seen.path == "/metrics" and formal_started(prepared) else "pass"
    lines = finish(prepared.start(), 3)
    assert codes(lines) == [code]
    assert lines[-1] == unchanged(prepared, "after")


@pytest.mark.parametrize("victim", ["AISBench", "its worker"])
def test_aisbench_is_killed(prepared: Prepared, victim: str) -> None:
    process = prepared.start()
    wait_for(prepared, "formal", process)
    # AISBench starts its worker later; the others are the run itself and Python's resource trackers.
    family = sorted(pid for pid, command in prepared.processes().items() if "ais_bench.benchmark.cli.main" in command)
    os.kill(family[0] if victim == "AISBench" else family[-1], signal.SIGKILL)
    lines = finish(process, 4)
    assert codes(lines)[0] in ("AISBENCH_FAILED", "AISBENCH_INCOMPLETE")
    assert lines[-1] == unchanged(prepared, "formal")


def test_the_run_itself_is_killed(prepared: Prepared) -> None:
    # The server holds all but ten requests: nothing ends because its work is done.
    prepared.proxy.rule = lambda seen: "hang" if seen.formal and seen.number > 10 else "pass"
    process = prepared.start()
    wait_for(prepared, "formal", process)
    process.kill()
    process.communicate(timeout=30)
    wait_until_all_have_ended(prepared)
    assert prepared.processes() == {}
    # Nobody was left to clear this away: the next run does.
    staging = prepared.scenario.parent / "aisbench"
    left = {*prepared.scratch.glob("aisbench-*"), *staging.glob(".running-*")}
    assert len(left) == 2
    prepared.proxy.rule = lambda seen: HTML if seen.formal else "pass"
    finish(prepared.start(), 4)
    assert not any(path.exists() for path in left)


LOAD_GENERATORS = ("aisbench.load.generators=2", "aisbench.load.senders=2")


@pytest.mark.parametrize("victim", ["load generator", "sender", "AISBench that sums up"])
def test_a_part_of_the_load_is_killed(prepared: Prepared, victim: str) -> None:
    process = prepared.start(*LOAD_GENERATORS)
    wait_for(prepared, "formal", process)
    commands = prepared.processes()
    generators = [pid for pid, command in commands.items() if "aisbench.generator" in command]
    family = {pid: parent_of(pid) for pid, command in commands.items() if "ais_bench.benchmark.cli.main" in command}
    senders = [pid for pid, parent in family.items() if parent in family]
    alone = [pid for pid, parent in family.items() if parent == process.pid]
    assert (len(generators), len(senders) >= 4, len(alone)) == (2, True, 1)
    started = time.monotonic()
    os.kill({"load generator": generators, "sender": senders}.get(victim, alone)[-1], signal.SIGKILL)
    lines = finish(process, 4)
    assert time.monotonic() - started < 15
    if victim == "load generator":
        assert codes(lines) == ["LOAD_GENERATOR_LOST"]
        wait_until_all_have_ended(prepared)  # its AISBench sees by itself that nobody is there any more
        for directory in prepared.scratch.iterdir():  # what was killed clears nothing away
            shutil.rmtree(directory)
    else:
        assert codes(lines)[0] in ("AISBENCH_FAILED", "AISBENCH_INCOMPLETE")
    assert lines[-1] == unchanged(prepared, "formal")
    assert sum(seen.formal for seen in prepared.proxy.seen) < 40


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_with_load_generators_is_ended(prepared: Prepared, number: signal.Signals) -> None:
    process = prepared.start(*LOAD_GENERATORS)
    wait_for(prepared, "formal", process)
    process.send_signal(number)
    if number == signal.SIGINT:
        assert finish(process, 130)[-1] == f"run interrupted in the phase formal; {prepared.analysis.name} is unchanged"
    else:
        process.communicate(timeout=30)
    wait_until_all_have_ended(prepared)
    assert sum(seen.formal for seen in prepared.proxy.seen) < 40
    if number == signal.SIGKILL:  # nobody was left to clear away what the run itself had made
        for directory in prepared.scratch.iterdir():
            shutil.rmtree(directory)


def wait_until_all_have_ended(prepared: Prepared, seconds: float = 15) -> None:
    """Until no process of a run lives, or so many seconds have passed."""
    deadline = time.monotonic() + seconds
    while prepared.processes() and time.monotonic() < deadline:
        time.sleep(0.1)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_the_disk_is_full_when_the_analysis_is_written(prepared: Prepared) -> None:
    lines = finish(prepared.start(full_disk=f"{prepared.analysis.name}.partial"), 2)
    assert lines[-3:] == [
        f"error [DISK_FULL] {prepared.analysis}: the disk is full",
        "    Free some space and repeat the command.",
        unchanged(prepared, "analysis"),
    ]


def test_the_disk_is_full_when_the_log_is_written(prepared: Prepared) -> None:
    lines = finish(prepared.start(full_disk=prepared.log.name), 2)
    assert lines[-3:] == [
        f"error [DISK_FULL] {prepared.log}: the disk is full",
        "    Free some space and repeat the command.",
        unchanged(prepared, "verify"),
    ]


def test_the_disk_is_full_while_aisbench_writes(prepared: Prepared) -> None:
    """A limit on the size of files stands for the disk: the run's own files stay below it, AISBench's do not."""
    # The other tests of this module have filled the log that all runs of a data set share.
    prepared.log.unlink(missing_ok=True)
    prepared.log_start = 0
    lines = finish(prepared.start(largest_file=16 * 1024), 4)
    assert lines[-1] == unchanged(prepared, "formal")


def formal_started(prepared: Prepared) -> bool:
    return any(seen.formal for seen in prepared.proxy.seen)


def test_server_restarted_in_mid_run(prepared: Prepared, servers: Callable[[], Any]) -> None:
    with servers() as fresh:

        def rule(seen: Seen) -> Any:
            if seen.formal and seen.number == 20:
                prepared.proxy.target = fresh
            return "pass"

        prepared.proxy.rule = rule
        lines = finish(prepared.start(), 3)
    assert any("RESTART" in code for code in codes(lines)), lines
    assert lines[-1] == unchanged(prepared, "analysis")


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
@pytest.mark.parametrize("phase", ["precheck", "reset", "warmup", "baseline", "formal", "after"])
def test_a_signal_ends_everything(prepared: Prepared, phase: str, number: int, code: int, word: str) -> None:
    hanging = {
        "precheck": "/v1/models",
        "reset": "/reset_prefix_cache",
        "warmup": "/v1/completions",
        "baseline": "/metrics",
        "after": "/metrics",
    }

    def rule(seen: Seen) -> Any:
        return "hang" if seen.path == hanging.get(phase) and in_phase(prepared, phase) else "pass"

    prepared.proxy.rule = rule
    process = prepared.start()
    wait_for(prepared, phase, process)
    process.send_signal(number)
    started = time.monotonic()
    lines = finish(process, code)
    assert time.monotonic() - started < 15
    assert lines[-1] == f"run {word} in the phase {phase}; {prepared.analysis.name} is unchanged"


@pytest.mark.parametrize(
    ("numbers", "pause", "code", "word"),
    [
        ([signal.SIGINT] * 8, 0.02, 130, "interrupted"),
        ([signal.SIGTERM] * 3, 0.05, 143, "terminated"),
        ([signal.SIGINT, signal.SIGTERM], 0.5, 130, "interrupted"),
    ],
    ids=["Ctrl-C eight times", "SIGTERM three times", "Ctrl-C, then SIGTERM"],
)
def test_further_signals_change_nothing(
    prepared: Prepared, numbers: list[signal.Signals], pause: float, code: int, word: str
) -> None:
    """The first one ends the run; an impatient second one once left processes, shared memory and scratch files."""
    process = prepared.start()
    wait_for(prepared, "formal", process)
    for number in numbers:
        if process.poll() is None:
            process.send_signal(number)
        time.sleep(pause)
    assert finish(process, code)[-1] == f"run {word} in the phase formal; {prepared.analysis.name} is unchanged"


def in_phase(prepared: Prepared, phase: str) -> bool:
    return f"{phase}: started" in prepared.log_text()


def wait_for(prepared: Prepared, phase: str, process: subprocess.Popen[str]) -> None:
    """Until the run hangs in ``phase``, or half of the formal requests have been sent."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        if in_phase(prepared, phase) and (phase != "formal" or sum(seen.formal for seen in prepared.proxy.seen) >= 10):
            time.sleep(0.3)
            return
        time.sleep(0.05)
    raise AssertionError(f"the run did not reach {phase}")
