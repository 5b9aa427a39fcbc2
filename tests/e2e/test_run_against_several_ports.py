"""One port for each rank, as external load balancers have: each engine is called "0", its position is its rank."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.doubles.scenarios import scenario_file
from tests.doubles.word_data_set import prepare_words

from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.running import running_server

pytestmark = pytest.mark.aisbench

CommandLine = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def urls(deepseek_tokenizer_dir: Path) -> Iterator[list[str]]:
    configuration = ServerConfiguration(tokenizer=deepseek_tokenizer_dir, model="tiny")
    with running_server(configuration) as first, running_server(configuration) as second:
        yield [first, second]


def scenario_of(urls: list[str], tokenizer: Path, directory: Path, mode: str) -> Path:
    return scenario_file(
        directory,
        tokenizer=tokenizer,
        url=urls,
        requests={"count": 30, "input_length": {"mode": "truncated_normal", "min": 64, "max": 400}},
        prefix_cache={"mode": mode, "groups": {"count": 3}},
        service={"dp_size": 2, "poll_interval_seconds": 0.5},
        aisbench={"work_dir": "./aisbench", "model": {"batch_size": 8}},
    )


def counter(text: str, name: str) -> int:
    (line,) = (line for line in text.splitlines() if line.startswith(f"vllm:prefix_cache_{name}_total{{"))
    return int(float(line.rsplit(" ", 1)[1]))


@pytest.mark.parametrize("mode", ["cold", "warmup"])
def test_theory_equals_the_counter_of_each_port(
    urls: list[str], mode: str, deepseek_tokenizer_dir: Path, tmp_path: Path, command_line: CommandLine
) -> None:
    scenario = scenario_of(urls, deepseek_tokenizer_dir, tmp_path, mode)
    paths = prepare_words(scenario)
    command_line("run", "--scenario", scenario, cwd=tmp_path)
    analysis = json.loads(paths.analysis.read_text())
    runtime = analysis["runtime"]
    looks = [runtime[name]["raw_prometheus"] for name in ("metrics_baseline", "metrics_after")]
    counted = [
        tuple(counter(late, name) - counter(early, name) for name in ("queries", "hits"))
        for early, late in zip(*looks, strict=True)
    ]
    theory = analysis["theory"]
    assert tuple(map(sum, zip(*counted, strict=True))) == (theory["input_tokens"], theory["hit_tokens"])
    if mode == "cold":
        planned = [theory["dp"][rank] for rank in ("0", "1")]
        assert counted == [(share["input_tokens"], share["hit_tokens"]) for share in planned]
    by_dp = analysis["actual"]["by_dp"]
    assert [(by_dp[rank]["queries"], by_dp[rank]["hits"]) for rank in ("0", "1")] == counted
    assert [by_dp[rank]["engine"] for rank in ("0", "1")] == ["0", "0"]
    assert analysis["findings"] == []
    assert runtime["kv_cache_polling"]["errors"] == 0

    # The same from the saved texts, one for each port.
    files: list[str | Path] = []
    for option, texts in (("--baseline", looks[0]), ("--after", looks[1])):
        for position, text in enumerate(texts):
            path = tmp_path / f"{option.strip('-')}.{position}.prom"
            path.write_text(text)
            files += [option, path]
    again = json.loads(command_line("analyze", "--manifest", paths.manifest, *files, cwd=tmp_path).stdout)
    assert again["actual"] == analysis["actual"]
    assert again["findings"] == []


def test_a_port_that_was_not_reset_is_named(
    urls: list[str], deepseek_tokenizer_dir: Path, tmp_path: Path, command_line: CommandLine
) -> None:
    scenario = scenario_of(urls, deepseek_tokenizer_dir, tmp_path, "warmup")
    document = json.loads(scenario.read_text())
    document["service"]["reset_url"] = [f"{urls[0]}/reset_prefix_cache"] * 2
    scenario.write_text(json.dumps(document))
    prepare_words(scenario)
    stderr = command_line("run", "--scenario", scenario, cwd=tmp_path, expect=3).stderr
    assert "error [RESET_INEFFECTIVE]" in stderr
    assert "rank 1 still hits" in stderr
    assert "emptied were only the ranks [0]" in stderr


@pytest.mark.parametrize("mode", ["cold", "warmup"])
def test_two_ports_of_two_ranks_each(
    mode: str, deepseek_tokenizer_dir: Path, tmp_path: Path, command_line: CommandLine
) -> None:
    """Hybrid load balancing: the URL reaches two ranks, the header chooses between them; both ports say 0 and 1."""
    configuration = ServerConfiguration(tokenizer=deepseek_tokenizer_dir, model="tiny", data_parallel_size=2)
    with running_server(configuration) as first, running_server(configuration) as second:
        scenario = scenario_of([first, second], deepseek_tokenizer_dir, tmp_path, mode)
        document = json.loads(scenario.read_text())
        document["service"]["dp_size"] = 4
        scenario.write_text(json.dumps(document))
        paths = prepare_words(scenario)
        command_line("run", "--scenario", scenario, cwd=tmp_path)
    analysis = json.loads(paths.analysis.read_text())
    by_dp, theory = analysis["actual"]["by_dp"], analysis["theory"]
    assert [by_dp[rank]["engine"] for rank in ("0", "1", "2", "3")] == ["0", "1", "0", "1"]
    assert (analysis["actual"]["global_queries"], analysis["actual"]["global_hits"]) == (
        theory["input_tokens"],
        theory["hit_tokens"],
    )
    if mode == "cold":
        assert {rank: (counted["queries"], counted["hits"]) for rank, counted in by_dp.items()} == {
            rank: (share["input_tokens"], share["hit_tokens"]) for rank, share in theory["dp"].items()
        }
    assert analysis["findings"] == []
