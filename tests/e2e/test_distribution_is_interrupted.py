"""Ctrl-C, SIGTERM and SIGKILL while ``distribution`` writes: nothing half-written gets a final name; a clear end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = (
    "distribution --input-len 900 --num-prompts 6000 --repeat-rate 0.3 --output-len 8 --output out.jsonl "
    "--corpus GSM8K.jsonl"
)


@pytest.mark.parametrize(
    ("number", "code", "last_line"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "terminated"),
        (signal.SIGKILL, -signal.SIGKILL, None),
    ],
    ids=["SIGINT", "SIGTERM", "SIGKILL"],
)
def test_nothing_half_written_stays(
    number: signal.Signals,
    code: int,
    last_line: str | None,
    tmp_path: Path,
    qwen3_tokenizer_dir: Path,
    gsm8k_path: Path,
) -> None:
    (tmp_path / "GSM8K.jsonl").symlink_to(gsm8k_path)
    earlier = tmp_path / "out.jsonl"
    earlier.write_text("an earlier data set\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "ais_bench_prefix_cache", *COMMAND.split(), "--tokenizer", str(qwen3_tokenizer_dir)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        partial, patience = tmp_path / ".out_1.jsonl.partial", time.monotonic() + 120
        while not (partial.exists() and partial.stat().st_size) and process.poll() is None:
            assert time.monotonic() < patience, "nothing was written"
            time.sleep(0.02)
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == code, errors
    assert output == ""
    assert "Traceback" not in errors
    if last_line is not None:
        assert errors.splitlines()[-1] == last_line
        assert {path.name for path in tmp_path.iterdir()} == {"GSM8K.jsonl", "out.jsonl"}
    assert not list(tmp_path.glob("out_1.*"))
    assert earlier.read_text() == "an earlier data set\n"
