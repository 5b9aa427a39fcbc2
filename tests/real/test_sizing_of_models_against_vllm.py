"""The public configurations of the tests, built by vLLM itself: the recorded answers are still its answers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.doubles.model_configs import BY_HAND, configurations, kept, told_by_vllm
from tests.real.real_vllm import vllm_python

pytestmark = pytest.mark.real


def test_vllm_keeps_what_is_recorded() -> None:
    known = {name: config for name, config in configurations().items() if name not in BY_HAND}
    driven = subprocess.run(
        [vllm_python(), Path(__file__).with_name("drive_vllm_layers.py")],
        input="".join(json.dumps(config) + "\n" for config in known.values()),
        capture_output=True,
        text=True,
        env={
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/"),
            "VLLM_LOGGING_LEVEL": "ERROR",
            "HF_HUB_OFFLINE": "1",
        },
    )
    assert driven.returncode == 0, driven.stderr[-2000:]
    answers = [json.loads(line) for line in driven.stdout.splitlines()]
    assert {name: answer for name, answer in zip(known, answers, strict=True) if isinstance(answer, str)} == {}
    assert {name: kept(answer) for name, answer in zip(known, answers, strict=True)} == told_by_vllm()
