"""``validate`` of a text data set needs only the standard library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

CODE = """
import sys
from ais_bench_prefix_cache.cli import main
code = main(["validate", "--manifest", sys.argv[1]])
heavy = {"numpy", "transformers", "tokenizers", "httpx", "jsonschema", "prometheus_client", "tqdm"} & set(sys.modules)
sys.exit(f"exit code {code}, imported {sorted(heavy)}" if code or heavy else 0)
"""


def test_no_heavy_library_is_imported(make_data_set: Any, tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").touch()
    manifest = make_data_set("cold").manifest
    done = subprocess.run([sys.executable, "-c", CODE, str(manifest)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("CORPUS_CHANGED")) == (0, 1), done.stderr
