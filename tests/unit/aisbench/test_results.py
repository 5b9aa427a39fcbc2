"""AISBench's csv and json, and the rows of our usage file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ais_bench_prefix_cache.aisbench.adapters.observation import RequestObservation
from ais_bench_prefix_cache.aisbench.request_usage import load_request_usage
from ais_bench_prefix_cache.aisbench.results import performance_report
from ais_bench_prefix_cache.foundation.errors import AISBenchError, ArtifactError

CSV = """Performance Parameters,Stage,Average,N
E2EL,total,47.7 ms,3
TTFT,total,20.1 ms,3
OutputTokens,total,4.0,3
"""
COMMON = {"Total Requests": {"total": 3}, "Prefill Token Throughput": {"total": "9.5 token/s"}}

Document = dict[str, Any]
Run = tuple[Document, Path]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """``runtime.aisbench`` of a finished run and the path of its analysis."""
    directory = tmp_path / "here" / "work" / "20260101_000000"
    results = directory / "performances" / "m"
    results.mkdir(parents=True)
    (results / "d.csv").write_text(CSV)
    (results / "d.json").write_text(json.dumps(COMMON))
    analysis_path = tmp_path / "here" / "out" / "result" / "d.analysis.json"
    analysis_path.parent.mkdir(parents=True)
    return {
        "exp_dir": str(directory),
        "relative_exp_dir": "../../work/20260101_000000",
        "model_abbr": "m",
        "dataset_abbr": "d",
        "stream": True,
    }, analysis_path


def test_figures_are_those_of_the_files(run: Run) -> None:
    record, path = run
    report = performance_report({"runtime": {"aisbench": record}}, analysis_path=path)
    assert report["metrics"] == {
        "E2EL": {"Stage": "total", "Average": "47.7 ms", "N": 3},
        "TTFT": {"Stage": "total", "Average": "20.1 ms", "N": 3},
        "OutputTokens": {"Stage": "total", "Average": "4.0", "N": 3},
    }
    assert report["common"] == COMMON
    assert report["csv"].endswith("performances/m/d.csv")
    assert report["json"].endswith("performances/m/d.json")


def test_what_only_streaming_measures_is_absent_without_it(run: Run) -> None:
    record, path = run
    report = performance_report({"runtime": {"aisbench": {**record, "stream": False}}}, analysis_path=path)
    assert set(report["metrics"]) == {"E2EL", "OutputTokens"}
    assert set(report["common"]) == {"Total Requests"}


def test_results_that_were_moved_together_are_found(run: Run, tmp_path: Path) -> None:
    record, path = run
    moved = tmp_path / "there"
    shutil.move(tmp_path / "here", moved)
    path = moved / "out" / "result" / path.name
    report = performance_report({"runtime": {"aisbench": record}}, analysis_path=path)
    assert report["csv"] == str(moved / "work" / "20260101_000000" / "performances" / "m" / "d.csv")


def test_results_that_the_run_kept_come_first(run: Run, tmp_path: Path) -> None:
    record, path = run
    kept = tmp_path / "kept"
    shutil.copytree(record["exp_dir"], kept)
    shutil.rmtree(record["exp_dir"])
    report = performance_report({"runtime": {"aisbench": record}}, analysis_path=path, kept=kept)
    assert report["csv"] == str(kept / "performances" / "m" / "d.csv")


@pytest.mark.parametrize("analysis", [{}, {"runtime": None}, {"runtime": {"aisbench": None}}])
def test_an_analysis_without_a_run(analysis: Document, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError) as caught:
        performance_report(analysis, analysis_path=tmp_path / "a.json")
    assert str(caught.value) == (
        f"{tmp_path / 'a.json'}: records no run of AISBench\n"
        "    Send the data set first: ais-bench-prefix-cache run --scenario …"
    )


def test_results_that_are_gone_or_damaged(run: Run) -> None:
    record, path = run
    analysis = {"runtime": {"aisbench": record}}
    file = performance_report(analysis, analysis_path=path)["json"]
    Path(file).write_text("[]")
    with pytest.raises(AISBenchError, match="is not a file that AISBench wrote"):
        performance_report(analysis, analysis_path=path)
    shutil.rmtree(record["exp_dir"])
    with pytest.raises(AISBenchError, match="the performance files of the run are not there any more"):
        performance_report(analysis, analysis_path=path)


def _observe(usage: Any) -> Document:
    observation = RequestObservation(7, 1, 9, on_first_token=lambda: None, on_activity=lambda: None)
    observation.begin_attempt()
    observation.usage = usage
    observation.end(success=True, error=None)
    return observation.to_row(due=None)


@pytest.mark.parametrize(
    ("usage", "state", "cached"),
    [
        (None, "absent", None),
        ({"prompt_tokens": 5}, "absent", None),
        ({"prompt_tokens": 5, "prompt_tokens_details": {}}, "absent", None),
        ({"prompt_tokens": 5, "prompt_tokens_details": None}, "null", None),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": None}}, "null", None),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 0}}, "reported", 0),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 48}}, "reported", 48),
    ],
)
def test_absent_null_and_zero_cached_tokens_survive_the_file(
    usage: Any, state: Any, cached: Any, tmp_path: Path
) -> None:
    path = tmp_path / "d_usage.jsonl"
    path.write_text(json.dumps(_observe(usage)) + "\n", encoding="utf-8")
    (row,) = load_request_usage(path).requests
    assert (row.state, row.cached_tokens) == (state, cached)
    assert row.prompt_tokens == (None if usage is None else 5)
    assert (row.sequence_index, row.attempts, row.success, row.error) == (7, 1, True, None)


def test_only_the_first_token_of_an_answer_counts_and_every_chunk_is_a_sign_of_life(tmp_path: Path) -> None:
    tokens, signs, clock = [], [], iter(range(100))
    observation = RequestObservation(
        0, None, 9, lambda: tokens.append(1), lambda: signs.append(1), _clock=lambda: float(next(clock))
    )
    observation.begin_attempt()
    observation.see_chunk(has_token=False)
    observation.see_chunk(has_token=True)
    observation.see_chunk(has_token=True)
    observation.end(success=False, error="")
    path = tmp_path / "d_usage.jsonl"
    path.write_text(json.dumps(observation.to_row(due=None)) + "\n", encoding="utf-8")
    (row,) = load_request_usage(path).requests
    assert (row.sent, row.first_token, row.finished, row.error) == (0.0, 1.0, 2.0, "unknown error")
    assert (len(tokens), len(signs)) == (1, 4)


def test_rows_come_in_send_order_and_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "d_usage.jsonl"
    rows = [{**_observe(None), "sequence_index": index} for index in (2, 0, 1)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert [row.sequence_index for row in load_request_usage(path).requests] == [0, 1, 2]
    path.write_text(json.dumps(rows[0]) + "\n{}\n", encoding="utf-8")
    with pytest.raises(AISBenchError) as caught:
        load_request_usage(path)
    assert str(caught.value) == f"{path} line 2: is not a usage row that this program wrote"
