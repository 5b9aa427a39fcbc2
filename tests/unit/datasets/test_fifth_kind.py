"""A kind of data set is one file and one line of the registry: here a fifth one, whose texts are numbers in words."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ais_bench_prefix_cache.cli import main
from ais_bench_prefix_cache.datasets import kinds
from ais_bench_prefix_cache.datasets.format.kind import Content, DataSetKind, DeepCheck, JsonRow, Ledger, Preparation
from ais_bench_prefix_cache.datasets.format.manifest import SOURCE_KEYS
from ais_bench_prefix_cache.datasets.format.rows import FreeText, Row
from ais_bench_prefix_cache.foundation.codes import Code


@dataclass(frozen=True)
class CountRow(Row):
    """A number and how it is written."""

    number: int
    question: FreeText


class CountLedger(Ledger):
    """Numbers go up by one."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.characters = 0

    def expected(self, index: int, row: JsonRow) -> CountRow:
        return CountRow(index, row["question"])

    def add(self, index: int, row: JsonRow, where: str, findings: Any) -> None:
        self.characters += len(row["question"])

    def sections(self, artifacts: Mapping[str, Any]) -> dict[str, Any]:
        return {"characters": self.characters}


class CountDeepCheck(DeepCheck):
    """Counts tokens."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tokens = 0

    def texts(self) -> Iterator[tuple[str, Callable[[Sequence[int]], None]]]:
        for line in self._path.read_text().splitlines():
            yield json.loads(line)["question"], partial(self._count)

    def _count(self, token_ids: Sequence[int]) -> None:
        self._tokens += len(token_ids)

    def report(self) -> dict[str, Any]:
        return {"tokens": self._tokens}


class CountKind(DataSetKind):
    """Numbers in words."""

    name = "count"
    manifest_keys = (*SOURCE_KEYS, "characters", "artifacts", "content_sha256")
    row_type = CountRow
    has_analysis = False
    run_refusal = (Code.TRACE, "numbers are not sent", "Count them.")

    def row_files(self, paths: Any, manifest: Mapping[str, Any]) -> dict[str, Path]:
        return {"numbers": paths.result_dir / f"{paths.run_id}.numbers.jsonl"}

    def prepare(self, preparation: Preparation) -> Content:
        preparation.load()
        count = preparation.scenario.requests.count
        return Content((CountRow(n, f"number {n}") for n in range(count)), count, CountLedger(count))

    def ledger(self, paths: Any, manifest: Mapping[str, Any], records: Any, findings: Any) -> CountLedger:
        return CountLedger(manifest["effective_config"]["requests"]["count"])

    def rebuild(self, paths: Any, manifest: Mapping[str, Any], sources: Any, trace: Path | None) -> Content:
        count = manifest["effective_config"]["requests"]["count"]
        return Content((CountRow(n, f"number {n}") for n in range(count)), count, CountLedger(count))

    def deep_check(self, paths: Any, manifest: Mapping[str, Any], tokenizer: Any, findings: Any) -> CountDeepCheck:
        return CountDeepCheck(self.row_files(paths, manifest)["numbers"])


def test_a_kind_is_one_file_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qwen3_tokenizer_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = ModuleType("ais_bench_prefix_cache.datasets.count_kind")
    module.KIND = CountKind()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(kinds.KINDS, "count", ("count_kind", True))
    monkeypatch.setattr(
        "ais_bench_prefix_cache.commands.prepare_command.PREPARED_KINDS", (*kinds.PREPARED_KINDS, "count")
    )
    (tmp_path / "corpus.jsonl").write_text('{"question": "Why?"}\n')
    scenario = {
        "run": {"run_id": "numbers", "output_dir": str(tmp_path / "out")},
        "tokenizer": {"path": str(qwen3_tokenizer_dir), "block_size": 16},
        "corpus": {"path": str(tmp_path / "corpus.jsonl")},
        "requests": {"count": 3},
    }
    (tmp_path / "scenario.json").write_text(json.dumps(scenario))
    assert main(["prepare", "--mode", "count", "--scenario", str(tmp_path / "scenario.json")]) == 0
    files = json.loads(capsys.readouterr().out)
    rows = Path(files["numbers"])
    assert set(files) == {"numbers", "manifest", "log"}
    assert rows.read_text() == "".join(f'{{"number": {n}, "question": "number {n}"}}\n' for n in range(3))
    assert json.loads(Path(files["manifest"]).read_text())["characters"] == 24

    validate = ["validate", "--manifest", files["manifest"]]
    assert (
        main(
            [
                *validate,
                "--deep",
                "--tokenizer",
                str(qwen3_tokenizer_dir),
                "--corpus",
                str(tmp_path / "corpus.jsonl"),
            ]
        )
        == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert (report["rows"], report["deep"]["rebuilt"]) == (3, True)
    rows.write_text(rows.read_text().replace('"number": 1', '"number": 7'))
    assert main(validate) == 2
    assert "line 2: number: it says 7 (allowed: 1)" in capsys.readouterr().err
    for command in (["analyze", "--baseline", "x", "--after", "x"], ["report"]):
        assert main([*command, "--manifest", files["manifest"]]) == 2
    assert "numbers are not sent" in capsys.readouterr().err
