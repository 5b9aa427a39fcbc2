"""The code of docs/python.md runs with the real AISBench, in a process that stays as it is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.running import running_server

pytestmark = pytest.mark.aisbench
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CHECKED = re.compile(r"^(\S.*?)  # → (.+)$")

HARNESS = """
import gc, importlib.util, json, logging, os, signal, sys, warnings

def state():
    return {
        "signals": [str(signal.getsignal(each)) for each in (signal.SIGINT, signal.SIGTERM)],
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "collector": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()],
        "torch": importlib.util.find_spec("torch") is not None,
        "root log": [logging.getLogger().level, len(logging.getLogger().handlers), logging.root.manager.disable],
        "our log": [getattr(logging.getLogger("ais_bench_prefix_cache"), name) for name in ("level", "propagate")],
        "filters": len(warnings.filters),
        "stdout": os.fstat(1).st_ino,
        "children": open(f"/proc/self/task/{os.getpid()}/children").read().split(),
    }

import numpy, regex, prometheus_client, pandas  # what these do on import is theirs
from transformers import AutoTokenizer
before, checked, wrong, names = state(), 0, [], {}
for kind, code, expected in json.load(open("steps.json")):
    if kind == "run":
        exec(code, names)
    else:
        seen = repr(eval(code, names))
        checked += 1
        if seen != expected:
            wrong.append([code, expected, seen])
html = {name: names[name]._repr_html_() for name in ("planned", "data_set", "run", "analysis", "swept", "compared")}
print(json.dumps({"before": before, "after": state(), "checked": checked, "wrong": wrong, "html": html}))
"""


def steps(page: str) -> list[tuple[str, str, str]]:
    """Statements to run and expressions to check, in their order."""
    found: list[tuple[str, str, str]] = []
    for block in BLOCK.findall(page):
        statements: list[str] = []
        for line in block.splitlines():
            checked = CHECKED.match(line)
            if checked is None or " = " in checked[1]:
                statements.append(line)
                continue
            found += [("run", "\n".join(statements), ""), ("check", checked[1], checked[2])]
            statements = []
        found.append(("run", "\n".join(statements), ""))
    return found


@pytest.fixture(scope="module")
def page(project_root: Path) -> str:
    return (project_root / "docs" / "python.md").read_text(encoding="utf-8")


def test_the_page_runs_and_changes_nothing_in_its_process(
    page: str, deepseek_tokenizer_dir: Path, gsm8k_path: Path, project_root: Path, tmp_path: Path
) -> None:
    configuration = ServerConfiguration(
        tokenizer=deepseek_tokenizer_dir,
        model="Qwen3-8B",
        prefill_tokens_per_second=None,
        decode_tokens_per_second=None,
    )
    with running_server(configuration) as url:
        for written, here in {
            "http://127.0.0.1:8000": url,
            "/models/Qwen3-8B": str(deepseek_tokenizer_dir),
            "./GSM8K.jsonl": str(gsm8k_path),
        }.items():
            assert written in page
            page = page.replace(written, here)
        (tmp_path / "steps.json").write_text(json.dumps(steps(page)), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-c", HARNESS],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(project_root / "src"), "TRANSFORMERS_VERBOSITY": "error"},
            capture_output=True,
            text=True,
            timeout=800,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert result["wrong"] == []
    assert result["checked"] > 25
    assert result["after"] == result["before"]
    assert "<caption>Latency, ms</caption>" in result["html"]["run"]
    assert "75.00%" in result["html"]["planned"] and "75.00%" in result["html"]["analysis"]
    assert '<th scope="row">batch_size=2</th>' in result["html"]["swept"]
    assert "ttft_p99" in result["html"]["compared"]
    assert "Theoretical hit rate" in result["html"]["data_set"]
    assert (done.stdout.count("\n"), "Traceback" in done.stderr) == (1, False)


def test_the_chinese_page_has_the_same_code(page: str, project_root: Path) -> None:
    chinese = (project_root / "docs" / "zh" / "python.md").read_text(encoding="utf-8")
    assert BLOCK.findall(chinese) == BLOCK.findall(page)
