"""The sequence of a sweep, with runs that a double makes: what is asked of them is what the plan says."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.doubles.measured_runs import records, write_run
from tests.doubles.scenarios import scenario_file

from ais_bench_prefix_cache.analysis.performance import performance_section
from ais_bench_prefix_cache.datasets.format.paths import RunDirectory
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError, PrefixCacheError, ScenarioError, ServiceError
from ais_bench_prefix_cache.sweeps import sweep_sequence
from ais_bench_prefix_cache.sweeps.results import read_sweep
from ais_bench_prefix_cache.sweeps.sweep_sequence import resume_sweep, sweep

RATE = "prefix_cache.target_hit_rate"
BATCH = "aisbench.model.batch_size"


class Runs:
    """Stands for ``run_scenario``: the lower the rate, the longer the first token takes; ``fails`` by call."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.asked: list[dict[str, Any]] = []
        self.fails: dict[int, BaseException] = {}
        self.forgets: dict[int, tuple[int | None, int]] = {}
        """By concurrency: hits of a replay through a cache of the server's size, and hits that are counted."""
        self.any_routing: tuple[int, int] | None = None
        """The fewest and the most hits where the server chooses the ranks."""

    def __call__(self, path: Path, *, settings: Sequence[str], labels: dict[str, str], load: Any, bar: Any) -> Any:
        point = {field: json.loads(value) for field, _, value in (text.partition("=") for text in settings)}
        self.asked.append(point)
        number = len(self.asked)
        if number in self.fails:
            raise self.fails[number]
        hits = round(100 * point[RATE])
        times = [200.0 - 1.5 * hits + 0.01 * number] * 24
        run = RunDirectory(write_run(self.directory / f"{number}", times))
        planned: dict[str, Any] = {"hit_tokens": 24 * hits, "input_tokens": 2400}
        if self.any_routing is not None:
            planned["range"] = dict(zip(("least_hit_tokens", "most_hit_tokens"), self.any_routing, strict=True))
        analysis = {
            "theory": planned,
            "theoretical_hit_rate": hits / 100,
            "actual": {"global_hits": 24 * hits, "global_queries": 2400, "global_hit_rate": hits / 100},
            "runtime": {},
            "performance": performance_section(records(times), batch_size=point[BATCH]),
        }
        if point[BATCH] in self.forgets:
            reachable, counted = self.forgets[point[BATCH]]
            analysis["actual"] = {
                "global_hits": counted,
                "global_queries": 2400,
                "global_hit_rate": counted / 2400,
            }
            if reachable is not None:
                analysis["runtime"] = {"facts": {"cache_prediction": {"hit_tokens": reachable}}}
        return SimpleNamespace(analysis=analysis, directory=run, aisbench=SimpleNamespace(batch_size=point[BATCH]))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    double = Runs(tmp_path / "left by runs")
    monkeypatch.setattr(sweep_sequence, "run_scenario", double)
    return double


@pytest.fixture
def begin(tmp_path: Path, runs: Runs) -> Callable[..., Any]:
    scenario = scenario_file(tmp_path, url="http://127.0.0.1:1", prefix_cache={"mode": "warmup"})
    fields: dict[str, list[Any]] = {RATE: [0, 0.4, 0.8], BATCH: [1, 4]}
    return lambda **how: sweep(scenario, fields, repeat=2, directory=tmp_path / "sweep", **how)


def test_every_point_is_run_as_often_as_asked(begin: Callable[..., Any], runs: Runs, tmp_path: Path) -> None:
    said: list[str] = []
    found = begin(note=said.append)
    once = [{RATE: rate, BATCH: batch} for rate in (0, 0.4, 0.8) for batch in (1, 4)]
    assert runs.asked == once + once
    assert (found.missing, found.failed) == (0, ())
    assert [(point.counted_hit_rate, point.as_planned, point.complete) for point in found.points] == [
        (rate, True, 2) for rate in (0.0, 0.4, 0.8) for _ in range(2)
    ]
    assert [point.figures["ttft_p50"].value for point in found.points][::2] == pytest.approx([200, 140, 80], abs=0.2)
    assert list(found.lines) == ["concurrency 1", "concurrency 4"]
    # 1.5 ms of TTFT for each of 100 tokens that is not hit.
    assert [cost.us_per_token for cost in found.costs.values()] == pytest.approx([1500, 1500], rel=1e-3)
    assert "run 12 of 12: target_hit_rate=0.8 batch_size=4, repeat 2 of 2" in said
    assert any("counted 80.00 %, as planned, TTFT 80.1 ms" in text for text in said)
    assert found == read_sweep(tmp_path / "sweep")

    with (tmp_path / "sweep" / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row[RATE] for row in rows] == [str(rate) for rate in (0, 0, 0.4, 0.4, 0.8, 0.8)] * 2
    assert {row["status"] for row in rows} == {"complete"} and float(rows[0]["ttft_ms_p99"]) == pytest.approx(
        200, abs=1
    )
    page = (tmp_path / "sweep" / "sweep.html").read_text()
    assert "12 of 12 runs are complete" in page and "against the counted hit rate" in page and "<script" not in page


