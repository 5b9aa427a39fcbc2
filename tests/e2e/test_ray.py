"""`run --ray` and `prepare --ray` on a cluster of two nodes.

Ray listens on every interface, whatever address it is given. So the cluster, the server and the commands live in a
network namespace that has nothing but its own loopback; they all end with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.scenarios import scenario_file

pytestmark = pytest.mark.aisbench

PROJECT = Path(__file__).resolve().parents[2]
SECRET = "sk-secret-of-the-ray-tests"
PORT, SERVER = 6390, 18190

CLUSTER = """
set -e
ip link set lo up
ray() {
    "$PYTHON" -c 'from ray.scripts.scripts import main; main()' start --object-store-memory=80000000 "$@" >&2
}
ray --head --num-cpus=%(cores)d --node-ip-address=127.0.0.1 --port=%(port)d --include-dashboard=false \\
    --temp-dir="$SCRATCH"
ray --num-cpus=%(cores)d --address=127.0.0.1:%(port)d --node-ip-address=127.0.0.2
command="$PYTHON -m ais_bench_prefix_cache"
$command serve --tokenizer "$TOKENIZER" --model tiny --port %(server)d --api-key-env KEY --data-parallel-size 2 \\
    %(speed)s > "$SCRATCH/served" &
$command prepare --mode text --scenario scenario.json --ray 127.0.0.1:%(port)d > there.json
until [ -s "$SCRATCH/served" ]; do sleep 0.2; done
"""
WORK = """
$command prepare --mode text --scenario scenario.json --set run.output_dir=./here > here.json
$command run --scenario scenario.json --ray 127.0.0.1:%(port)d >&2
grep -r -l -a %(secret)s "$SCRATCH" || true
"""
FAULTS = """
env -u RAY_AUTH_MODE -u RAY_AUTH_TOKEN $command run --scenario scenario.json --ray 127.0.0.1:%(port)d >&2 || echo $?
"$PYTHON" -m tests.doubles.ray_faults scenario.json there.json http://127.0.0.1:%(server)d 127.0.0.1:%(port)d
grep -r -l -a -e %(secret)s -e %(token)s "$SCRATCH" || true
"""
TOKEN = "5ecret0f" * 6


def in_a_namespace(
    work: str, directory: Path, scratch: Path, tokenizer: Path, *, speed: str, cores: int = 2, **more: str
) -> subprocess.CompletedProcess[str]:
    """``work`` done beside a cluster of two nodes and a server, on a data set that the cluster has made."""
    names = {"port": PORT, "server": SERVER, "secret": SECRET, "token": TOKEN, "speed": speed, "cores": cores}
    environment = {
        "PYTHON": sys.executable,
        "SCRATCH": str(scratch),
        "TMPDIR": str(scratch),
        "TOKENIZER": str(tokenizer),
        "KEY": SECRET,
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": os.pathsep.join([str(PROJECT / "src"), str(PROJECT)]),
        **more,
    }
    return subprocess.run(
        ["unshare", "-rnpf", "--mount-proc", "--kill-child", "bash", "-c", (CLUSTER + work) % names],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=900,
        env=os.environ | environment,
    )


def cold_scenario(directory: Path, tokenizer: Path, corpus: Path, output_tokens: int) -> None:
    """Two ranks, three groups one after the other, three load generators."""
    scenario_file(
        directory,
        tokenizer=tokenizer,
        url=f"http://127.0.0.1:{SERVER}",
        corpus={"path": str(corpus)},
        requests={
            "count": 60,
            "input_length": {"mode": "fixed", "value": 160},
            "output_length": {"mode": "fixed", "value": output_tokens},
        },
        prefix_cache={
            "mode": "cold",
            "target_hit_rate": 0.5,
            "groups": {"count": 3},
            "order": {"strategy": "sequential"},
        },
        service={"model": "tiny", "api_key": SECRET, "dp_size": 2},
        aisbench={"work_dir": "./aisbench", "model": {"batch_size": 8}, "load": {"generators": 3}},
    )


def test_a_cluster_of_two_nodes_makes_the_same_bytes_and_equals_theory(
    qwen3_tokenizer_dir: Path, gsm8k_path: Path, tmp_path: Path, scratch: Path
) -> None:
    cold_scenario(tmp_path, qwen3_tokenizer_dir, gsm8k_path, 8)
    finished = in_a_namespace(WORK, tmp_path, scratch, qwen3_tokenizer_dir, speed="--prefill-tokens-per-second 20000")
    assert finished.returncode == 0, finished.stderr[-6000:]
    assert finished.stdout == "", "files of Ray that hold the API key"

    def report(name: str) -> Any:
        return json.loads((tmp_path / name).read_text())

    here, there = report("here.json"), report("there.json")
    for file in ("full", "requests"):
        assert Path(here[file]).read_bytes() == Path(there[file]).read_bytes()
    analysis = json.loads(Path(there["analysis"]).read_text())
    theory, actual = analysis["theory"], analysis["actual"]
    assert (actual["global_queries"], actual["global_hits"]) == (theory["input_tokens"], theory["hit_tokens"])
    assert (analysis["requests"]["matched"], analysis["findings"]) == (60, [])
    load = analysis["runtime"]["aisbench"]["load"]
    assert (load["engine"], [each["requests"] for each in load["generators"]]) == ("ray", [20, 20, 20])


def test_faults_on_a_cluster_with_a_token(
    qwen3_tokenizer_dir: Path, gsm8k_path: Path, tmp_path: Path, scratch: Path
) -> None:
    """Ctrl-C, the coordinator, an actor and a node killed in mid-run; and a command without the cluster's token."""
    cold_scenario(tmp_path, qwen3_tokenizer_dir, gsm8k_path, 24)
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    speed = "--decode-tokens-per-second 40"
    finished = in_a_namespace(FAULTS, tmp_path, scratch, qwen3_tokenizer_dir, speed=speed, cores=4, **token)
    assert finished.returncode == 0, finished.stderr[-6000:]
    without_token, *faults = map(json.loads, finished.stdout.splitlines())
    assert without_token == 2
    assert "error [RAY_UNUSABLE] 127.0.0.1:6390: no Ray cluster can be used there" in finished.stderr

    unchanged = f"{Path(json.loads((tmp_path / 'there.json').read_text())['analysis']).name} is unchanged"
    ends = {fault["fault"]: (fault["code"], fault["last_line"]) for fault in faults}
    coordinator = ends.pop("coordinator")
    assert ends == {
        "SIGINT": (130, f"run interrupted in the phase formal; {unchanged}"),
        "actor": (4, f"run failed in the phase formal; {unchanged}"),
        "node": (4, f"run failed in the phase formal; {unchanged}"),
    }
    assert coordinator[0] == -signal.SIGKILL
    for fault in faults:
        lost = ["LOAD_GENERATOR_LOST"] if fault["code"] == 4 else []
        assert [line.split("]")[0].removeprefix("error [") for line in fault["errors"]] == lost, fault
        assert fault["seconds"] < 30, fault
        assert 12 <= fault["sent"] < 60, fault
        assert (fault["left"], fault["sent_afterwards"], fault["stdout"]) == ([], 0, ""), fault
        assert (fault["analysis_unchanged"], fault["traceback"]) == (True, False), fault
