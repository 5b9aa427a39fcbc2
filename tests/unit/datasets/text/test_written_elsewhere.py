"""Text data sets of another version, or in the contract's own form: read, judged by what they hold, and told apart."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.scenarios import scenario_file

from ais_bench_prefix_cache import __version__
from ais_bench_prefix_cache.cli import main
from ais_bench_prefix_cache.datasets.kinds import planned_here, verify
from ais_bench_prefix_cache.datasets.preparing import prepare_data_set
from ais_bench_prefix_cache.foundation.errors import ArtifactError

ZIPF = {"count": 2, "assignment": {"mode": "zipf"}}


@pytest.fixture(scope="module", params=["warmup", "cold"])
def prepared(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    qwen3_tokenizer_dir: Path,
    gsm8k_path: Path,
) -> Path:
    """The directory of a data set."""
    directory = tmp_path_factory.mktemp("prepared")
    scenario = scenario_file(
        directory,
        tokenizer=qwen3_tokenizer_dir,
        corpus={"path": str(gsm8k_path)},
        run={"run_id": "job", "output_dir": "./out"},
        requests={"count": 12, "input_length": {"mode": "fixed", "value": 160}},
        prefix_cache={"mode": request.param, "target_hit_rate": 0.5, "groups": ZIPF},
        service={"dp_size": 2},
    )
    return prepare_data_set(scenario).paths.directory


def contract_form(manifest: Path) -> None:
    """Without what this program adds to the documents that the contract describes."""
    document = json.loads(manifest.read_text())
    analysis_path = manifest.with_name(manifest.name.replace(".manifest.", ".analysis."))
    analysis = json.loads(analysis_path.read_text())
    del analysis["content_sha256"]
    analysis_path.write_text(json.dumps(analysis))
    content = analysis_path.read_bytes()
    document["artifacts"]["analysis"] |= {
        "bytes": len(content),
        "sha256_at_prepare": hashlib.sha256(content).hexdigest(),
    }
    del document["content_sha256"], document["prefix_cache"]["trajectory"], document["benchmark_mode"]
    document["plugin_version"] = "9.9"
    manifest.write_text(json.dumps(document, indent=1))


@pytest.fixture
def manifest(prepared: Path, tmp_path: Path) -> Path:
    copied = shutil.copytree(prepared, tmp_path / prepared.name)
    (path,) = (copied / "result").glob("*.manifest.json")
    contract_form(path)
    return path


def test_data_sets_in_the_contracts_own_form_are_validated_and_analyzed(
    manifest: Path, tmp_path: Path, qwen3_tokenizer_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", "--manifest", str(manifest)]) == 0
    told = capsys.readouterr()
    report = json.loads(told.out)
    assert (report["ok"], report["rows"], len(report["not_proven"])) == (True, 12, 2)
    assert "another generator wrote it" in told.err
    assert main(["validate", "--manifest", str(manifest), "--deep", "--tokenizer", str(qwen3_tokenizer_dir)]) == 0
    deep = json.loads(capsys.readouterr().out)["deep"]
    theory = json.loads(manifest.with_name(manifest.name.replace(".manifest.", ".analysis.")).read_text())["theory"]
    assert (deep["rebuilt"], deep["hit_tokens"]) == (False, theory["hit_tokens"])

    for name, queries, hits in (("baseline", 10, 0), ("after", 10 + theory["input_tokens"], theory["hit_tokens"])):
        lines = [
            f'vllm:prefix_cache_{what}_total{{engine="{rank}"}} {value if rank == 0 else 0}'
            for what, value in (("queries", queries), ("hits", hits))
            for rank in range(2)
        ]
        (tmp_path / f"{name}.prom").write_text("\n".join(lines) + "\n")
    looks = ["--baseline", str(tmp_path / "baseline.prom"), "--after", str(tmp_path / "after.prom")]
    assert main(["analyze", "--manifest", str(manifest), *looks]) == 0
    analysis = json.loads(capsys.readouterr().out)
    assert (analysis["status"], analysis["actual"]["global_hits"]) == ("analyzed", theory["hit_tokens"])
    assert main(["validate", "--manifest", str(manifest)]) == 0


def edited(rows: list[dict[str, Any]], at: int, key: str, change: Callable[[Any], Any]) -> None:
    rows[at][key] = change(rows[at][key])


def test_the_version_alone_does_not_make_it_ours(manifest: Path) -> None:
    document = json.loads(manifest.read_text())
    document["plugin_version"] = __version__
    manifest.write_text(json.dumps(document))
    assert verify(manifest).rows == 12
    document["prefix_cache"]["trajectory"] = {}
    manifest.write_text(json.dumps(document))
    with pytest.raises(ArtifactError) as caught:
        verify(manifest)
    assert "DIGEST_MISSING" in [problem.code for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("at", "key", "change", "says"),
    [
        (3, "sequence_index", lambda value: 9, "full.jsonl line 4: sequence_index: it says 9 (allowed: 3)"),
        (3, "shared_prefix_tokens", lambda value: value + 16, "line 4: natural_suffix_tokens"),
        (5, "theoretical_hit_tokens", lambda value: value + 1, "line 6: theoretical_hit_tokens"),
        (5, "watermark_before", lambda value: value + 16, "line 6: watermark_before"),
        (2, "seed_sha256", lambda value: None, "line 3: seed_sha256: it says None (allowed: a SHA-256)"),
        (2, "question", lambda value: value + "!", "requests.jsonl line 3: it is not the request of"),
        (7, "actual_input_tokens", lambda value: value + 1, "line 8: target_input_tokens"),
        (7, "dp_rank", lambda value: 5, "line 8: dp_rank: it says 5"),
    ],
)
def test_what_such_a_data_set_says_of_itself_must_hold(
    at: int, key: str, change: Callable[[Any], Any], says: str, manifest: Path
) -> None:
    full = manifest.with_name(manifest.name.replace(".manifest.json", ".full.jsonl"))
    rows = [json.loads(line) for line in full.read_text().splitlines()]
    edited(rows, at, key, change)
    full.write_text("".join(json.dumps(row) + "\n" for row in rows))
    document = json.loads(manifest.read_text())
    content = full.read_bytes()
    document["artifacts"]["full"] |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest.write_text(json.dumps(document))
    with pytest.raises(ArtifactError) as caught:
        verify(manifest)
    assert says in str(caught.value)


@pytest.mark.parametrize("place", [("requests", "total_input_tokens"), ("prefix_cache", "theoretical_hit_rate")])
def test_totals_must_be_those_of_the_rows(place: tuple[str, str], manifest: Path) -> None:
    document = json.loads(manifest.read_text())
    document[place[0]][place[1]] += 1
    manifest.write_text(json.dumps(document))
    with pytest.raises(ArtifactError, match=rf"manifest.json: {'.'.join(place)}: it says"):
        verify(manifest)


def test_run_wants_a_data_set_of_this_version(manifest: Path) -> None:
    with pytest.raises(ArtifactError) as caught:
        planned_here(verify(manifest))
    assert caught.value.problems[0].code == "NOT_PROVEN"
    assert "to run, prepare it with this version" in str(caught.value)