def test_where_the_cache_begins_to_forget(tmp_path: Path, runs: Runs) -> None:
    runs.forgets = {4: (1200, 1080), 8: (None, 480)}
    scenario = scenario_file(tmp_path, url="http://127.0.0.1:1", prefix_cache={"mode": "warmup"})
    found = sweep(scenario, {RATE: [0.6], BATCH: [1, 4, 8]}, directory=tmp_path / "sweep")
    rates = [
        (point.theoretical_hit_rate, point.reachable_hit_rate, point.counted_hit_rate, point.as_planned)
        for point in found.points
    ]
    # 1,440 of 2,400 tokens are planned; of the last point nobody knows the cache's size.
    assert rates == [(0.6, 0.6, 0.6, True), (0.6, 0.5, 0.45, False), (0.6, None, 0.2, False)]
    page = (tmp_path / "sweep" / "sweep.html").read_text()
    assert "Where the cache begins to forget" in page and ">reachable<" in page
    assert "<td>50.00 %</td><td>45.00 % (not as planned)</td>" in page.replace("\n", "")


def test_within_its_range_a_run_is_as_planned(tmp_path: Path, runs: Runs) -> None:
    runs.forgets, runs.any_routing = {1: (None, 700), 4: (None, 699), 8: (None, 1501)}, (700, 1500)
    scenario = scenario_file(tmp_path, url="http://127.0.0.1:1", prefix_cache={"mode": "warmup"})
    found = sweep(scenario, {RATE: [0.6], BATCH: [1, 4, 8]}, directory=tmp_path / "sweep")
    assert [(point.as_planned, point.reachable_hit_rate) for point in found.points] == [
        (True, 0.6),
        (False, None),
        (False, 0.6),
    ]


def test_a_failed_run_is_recorded_and_made_again(begin: Callable[..., Any], runs: Runs, tmp_path: Path) -> None:
    runs.fails = {2: ServiceError.of(Code.NOT_WARM, "http://a", "the cache is not warm")}
    found = begin()
    assert (found.missing, len(runs.asked)) == (1, 12)
    (failed,) = found.failed
    assert (failed["point"], failed["repeat"], failed["error_code"], failed["exit_code"]) == (1, 0, "NOT_WARM", 3)
    page = (tmp_path / "sweep" / "sweep.html").read_text()
    assert "target_hit_rate=0 batch_size=4, repeat 1: http://a: the cache is not warm" in page

    resumed = resume_sweep(tmp_path / "sweep")
    assert runs.asked[12:] == [{RATE: 0, BATCH: 4}]
    assert (resumed.missing, resumed.failed) == (0, ())


def test_an_interrupted_sweep_goes_on_where_it_stopped(begin: Callable[..., Any], runs: Runs, tmp_path: Path) -> None:
    runs.fails = {5: KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt) as stopped:
        begin()
    assert "4 of 12 runs are complete" in str(stopped.value) and "sweep --resume" in str(stopped.value)
    # As a kill in the middle of keeping a run leaves it.
    leftover = tmp_path / "sweep" / "runs" / ".point-004.repeat-1.partial"
    leftover.mkdir()
    assert resume_sweep(tmp_path / "sweep").missing == 0
    assert len(runs.asked) == 5 + 8 and runs.asked[5] == runs.asked[4]
    assert not leftover.exists()


def test_a_random_order_is_kept_over_an_interruption(begin: Callable[..., Any], runs: Runs, tmp_path: Path) -> None:
    runs.fails = {5: KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        begin(shuffle=3)
    resume_sweep(tmp_path / "sweep")
    asked = runs.asked[:4] + runs.asked[5:]
    once = [{RATE: rate, BATCH: batch} for rate in (0, 0.4, 0.8) for batch in (1, 4)]
    assert asked != once + once and all(asked.count(point) == 2 for point in once)


def test_a_scenario_that_was_edited_is_refused(begin: Callable[..., Any], runs: Runs, tmp_path: Path) -> None:
    begin()
    with (tmp_path / "scenario.json").open("a") as file:
        file.write("\n")
    with pytest.raises(ArtifactError, match="not the one that this sweep was begun with"):
        resume_sweep(tmp_path / "sweep")


def test_nothing_is_run_where_a_point_is_wrong(tmp_path: Path, runs: Runs) -> None:
    scenario = scenario_file(tmp_path, url="http://127.0.0.1:1", prefix_cache={"mode": "warmup"})
    with pytest.raises(ScenarioError) as refused:
        fields: dict[str, list[Any]] = {RATE: [0.5, 1.5], "aisbench.model.batch": [1, 2]}
        sweep(scenario, fields, directory=tmp_path / "sweep")
    said = str(refused.value)
    assert "target_hit_rate" in said and "aisbench.model.batch" in said
    assert said.count("target_hit_rate") == 1, "each problem once"
    assert runs.asked == [] and not (tmp_path / "sweep").exists()


@pytest.mark.parametrize("what", ["not empty", "no sweep", "damaged plan", "damaged table"])
def test_directories_that_are_no_sweep(what: str, begin: Callable[..., Any], tmp_path: Path) -> None:
    directory = tmp_path / "sweep"
    if what == "not empty":
        (directory / "x").mkdir(parents=True)
    elif what.startswith("damaged"):
        begin()
        (directory / ("sweep.json" if "plan" in what else "table.jsonl")).write_text("{}\n")
    with pytest.raises(PrefixCacheError, match=r"not empty|no directory of a sweep|not what a sweep writes"):
        if what == "not empty":
            begin()
        else:
            resume_sweep(directory)
