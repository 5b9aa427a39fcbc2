"""The command: a real Scenario and plan on disk, two files of metrics, and what is printed, written and refused."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.metric_texts import engine, vllm_text
from tests.doubles.scenarios import scenario_file
from tests.doubles.text_data_sets import write_prompts

from ais_bench_prefix_cache.cli import main
from ais_bench_prefix_cache.datasets.format.paths import RunPaths
from ais_bench_prefix_cache.datasets.format.writing import claimed
from ais_bench_prefix_cache.datasets.kinds import verify_data_set
from ais_bench_prefix_cache.datasets.text.prompt_set import BuiltPrompt, CanonicalPrefix, WarmupPrompt
from ais_bench_prefix_cache.planning.plan import Plan
from ais_bench_prefix_cache.planning.planner import plan_scenario
from ais_bench_prefix_cache.scenario.loading import load_scenario

SECRET = "sk-not-to-be-seen"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class NamedPrompts:
    """One sentence a request: the command never looks at tokens."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        lengths = [int(tokens) for tokens in plan.canonical_prefix_tokens]
        self.canonical_prefixes = tuple(
            CanonicalPrefix(group, f"p{group}", tuple(range(length)), digest(f"p{group}"), (0,), (digest("row"),))
            for group, length in enumerate(lengths)
        )
        self.warmup_prompts = tuple(
            WarmupPrompt(group, f"w{group}", length + plan.block_size, length) for group, length in enumerate(lengths)
        )

    def __len__(self) -> int:
        return len(self._plan)

    def __iter__(self) -> Iterator[BuiltPrompt]:
        plan = self._plan
        for index in range(len(plan)):
            tokens, shared = int(plan.input_tokens[index]), int(plan.shared_prefix_tokens[index])
            suffix = tokens - shared - plan.seed_tokens
            yield BuiltPrompt(
                index,
                f"q{index}",
                tokens,
                suffix,
                digest(f"s{index}"),
                digest(f"d{index}"),
                index,
                (0,),
                (digest("row"),),
            )


@pytest.fixture
def data_set(tmp_path: Path) -> RunPaths:
    """Cold, two ranks, 20 requests of 100 tokens in blocks of 16."""
    scenario_path = scenario_file(
        tmp_path,
        tokenizer="words",
        requests={"count": 20, "input_length": {"mode": "fixed", "value": 100}},
        service={"dp_size": 2, "model": "m", "api_key": SECRET},
    )
    scenario = load_scenario(scenario_path)
    plan = plan_scenario(scenario)
    paths = RunPaths.create(scenario.run.output_dir, scenario.run.run_id, datetime(2026, 8, 25, 12, 34, 56))
    tokenizer = {
        "path": scenario.tokenizer.path,
        "revision": None,
        "class": "Words",
        "vocab_size": 9,
        "special_token_ids": [0],
        "fingerprint_sha256": digest("t"),
    }
    write_prompts(scenario, paths, plan, NamedPrompts(plan), digest("c"), tokenizer)
    return paths


def planned(paths: RunPaths) -> dict[str, dict[str, int]]:
    theory: dict[str, dict[str, int]] = json.loads(paths.analysis.read_text(encoding="utf-8"))["theory"]["dp"]
    assert theory["0"]["hit_tokens"] > 0
    return theory


