"""SIGKILL at any moment: nothing half-written under a final name, nothing that validates by mistake, nothing for ever.

AISBENCH_PREFIX_CACHE_KILLS says how often each command is killed.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

KILLS = int(os.environ.get("AISBENCH_PREFIX_CACHE_KILLS", "3"))


def start(words: Sequence[str], directory: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ais_bench_prefix_cache", *words]
    return subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(words: Sequence[str], directory: Path) -> str:
    process = start(words, directory)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return out


@pytest.fixture
def folder(tmp_path: Path, deepseek_tokenizer_dir: Path) -> Path:
    sentences = (f"Number {number} of the apples lay on the table near the window of the house" for number in range(40))
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps({"question": each}) + "\n" for each in sentences))
    (tmp_path / "tokenizer").symlink_to(deepseek_tokenizer_dir)
    scenario = {
        "run": {"run_id": "a", "output_dir": "./out"},
        "tokenizer": {"path": "./tokenizer", "block_size": 16},
        "corpus": {"path": "./corpus.jsonl"},
        "requests": {"count": 3000, "input_length": {"mode": "fixed", "value": 128}},
        "prefix_cache": {"mode": "warmup", "target_hit_rate": 0.5, "groups": {"count": 2}},
    }
    (tmp_path / "s.json").write_text(json.dumps(scenario))
    times = (
        {"timestamp": n, "input_length": 48, "output_length": 4, "hash_ids": [n, n + 1, n + 2]} for n in range(900)
    )
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in times))
    common = {name: scenario[name] for name in ("run", "tokenizer", "corpus")}
    (tmp_path / "t.json").write_text(json.dumps(common))
    talk = {"count": 400, "turns": {"mode": "uniform", "min": 2, "max": 4}}
    talk |= {"message_length": {"mode": "uniform", "min": 8, "max": 20}}
    (tmp_path / "k.json").write_text(json.dumps({**common, "conversation": talk}))
    questions = (
        json.dumps({"question": f"{number} apples " * 20, "answer": "4", "max_tokens": 4}) + "\n"
        for number in range(60_000)
    )
    (tmp_path / "questions.jsonl").write_text("".join(questions))
    return tmp_path


COMMANDS = {
    "prepare": "prepare --mode text --scenario s.json",
    "prepare over an old one": "prepare --mode text --scenario s.json --overwrite",
    "trace": "prepare --mode trace --scenario t.json --trace trace.jsonl --trace-block-size 16",
    "conversation": "prepare --mode conversation --scenario k.json",
    "extract": "extract questions.jsonl --output e.jsonl",
    "distribution": "distribution --tokenizer tokenizer --corpus corpus.jsonl --output made/d.jsonl --input-len 96 "
    "--num-prompts 1500 --repeat-rate 0.4 --output-len 4 --blocksize 16",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_killed_at_any_moment(name: str, folder: Path) -> None:
    words = COMMANDS[name].split()
    begin = time.monotonic()
    finish(words, folder)
    whole = time.monotonic() - begin
    moments = random.Random(name)
    for _ in range(KILLS):
        process = start(words, folder)
        time.sleep(moments.uniform(0.3, 1.05) * whole)
        process.kill()
        process.communicate()
        for path in folder.rglob("*.jsonl"):
            assert path.name.startswith(".") or path.read_bytes().endswith(b"\n"), f"{path} is half-written"
    finish(words, folder)
    assert [str(path) for path in folder.rglob(".*.partial")] == []
    manifests = list(folder.rglob("*.manifest.json"))
    directories = [path for path in folder.glob("out_*") if any((path / "result").iterdir())]
    if name not in ("distribution", "extract"):
        assert len(manifests) == len(directories), "a directory has data and no manifest"
    # An old data set that was being replaced may have been killed between two renames; the last command mended it.
    for manifest in manifests:
        finish(["validate", "--manifest", str(manifest)], folder)
