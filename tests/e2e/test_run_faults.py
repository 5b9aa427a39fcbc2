"""`run` against a service that fails in the middle: exit code and last line; nothing written, left behind or sent."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import Answer, FaultProxy, Seen, fault_proxy
from word_data_set import prepare_words

from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.running import running_server

pytestmark = pytest.mark.aisbench

MODEL = "tiny"
SECRET = "sk-secret-of-the-fault-tests"
HTML = Answer(502, "<html><title>502 Bad Gateway</title></html>")


@dataclass
class Prepared:
    """A prepared data set whose service is ``proxy``; every failed run leaves it as it is."""

    scenario: Path
    analysis: Path
    log: Path
    proxy: FaultProxy
    log_start: int = 0

    def log_text(self) -> str:
        """What this test's run has logged so far."""
        return self.log.read_text()[self.log_start :] if self.log.exists() else ""

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "ais_bench_prefix_cache", "run", "--scenario", str(self.scenario)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.scenario.parent,
        )

    def processes(self) -> list[str]:
        """Command lines of living processes that belong to a run of this Scenario."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                mine = entry.name.isdigit() and bytes(self.scenario) in (entry / "environ").read_bytes()
                if mine and "zombie" not in (entry / "status").read_text():
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
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
    with servers() as url, fault_proxy(url) as proxy:
        (directory / "corpus.jsonl").write_text('{"question": "How many apples are left?"}\n')
        scenario = directory / "scenario.json"
        document = {
            "run": {"run_id": "faults", "output_dir": "./out"},
            "tokenizer": {"path": str(deepseek_tokenizer_dir)},
            "corpus": {"path": "./corpus.jsonl"},
            "requests": {"count": 40, "input_length": {"mode": "fixed", "value": 160}},
            "prefix_cache": {"groups": {"count": 2}},
            "service": {
                "inference_url": f"{proxy.url}/v1/completions",
                "metrics_url": f"{proxy.url}/metrics",
                "reset_url": f"{proxy.url}/reset_prefix_cache",
                "model": MODEL,
                "api_key": SECRET,
                "timeout_seconds": 3,
                "poll_interval_seconds": 0.5,
            },
            "aisbench": {"work_dir": "./aisbench", "model": {"batch_size": 4, "retry": 1}},
        }
        scenario.write_text(json.dumps(document))
        paths = prepare_words(scenario)
        yield Prepared(scenario, paths.analysis, paths.log("run"), proxy), url


@pytest.fixture
def prepared(prepared_once: tuple[Prepared, str]) -> Iterator[Prepared]:
    run, url = prepared_once
    run.proxy.reset(url)
    run.log_start = len(run.log.read_text()) if run.log.exists() else 0
    before = run.analysis.read_bytes()
    yield run
    assert run.analysis.read_bytes() == before, "analysis.json was touched"
    assert run.processes() == []
    sent = len(run.proxy.seen)
    time.sleep(0.5)
    assert len(run.proxy.seen) == sent, "something was sent after the end"
    for path in run.scenario.parent.rglob("*"):
        if path.is_file() and path != run.scenario:
            assert SECRET.encode() not in path.read_bytes(), path


def finish(process: subprocess.Popen[str], expected: int) -> list[str]:
    """The lines on stderr of a run that must end with ``expected``; nothing may stand on stdout."""
    stdout, stderr = process.communicate(timeout=120)
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


def test_metrics_are_gone_after_the_baseline(prepared: Prepared) -> None:
    def rule(seen: Seen) -> Any:
        return Answer(404, "gone") if seen.path == "/metrics" and formal_started(prepared) else "pass"

    prepared.proxy.rule = rule
    lines = finish(prepared.start(), 3)
    assert codes(lines) == ["NOT_FOUND"]
    assert lines[-1] == unchanged(prepared, "after")


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
@pytest.mark.parametrize("phase", ["precheck", "warmup", "formal"])
def test_a_signal_ends_everything(prepared: Prepared, phase: str, number: int, code: int, word: str) -> None:
    def rule(seen: Seen) -> Any:
        if phase == "precheck":
            return "hang" if seen.path == "/v1/models" else "pass"
        if phase == "warmup":
            return "hang" if seen.path == "/v1/completions" and warming(prepared) else "pass"
        return "pass"

    prepared.proxy.rule = rule
    process = prepared.start()
    wait_for(prepared, phase, process)
    process.send_signal(number)
    started = time.monotonic()
    lines = finish(process, code)
    assert time.monotonic() - started < 15
    assert lines[-1] == f"run {word} in the phase {phase}"


def warming(prepared: Prepared) -> bool:
    return "reset: finished" in prepared.log_text()


def wait_for(prepared: Prepared, phase: str, process: subprocess.Popen[str]) -> None:
    """Until the run hangs in ``phase``, or half of the formal requests have been sent."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        if f"{phase}: started" in prepared.log_text() and (
            phase != "formal" or sum(seen.formal for seen in prepared.proxy.seen) >= 10
        ):
            time.sleep(0.3)
            return
        time.sleep(0.05)
    raise AssertionError(f"the run did not reach {phase}")
