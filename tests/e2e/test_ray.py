"""`run --ray` and `prepare --ray` on a cluster of two nodes.

Ray listens on every interface, whatever address it is given. So the cluster, the server and the commands live in a
network namespace that has nothing but its own loopback; they all end with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.scenarios import scenario_file

pytestmark = pytest.mark.aisbench

SECRET = "sk-secret-of-the-ray-tests"
PORT, SERVER = 6390, 18190

IN_THE_NAMESPACE = """
set -e
ip link set lo up
ray() {
    "$PYTHON" -c 'from ray.scripts.scripts import main; main()' start --num-cpus=2 \\
        --object-store-memory=80000000 "$@" >&2
}
ray --head --node-ip-address=127.0.0.1 --port=%(port)d --include-dashboard=false --temp-dir="$SCRATCH"
ray --address=127.0.0.1:%(port)d --node-ip-address=127.0.0.2
"$PYTHON" -m ais_bench_prefix_cache serve --tokenizer "$TOKENIZER" --model tiny --port %(server)d --api-key-env KEY \\
    --data-parallel-size 2 --prefill-tokens-per-second 20000 > "$SCRATCH/served" &
command="$PYTHON -m ais_bench_prefix_cache"
$command prepare --mode text --scenario scenario.json --set run.output_dir=./here > here.json
$command prepare --mode text --scenario scenario.json --ray 127.0.0.1:%(port)d > there.json
until [ -s "$SCRATCH/served" ]; do sleep 0.2; done
$command run --scenario scenario.json --ray 127.0.0.1:%(port)d >&2
grep -r -l -a %(secret)s "$SCRATCH" || true
"""


def test_a_cluster_of_two_nodes_makes_the_same_bytes_and_equals_theory(
    qwen3_tokenizer_dir: Path, gsm8k_path: Path, tmp_path: Path, scratch: Path
) -> None:
    scenario_file(
        tmp_path,
        tokenizer=qwen3_tokenizer_dir,
        url=f"http://127.0.0.1:{SERVER}",
        corpus={"path": str(gsm8k_path)},
        requests={"count": 60, "input_length": {"mode": "fixed", "value": 160}},
        prefix_cache={
            "mode": "cold",
            "target_hit_rate": 0.5,
            "groups": {"count": 3},
            "order": {"strategy": "sequential"},
        },
        service={"model": "tiny", "api_key": SECRET, "dp_size": 2},
        aisbench={"work_dir": "./aisbench", "model": {"batch_size": 8}, "load": {"generators": 3}},
    )
    script = IN_THE_NAMESPACE % {"port": PORT, "server": SERVER, "secret": SECRET}
    environment = {
        "PYTHON": sys.executable,
        "SCRATCH": str(scratch),
        "TMPDIR": str(scratch),
        "TOKENIZER": str(qwen3_tokenizer_dir),
        "KEY": SECRET,
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    finished = subprocess.run(
        ["unshare", "-rnpf", "--mount-proc", "--kill-child", "bash", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | environment,
    )
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
