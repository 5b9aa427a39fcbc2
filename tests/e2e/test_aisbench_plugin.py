"""``ais_bench``, started by hand, finds our classes by name through the entry point in ``pyproject.toml``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.aisbench


@pytest.fixture
def installed(tmp_path: Path, project_root: Path) -> Path:
    """A folder for PYTHONPATH with the metadata that an installation of this package leaves."""
    text = (project_root / "pyproject.toml").read_text(encoding="utf-8")
    (entry,) = re.findall(r'^\[project\.entry-points\."ais_bench\.benchmark_plugins"\]\n(\w+) = "(\S+)"$', text, re.M)
    metadata = tmp_path / "installed" / "prefix_cache_for_a_test-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: prefix-cache-for-a-test\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[ais_bench.benchmark_plugins]\n{entry[0]} = {entry[1]}\n")
    return metadata.parent


def test_the_example_configuration_sends_a_data_set(
    installed: Path,
    prepare_rows: Callable[..., Any],
    fake_server: Any,
    deepseek_tokenizer_dir: Path,
    project_root: Path,
    tmp_path: Path,
) -> None:
    rows = [{"question": f"How many {{idx}} apples are left of {number}?", "max_tokens": 3} for number in range(5)]
    job = prepare_rows(rows, fake_server.url)
    config = (project_root / "config_examples" / "aisbench_by_name.py").read_text(encoding="utf-8")
    for written, here in {
        "./outputs/example/result/example.full.jsonl": job.rows_path,
        "/models/Qwen3-8B": deepseek_tokenizer_dir,
        "http://127.0.0.1:8000/v1/completions": fake_server.url,
    }.items():
        assert written in config
        config = config.replace(written, str(here))
    (tmp_path / "by_name.py").write_text(config, encoding="utf-8")
    options = ["--mode", "perf", "--debug", "--num-warmups", "0", "--work-dir", "results"]
    done = subprocess.run(
        [sys.executable, "-m", "ais_bench.benchmark.cli.main", "by_name.py", *options],
        cwd=tmp_path,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(installed), str(project_root / "src")]), "NO_PROXY": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert sorted(request.prompt for request in fake_server.seen) == [row["question"] for row in rows], (
        done.stdout[-3000:] + done.stderr[-3000:]
    )
    (usage,) = (tmp_path / "results").rglob("*_usage.jsonl")
    seen = [json.loads(line) for line in usage.read_text(encoding="utf-8").splitlines()]
    assert [(row["success"], row["completion_tokens"]) for row in seen] == [(True, 3)] * 5


def test_an_aisbench_that_does_not_use_them_does_not_import_them(installed: Path, project_root: Path) -> None:
    code = "import ais_bench.benchmark.registry, sys; print(*[m for m in sys.modules if 'ais_bench_prefix' in m])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(installed), str(project_root / "src")])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    root = "ais_bench_prefix_cache"
    assert set(done.stdout.split()) == {root, f"{root}.aisbench", f"{root}.aisbench.plugin"}
