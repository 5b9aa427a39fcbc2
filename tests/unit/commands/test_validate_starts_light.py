"""``validate`` of a text data set needs only the standard library, and of that only what it cannot do without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

NEEDED = (
    "__future__, argparse, array, collections, contextlib, functools, hashlib, importlib, json, os, pathlib, "
    "re, signal, sys, time"
)
CODE = """
import sys
from ais_bench_prefix_cache.cli import main
code = main(["validate", "--manifest", sys.argv[1]])
print(code, *sys.modules, file=sys.stderr)
"""


def test_nothing_is_imported_that_validate_does_not_need(make_data_set: Any, tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").touch()
    manifest = make_data_set("cold").manifest
    done = subprocess.run([sys.executable, "-c", CODE, str(manifest)], capture_output=True, text=True, timeout=60)
    *messages, last = done.stderr.splitlines()
    code, *imported = last.split()
    assert (code, sum("CORPUS_CHANGED" in message for message in messages)) == ("0", 1), done.stderr
    allowed = subprocess.run(
        [sys.executable, "-c", f"import {NEEDED}\nprint(*sys.modules)"], capture_output=True, text=True, timeout=60
    ).stdout.split()
    own = {name for name in imported if name.startswith("ais_bench_prefix_cache")}
    assert set(imported) - own <= set(allowed)
    assert {"ais_bench_prefix_cache.datasets.text.verifying", "ais_bench_prefix_cache.cli"} <= own
    assert not any("multimodal" in name or "prompts" in name for name in own)