def saved(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


def exact_texts(paths: RunPaths, directory: Path) -> tuple[Path, Path]:
    """Two files between which each rank counts what was planned for it."""
    theory = planned(paths)
    early = vllm_text(engine(1000, 500), engine(70, 0))
    late = vllm_text(
        engine(1000 + theory["0"]["input_tokens"], 500 + theory["0"]["hit_tokens"]),
        engine(70 + theory["1"]["input_tokens"], theory["1"]["hit_tokens"]),
    )
    return saved(directory, "before.prom", early), saved(directory, "after.prom", late)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["analyze", *map(str, arguments)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_theory_equals_the_counter(data_set: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = exact_texts(data_set, tmp_path)
    code, out, err = run(capsys, "--manifest", data_set.manifest, "--baseline", before, "--after", after)
    assert (code, err) == (0, "")
    document: dict[str, Any] = json.loads(out)
    assert document == json.loads(data_set.analysis.read_text(encoding="utf-8"))
    assert document["status"] == "analyzed"
    assert document["findings"] == document["warnings"] == []
    assert document["theory_actual_difference_pp"] == 0
    for rank, theory in planned(data_set).items():
        assert document["actual"]["by_dp"][rank]["hits"] == theory["hit_tokens"]
        assert document["actual"]["by_dp"][rank]["queries_difference"] == 0
    # The data set still verifies, and a second look at the same files changes nothing.
    verify_data_set(data_set.manifest)
    assert run(capsys, "--manifest", data_set.manifest, "--baseline", before, "--after", after)[1] == out
    log = data_set.log("validate").read_text(encoding="utf-8")
    assert "analyze: 20 rows verified" in log
    assert SECRET not in out + log


def test_the_raw_texts_come_back_out_of_the_analysis(
    data_set: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = exact_texts(data_set, tmp_path)
    _, out, _ = run(capsys, "--manifest", data_set.manifest, "--baseline", before, "--after", after)
    runtime = json.loads(out)["runtime"]
    assert runtime["metrics_baseline"]["raw_prometheus"] == before.read_text(encoding="utf-8")
    assert runtime["metrics_after"]["raw_prometheus"] == after.read_text(encoding="utf-8")


def test_one_file_a_port(data_set: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theory = planned(data_set)
    files: list[object] = ["--manifest", data_set.manifest]
    for rank in (0, 1):
        counted = theory[str(rank)]
        label = (str(rank),)
        files += ["--baseline", saved(tmp_path, f"b{rank}", vllm_text(engine(0, 0), labels=label))]
        late = vllm_text(engine(counted["input_tokens"], counted["hit_tokens"]), labels=label)
        files += ["--after", saved(tmp_path, f"a{rank}", late)]
    code, out, err = run(capsys, *files)
    assert (code, err) == (0, "")
    assert json.loads(out)["actual"]["by_dp"]["1"]["hits"] == theory["1"]["hit_tokens"]


def test_warnings_and_findings_go_to_stderr_and_never_change_the_exit_code(
    data_set: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theory = planned(data_set)
    before = saved(tmp_path, "b", vllm_text(engine(0, 0), engine(0, 0)))
    total = sum(share["input_tokens"] for share in theory.values())
    hits = sum(share["hit_tokens"] for share in theory.values())
    after = saved(tmp_path, "a", vllm_text(engine(total, hits), engine(0, 0)))
    code, out, err = run(capsys, "--manifest", data_set.manifest, "--baseline", before, "--after", after)
    assert code == 0
    assert [finding["code"] for finding in json.loads(out)["findings"]] == ["RANK_HEADER_IGNORED"]
    assert err == (
        "error finding [RANK_HEADER_IGNORED] all planned tokens were counted, but on other ranks than planned, which "
        "is consistent with a server, or a router before it, that does not follow X-data-parallel-rank, and with "
        "requests that are missing on one rank beside foreign ones on another\n"
        "    Use vLLM 0.11.1 or later, or one entry point for each rank; a proxy in between must pass the header on, "
        "and "
        "no cache-aware router may choose the rank.\n"
    )


@pytest.mark.parametrize(
    ("before", "after", "err"),
    [
        (
            vllm_text(engine(5, 0), engine(5, 0)),
            "<html>502</html>",
            "error [SNAPSHOT_NOT_METRICS] {after}: not a Prometheus text: it begins with '<html>502</html>'\n"
            "    check the metrics URL; an error page of a proxy looks like this\n",
        ),
        (
            vllm_text(engine(5, 0), engine(5, 0)),
            vllm_text(engine(5, 0), engine(4, 0)),
            'finding [COUNTERS_FELL] rank 1: vllm:prefix_cache_queries_total{{engine="1",model_name="m"}} fell from 5 '
            "to 4\n"
            "    Counters only fall when the server restarts or another one answers; or the two files are swapped.\n"
            'error [SNAPSHOT_COUNTER_FELL] rank 1: vllm:prefix_cache_queries_total{{engine="1",model_name="m"}} fell '
            "from 5 to 4\n"
            "    the server was restarted in between, or the two files are swapped\n",
        ),
    ],
)
def test_unusable_files_leave_the_analysis_alone(
    before: str, after: str, err: str, data_set: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = data_set.analysis.read_bytes()
    files = saved(tmp_path, "b", before), saved(tmp_path, "a", after)
    shown = run(capsys, "--manifest", data_set.manifest, "--baseline", files[0], "--after", files[1])
    assert shown == (2, "", err.format(after=files[1]))
    assert data_set.analysis.read_bytes() == content


def test_missing_files_come_at_once(data_set: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys, "--manifest", data_set.manifest, "--baseline", "/no/b", "--baseline", tmp_path, "--after", "/no/a"
    )
    assert (code, out) == (2, "")
    assert err == (
        "error [MISSING_FILE] /no/b: the metrics text does not exist\n"
        f"error [UNREADABLE_FILE] {tmp_path}: the metrics text is a directory\n    name the file in it\n"
        "error [MISSING_FILE] /no/a: the metrics text does not exist\n"
        "error [SNAPSHOT_COUNT] --baseline, --after: 2 and 1 files were given (allowed: the same number for both: one, "
        "or one for each port)\n"
    )


def test_one_file_for_two_ports_is_refused(
    data_set: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = (saved(tmp_path, name, vllm_text(engine(5, 0))) for name in "ba")
    options = ("--baseline", before, "--baseline", before, "--after", after, "--after", tmp_path / "." / after.name)
    code, _, err = run(capsys, "--manifest", data_set.manifest, *options)
    assert code == 2
    assert err.count("is given twice, so that its engines would count twice (allowed: one text of each port)") == 2


def test_a_fifo_in_place_of_a_text_is_refused_at_once(
    data_set: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code, _, err = run(capsys, "--manifest", data_set.manifest, "--baseline", fifo, "--after", "/dev/zero")
    assert code == 2
    assert err == (
        f"error [UNREADABLE_FILE] {fifo}: the metrics text cannot be read: it is a device, socket or FIFO\n"
        "error [UNREADABLE_FILE] /dev/zero: the metrics text cannot be read: it is a device, socket or FIFO\n"
    )


def test_a_data_set_in_use_is_left_alone(
    data_set: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = exact_texts(data_set, tmp_path)
    content = data_set.analysis.read_bytes()
    with claimed(data_set.directory):
        shown = run(capsys, "--manifest", data_set.manifest, "--baseline", before, "--after", after)
    assert shown == (
        2,
        "",
        f"error [DIRECTORY_IN_USE] {data_set.directory}: another command is working with this data set\n"
        "    Wait until it has finished.\n",
    )
    assert data_set.analysis.read_bytes() == content


def test_a_damaged_data_set_is_refused_before_anything_is_written(
    data_set: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = exact_texts(data_set, tmp_path)
    content = data_set.analysis.read_bytes()
    with data_set.full.open("ab") as full:
        full.write(b"\n")
    code, out, _ = run(capsys, "--manifest", data_set.manifest, "--baseline", before, "--after", after)
    assert (code, out) == (2, "")
    assert data_set.analysis.read_bytes() == content


def series(rank: int, queries: int, hits: int, prefix: str = "vllm:", created: float | None = None, **more: str) -> str:
    labels = ",".join(f'{key}="{value}"' for key, value in {"engine": str(rank), **more}.items())
    lines = [f"{prefix}prefix_cache_queries_total{{{labels}}} {queries}"]
    lines += [f"{prefix}prefix_cache_hits_total{{{labels}}} {hits}"]
    lines += [] if created is None else [f"{prefix}prefix_cache_queries_created{{{labels}}} {created}"]
    return "\n".join([*lines, ""])


@pytest.mark.parametrize(
    ("before", "after", "code", "named"),
    [
        # The sum of both processes rises, while one of them began anew.
        (
            series(0, 0, 0, pid="1") + series(0, 700, 100, pid="2") + series(1, 0, 0),
            series(0, 1700, 708, pid="1") + series(0, 0, 0, pid="2") + series(1, 1000, 500),
            "COUNTERS_FELL",
            'engine="0",pid="2"} fell from 700 to 0',
        ),
        (
            series(0, 0, 0, created=10) + series(1, 0, 0, created=20),
            series(0, 1000, 500, created=15) + series(1, 1000, 500, created=20),
            "SERVER_RESTARTED",
            "at 10.000, then at 15.000",
        ),
        (
            series(0, 5000, 3000, "ray_vllm_", WorkerId="w1") + series(1, 0, 0, "ray_vllm_", WorkerId="w3"),
            series(0, 6000, 3608, "ray_vllm_", WorkerId="w2") + series(1, 1000, 500, "ray_vllm_", WorkerId="w3"),
            "SERIES_CHANGED",
            'WorkerId="w2",engine="0"} appeared between the snapshots; it is 6000',
        ),
        (
            series(0, 0, 0, role="decode") + series(1, 0, 0, role="decode"),
            series(0, 1000, 0, role="decode") + series(1, 1000, 0, role="decode"),
            "ROLES_MIXED",
            'only the decode side is shown (role="decode")',
        ),
    ],
    ids=["one process restarted", "created anew", "worker replaced", "decode alone"],
)
def test_sums_that_would_look_sound_are_refused(
    before: str,
    after: str,
    code: str,
    named: str,
    data_set: RunPaths,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    content = data_set.analysis.read_bytes()
    files = saved(tmp_path, "b", before), saved(tmp_path, "a", after)
    exit_code, out, err = run(capsys, "--manifest", data_set.manifest, "--baseline", files[0], "--after", files[1])
    assert (exit_code, out) == (2, "")
    assert f"finding [{code}]" in err
    assert named in err
    assert data_set.analysis.read_bytes() == content


@pytest.mark.parametrize(
    "beside",
    [
        # The decode side asks its own cache for the same prompts, and finds nothing there.
        lambda rank, tokens: series(rank, tokens, 0, role="decode"),
        # A label that says another block size than the Scenario, on a server that hits as planned.
        lambda rank, tokens: f'vllm:cache_config_info{{engine="{rank}",block_size="64"}} 1\n',
    ],
    ids=["prefill and decode", "another block size in the label"],
)
def test_what_equals_theory_is_no_finding(
    beside: Callable[[int, int], str], data_set: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theory = planned(data_set)
    early = late = ""
    for rank in (0, 1):
        tokens, hits = theory[str(rank)]["input_tokens"], theory[str(rank)]["hit_tokens"]
        early += series(rank, 0, 0, role="prefill") + beside(rank, 0)
        late += series(rank, tokens, hits, role="prefill") + beside(rank, tokens)
    files = saved(tmp_path, "b", early), saved(tmp_path, "a", late)
    exit_code, out, _ = run(capsys, "--manifest", data_set.manifest, "--baseline", files[0], "--after", files[1])
    document = json.loads(out)
    assert (exit_code, document["findings"], document["warnings"]) == (0, [], [])
    assert {rank: counted["hits"] for rank, counted in document["actual"]["by_dp"].items()} == {
        rank: shares["hit_tokens"] for rank, shares in theory.items()
    }
