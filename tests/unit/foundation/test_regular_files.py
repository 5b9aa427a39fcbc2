"""A FIFO, device, directory or loop of links in place of a file that an option names is refused, and nothing waits."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ais_bench_prefix_cache.cli import main

PLACES: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "directory": lambda path: path.mkdir(),
    "loop": lambda path: path.symlink_to(path),
}
COPIES = "--output o.jsonl --input-len 48 --num-prompts 3 --repeat-rate 0.3 --output-len 2 --blocksize 16"
COMMANDS = {
    "inspect": "inspect --scenario FILE",
    "trace": "prepare --mode trace --scenario s.json --trace FILE",
    "validate": "validate --manifest FILE",
    "signature": "validate --manifest a_20260101_000000.manifest.json --signature FILE",
    "texts": "analyze --manifest a_20260101_000000.manifest.json --baseline FILE --after FILE",
    "compare": "compare FILE FILE",
    "simulate": "simulate FILE",
    "corpus": f"distribution --tokenizer TOKENIZER --corpus FILE {COPIES}",
    "lengths": "distribution --tokenizer TOKENIZER --corpus c.jsonl --output o.jsonl --input-token-csv FILE"
    " --repeat-rate 0.3 --output-len 2 --blocksize 16",
    "ranges": "distribution --tokenizer TOKENIZER --corpus c.jsonl --output o.jsonl --distribution FILE.txt"
    " --repeat-rate 0.3 --output-len 2 --blocksize 16",
    "model": "kv --model-config FILE",
    "extract": "extract FILE --output o.jsonl",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("command", COMMANDS)
def test_it_is_refused(
    command: str,
    place: str,
    qwen3_tokenizer_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = COMMANDS[command].replace("TOKENIZER", str(qwen3_tokenizer_dir)).replace("FILE", "hostile").split()
    (tmp_path / "c.jsonl").write_text('{"question": "How many apples lay on the table?"}\n')
    scenario = {"tokenizer": {"path": str(qwen3_tokenizer_dir)}, "corpus": {"path": "./c.jsonl"}}
    (tmp_path / "s.json").write_text(json.dumps(scenario))
    (tmp_path / "a_20260101_000000.manifest.json").write_text("{}")
    PLACES[place](tmp_path / ("hostile.txt" if command == "ranges" else "hostile"))
    code = main(words)
    error = capsys.readouterr().err
    assert code == 2, error
    assert error.startswith("error [") and "INTERNAL" not in error
    assert not (tmp_path / "o.jsonl").exists()
