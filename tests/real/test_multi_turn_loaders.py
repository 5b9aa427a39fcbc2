"""AIPerf's own loader reads the conversations that ``extract`` writes for it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.real.real_server import server_python
from tests.unit.datasets.conversations.test_exports import ROWS, written

from ais_bench_prefix_cache.datasets.extraction import extract

pytestmark = pytest.mark.real

PYTHON_VARIABLE = "AISBENCH_PREFIX_CACHE_AIPERF_PYTHON"


def test_aiperfs_loader_finds_sessions_texts_lengths_and_pauses(tmp_path: Path) -> None:
    output = tmp_path / "sessions.jsonl"
    extract(written(tmp_path / "talk.full.jsonl", ROWS), output, form="aiperf-multi-turn")
    python = server_python("AIPerf", ".venv-aiperf", PYTHON_VARIABLE)
    script = Path(__file__).with_name("drive_aiperf_loader.py")
    finished = subprocess.run([python, script, output], capture_output=True, text=True, check=False, timeout=300)
    assert finished.returncode == 0, finished.stderr
    exact = {"ignore_eos": True}
    assert json.loads(finished.stdout.splitlines()[-1]) == {
        "can_load": True,
        "conversations": [
            {
                "session": "conversation-00000000",
                "system": "be kind",
                "turns": [[["question 0"], 2, None, exact], [["question 1"], 2, 250, exact]],
            },
            {"session": "conversation-00000001", "system": None, "turns": [[["question 2"], 2, None, exact]]},
        ],
    }
