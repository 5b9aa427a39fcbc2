"""Turns of conversations beside each other; expected figures are sums and medians by hand."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tests.doubles.measured_runs import config, record, write_run

from ais_bench_prefix_cache.cli import main
from ais_bench_prefix_cache.comparisons.comparing import compare
from ais_bench_prefix_cache.comparisons.comparison_page import render_comparison_page
from ais_bench_prefix_cache.comparisons.turns import TurnComparison, TurnFigures

TALK = {**config(), "conversation": {"count": 2}}


def talk(directory: Path, turns: list[tuple[int, float, int | None]]) -> Path:
    """A run of conversations: turn, time to the first token and hits of each request of 100 tokens."""
    run = write_run(directory, [1.0], configuration=TALK)
    rows = [
        replace(record(index, ttft, sent_s=float(index)), lane_sequence=turn, hit_tokens=hits)
        for index, (turn, ttft, hits) in enumerate(turns)
    ]
    (run / "requests.jsonl").write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    return run


def test_hits_and_times_of_each_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = talk(tmp_path / "1", [(0, 40.0, 0), (0, 60.0, 40), (0, 50.0, 40), (1, 30.0, 80)])
    other = talk(tmp_path / "2", [(0, 25.0, 64), (1, 10.0, None), (2, 5.0, 90)])
    found = compare(one, other)
    assert found.points[0].turns == (
        TurnComparison(1, TurnFigures(3, 300, 80, 50.0), TurnFigures(1, 100, 64, 25.0)),
        TurnComparison(2, TurnFigures(1, 100, 80, 30.0), TurnFigures(1, None, None, 10.0)),
        TurnComparison(3, None, TurnFigures(1, 100, 90, 5.0)),
    )
    page = render_comparison_page(found)
    assert "Turn by turn" in page and "26.67% to 64.00%" in page
    assert main(["compare", str(one), str(other)]) == 0
    table = [line for line in capsys.readouterr().out.splitlines() if "%" in line and " to " in line]
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in table]
    assert cells == [
        ["1", "3 to 1", "26.67% to 64.00%", "50.0 to 25.0", "-50%"],
        ["2", "1", "80.00% to not told", "30.0 to 10.0", "-67%"],
        ["3", "– to 1", "– to 90.00%", "– to 5.00", "–"],
    ]


def test_other_requests_have_no_turns(tmp_path: Path) -> None:
    one, other = write_run(tmp_path / "1", [1.0] * 3), write_run(tmp_path / "2", [1.0] * 3)
    assert compare(one, other).points[0].turns == ()
