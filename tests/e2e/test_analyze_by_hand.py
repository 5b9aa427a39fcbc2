"""`analyze` as somebody without `run` uses it: metrics saved by hand around requests that one's own client sent."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.doubles.scenarios import scenario_file
from tests.doubles.sealed_data_sets import seal

from ais_bench_prefix_cache.cli import main
from ais_bench_prefix_cache.server.configuration import ServerConfiguration
from ais_bench_prefix_cache.server.running import running_server

BLOCK_SIZE = 16
QUESTIONS = (
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many clips did "
    "she sell altogether?",
    "A train leaves at nine and travels 180 kilometres in three hours. How fast does it travel?",
    "There are seven baskets with twelve apples each. Five apples are eaten. How many apples are left?",
)


@dataclass
class ByHand:
    """A data set, a server, and an analysis of what is sent between two looks."""

    manifest: Path
    rows: list[dict[str, Any]]
    client: httpx.Client
    directory: Path
    capsys: pytest.CaptureFixture[str]

    def send(self, prompt: str, rank: int | None = None, max_tokens: int = 1) -> None:
        headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
        body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens}
        self.client.post("/v1/completions", json=body, headers=headers).raise_for_status()

    def send_all(self) -> None:
        for row in self.rows:
            self.send(row["question"], row["dp_rank"], row["max_tokens"])

    def save(self, name: str) -> Path:
        path = self.directory / name
        path.write_bytes(self.client.get("/metrics").content)
        return path

    def analyze(self, send: Callable[[], None]) -> dict[str, Any]:
        before = self.save("before.prom")
        send()
        after = self.save("after.prom")
        self.capsys.readouterr()
        code = main(["analyze", "--manifest", str(self.manifest), "--baseline", str(before), "--after", str(after)])
        assert code == 0
        document: dict[str, Any] = json.loads(self.capsys.readouterr().out)
        return document


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, deepseek_tokenizer_dir: Path) -> Path:
    """The directory of a prepared data set: cold, three groups, lengths from 100 to 200, on two ranks."""
    directory = tmp_path_factory.mktemp("hand")
    (directory / "corpus.jsonl").write_text("".join(json.dumps({"question": q}) + "\n" for q in QUESTIONS))
    scenario = scenario_file(
        directory,
        tokenizer=deepseek_tokenizer_dir,
        run={"output_dir": "out/hand"},
        corpus={"path": "corpus.jsonl"},
        requests={"count": 40, "input_length": {"mode": "range", "ranges": [{"min": 100, "max": 200, "count": 40}]}},
        prefix_cache={"groups": {"count": 3}},
        service={"dp_size": 2},
    )
    assert main(["prepare", "--mode", "text", "--scenario", str(scenario)]) == 0
    (made,) = (directory / "out").iterdir()
    return made


@pytest.fixture
def by_hand(
    prepared: Path,
    tmp_path: Path,
    deepseek_tokenizer_dir: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> Iterator[ByHand]:
    """A copy of the data set, and an embedded server with the options of the test."""
    copy = tmp_path / prepared.name
    shutil.copytree(prepared, copy)
    (full,), (manifest,) = (list((copy / "result").glob(f"*.{kind}")) for kind in ("full.jsonl", "manifest.json"))
    rows = [json.loads(line) for line in full.read_text(encoding="utf-8").split("\n") if line]
    options: dict[str, Any] = {
        "data_parallel_size": 2,
        "block_size": BLOCK_SIZE,
        "prefill_tokens_per_second": None,
        "decode_tokens_per_second": None,
        **getattr(request, "param", {}),
    }
    configuration = ServerConfiguration(tokenizer=deepseek_tokenizer_dir, model="tiny", **options)
    with running_server(configuration) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield ByHand(manifest, rows, client, tmp_path, capsys)


def test_theory_equals_the_counter_on_each_rank(by_hand: ByHand) -> None:
    document = by_hand.analyze(by_hand.send_all)
    assert document["findings"] == []
    assert document["actual"]["global_hits"] == sum(row["theoretical_hit_tokens"] for row in by_hand.rows) > 0
    for rank in (0, 1):
        mine = [row for row in by_hand.rows if row["dp_rank"] == rank]
        counted = document["actual"]["by_dp"][str(rank)]
        assert counted["queries"] == sum(row["actual_input_tokens"] for row in mine)
        assert counted["hits"] == sum(row["theoretical_hit_tokens"] for row in mine)


def test_an_edited_figure_does_not_survive_its_own_texts(by_hand: ByHand) -> None:
    by_hand.analyze(by_hand.send_all)
    path = by_hand.manifest.with_name(by_hand.manifest.name.replace("manifest", "analysis"))
    intact = path.read_bytes()

    def codes(edit: Callable[[dict[str, Any]], object]) -> set[tuple[str, str]]:
        document = json.loads(intact)
        edit(document)
        seal(path, document)
        by_hand.capsys.readouterr()
        code = main(["validate", "--manifest", str(by_hand.manifest)])
        report = json.loads(by_hand.capsys.readouterr().out)
        assert code == (0 if report["ok"] else 2)
        return {(each["code"], each["where"].rpartition(": ")[2]) for each in report.get("errors", ())}

    def swap(document: dict[str, Any]) -> None:
        looks = document["runtime"]
        before, after = looks["metrics_baseline"], looks["metrics_after"]
        before["raw_prometheus"], after["raw_prometheus"] = after["raw_prometheus"], before["raw_prometheus"]

    assert codes(lambda document: None) == set()
    hits = ("WRONG_VALUE", "actual.global_hits")
    assert codes(lambda document: document["actual"].update(global_hits=999_999)) == {hits}
    rank = ("WRONG_VALUE", "actual.by_dp.1.hits")
    assert codes(lambda document: document["actual"]["by_dp"]["1"].update(hits=1)) == {rank}
    difference = ("WRONG_TYPE", "theory_actual_signed_difference_pp")
    assert codes(lambda document: document.update(theory_actual_signed_difference_pp=None)) == {difference}
    finding = {"code": "X", "severity": "note", "message": "m", "evidence": {}, "remedy": "r"}
    assert codes(lambda document: document["findings"].append(finding)) == {("WRONG_VALUE", "findings")}
    assert codes(lambda document: document.pop("runtime")) == {("ANALYSIS_DAMAGED", "runtime")}
    assert codes(swap) and ("ANALYSIS_DAMAGED", "runtime") not in codes(swap)


def test_one_request_too_many_is_foreign_traffic(by_hand: ByHand) -> None:
    def send() -> None:
        by_hand.send_all()
        by_hand.send("What does a stranger ask?")

    document = by_hand.analyze(send)
    assert [finding["code"] for finding in document["findings"]] == ["FOREIGN_TRAFFIC"]
    assert [warning["code"] for warning in document["warnings"]] == ["QUERIES_MISMATCH"]
    assert document["warnings"][0]["suggests"] == ["FOREIGN_TRAFFIC"]


def test_the_first_row_once_more_is_a_warmup_of_aisbench(by_hand: ByHand) -> None:
    def send() -> None:
        by_hand.send(by_hand.rows[0]["question"], by_hand.rows[0]["dp_rank"])
        by_hand.send_all()

    document = by_hand.analyze(send)
    assert [finding["code"] for finding in document["findings"]] == ["AISBENCH_WARMUPS"]


def test_a_request_too_few_is_missing(by_hand: ByHand) -> None:
    by_hand.rows.pop()
    document = by_hand.analyze(by_hand.send_all)
    assert [finding["code"] for finding in document["findings"]] == ["REQUESTS_MISSING"]


def test_all_on_one_rank_is_an_ignored_header(by_hand: ByHand) -> None:
    for row in by_hand.rows:
        row["dp_rank"] = 0
    document = by_hand.analyze(by_hand.send_all)
    assert [finding["code"] for finding in document["findings"]] == ["RANK_HEADER_IGNORED"]


def test_a_cache_that_was_not_empty(by_hand: ByHand) -> None:
    by_hand.send_all()
    document = by_hand.analyze(by_hand.send_all)
    assert [finding["code"] for finding in document["findings"]] == ["CACHE_NOT_EMPTY"]


@pytest.mark.parametrize("by_hand", [{"block_size": 32}], indirect=True)
def test_a_server_with_larger_blocks(by_hand: ByHand) -> None:
    document = by_hand.analyze(by_hand.send_all)
    assert [finding["code"] for finding in document["findings"]] == ["SERVER_BLOCK_SIZE_MULTIPLE"]
    assert document["actual"]["hits_difference"] < 0


@pytest.mark.parametrize("by_hand", [{"num_blocks": 24, "max_model_len": 256}], indirect=True)
def test_a_cache_too_small_hits_what_was_predicted(by_hand: ByHand) -> None:
    """The replay without tokens predicts, to the token, what the server's cache of 24 blocks a rank hits."""
    document = by_hand.analyze(by_hand.send_all)
    (finding,) = document["findings"]
    assert finding["code"] == "CACHE_TOO_SMALL"
    assert finding["evidence"]["predicted_hits"] == document["actual"]["global_hits"]
    assert finding["evidence"]["predicted_hits"] < finding["evidence"]["planned_hits"]
