from __future__ import annotations

import json
from pathlib import Path

from tests.doubles.scenarios import scenario_file

from ais_bench_prefix_cache.sweeps.preview import LEAST_SECONDS, preview
from ais_bench_prefix_cache.sweeps.sweep_sequence import plan_sweep


def test_points_data_sets_and_time_before_anything_is_sent(tmp_path: Path) -> None:
    scenario = scenario_file(tmp_path, url="http://127.0.0.1:1", prefix_cache={"mode": "warmup"})
    points = [
        {"prefix_cache.target_hit_rate": rate, "aisbench.model.batch_size": batch}
        for rate in (0, 0.8)
        for batch in (1, 4)
    ]
    before = set(tmp_path.iterdir())
    found = preview(plan_sweep(scenario, points, 3))
    assert set(tmp_path.iterdir()) == before
    # 24 · 200 · 0.8 tokens are 240 whole blocks of 16: the wish is met exactly.
    assert [point.theoretical_hit_rate for point in found.points] == [0.0, 0.0, 0.8, 0.8]
    assert [(point.batch_size, point.requests, point.prepared) for point in found.points] == [
        (batch, 24, False) for _ in range(2) for batch in (1, 4)
    ]
    assert (found.runs, found.data_sets_to_prepare, found.seconds_a_run, found.runs_seen) == (12, 2, LEAST_SECONDS, 0)


def test_earlier_runs_tell_how_long_one_takes(tmp_path: Path) -> None:
    scenario = scenario_file(tmp_path, url="http://127.0.0.1:1", prefix_cache={"mode": "warmup"})
    data_set = tmp_path / "out_20260101_000000"
    (data_set / "result").mkdir(parents=True)
    (data_set / "result" / "small_20260101_000000.manifest.json").write_text("{}")
    for number, (status, seconds) in enumerate((("complete", 20), ("failed", 1), ("complete", 30), ("complete", 28))):
        run = data_set / "runs" / f"20260101_00000{number}"
        run.mkdir(parents=True)
        times = {
            "started_at": "2026-01-01T00:00:00.000+00:00",
            "finished_at": f"2026-01-01T00:00:{seconds:02d}.000+00:00",
        }
        (run / "run.json").write_text(json.dumps({"status": status, **times}))
    found = preview(plan_sweep(scenario, [{}]))
    assert (found.seconds_a_run, found.runs_seen) == (28.0, 3)


def test_a_sweep_over_turns_is_planned_like_any_other(tmp_path: Path) -> None:
    section = {"count": 3, "answers": "scripted", "system_prompts": {"count": 0}, "first_message_length": {"value": 40}}
    scenario = scenario_file(tmp_path, url="http://127.0.0.1:1", conversation=section)
    found = preview(plan_sweep(scenario, [{"conversation.turns.value": turns} for turns in (1, 2)]))
    assert [(point.requests, point.theoretical_hit_rate) for point in found.points] == [
        (3, 0.0),
        # Of 40 + 64 + 64 tokens the whole blocks of the first 40.
        (6, 3 * 32 / (3 * 40 + 3 * 168)),
    ]
    assert found.data_sets_to_prepare == 2
