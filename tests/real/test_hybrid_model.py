"""A model with sliding-window layers on a real vLLM: prefixes of many lengths hit in full only if each was warmed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.real.real_server import make_tiny_model

pytestmark = pytest.mark.real

SPREAD = {"mode": "truncated_normal", "min": 96, "max": 640, "mean": 300, "std": 120}


def test_hybrid_warm_up_makes_theory_equal_the_counter(
    serving: Callable[..., Any],
    scenario_for: Callable[..., Path],
    judge: Callable[[Path], Any],
    deepseek_tokenizer_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    model = make_tiny_model(tmp_path_factory.mktemp("hybrid") / "tiny", deepseek_tokenizer_dir, architecture="gemma3")
    with serving(model) as server:
        sections = {
            "requests": {"input_length": SPREAD},
            "prefix_cache": {"target_hit_rate": 0.5, "groups": {"count": 2}},
            "aisbench": {"model": {"batch_size": 8}},
        }
        plain = judge(scenario_for(server, **sections))
        warmed = judge(scenario_for(server, **sections, service={"hybrid_warmup": True}))
    assert plain.counted_total[0] == plain.planned_total[0]
    assert plain.counted_total[1] < plain.planned_total[1]
    assert "HYBRID_MODEL" in {finding["code"] for finding in plain.analysis["findings"]}
    assert warmed.counted_total == warmed.planned_total
    assert [finding["code"] for finding in warmed.analysis["findings"] if finding["severity"] != "note"] == []
