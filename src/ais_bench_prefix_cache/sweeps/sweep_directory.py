"""What a sweep leaves: its plan, one table, one page, and every run with its records, all in one directory.

::

    <output_dir>-sweep_<time stamp>/
        sweep.json                    the plan
        table.jsonl, table.csv        a row a run, in the order of running
        sweep.html                    the page
        runs/point-003.repeat-1/      what that run left (hard links where the file system has them)

The table is replaced as a whole after each run, so that a sweep that was killed has lost only the run that it was in.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.datasets.format.documents import read_document, read_json_lines
from ais_bench_prefix_cache.datasets.format.paths import RunDirectory, claim_stamped
from ais_bench_prefix_cache.datasets.format.writing import write_content, write_document
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError
from ais_bench_prefix_cache.sweeps.plan import SweepPlan

PLAN_NAME = "sweep.json"

Row = dict[str, Any]


@dataclass(frozen=True)
class SweepDirectory:
    """The files of one sweep."""

    path: Path

    @classmethod
    def create(cls, output_dir: Path, now: datetime) -> SweepDirectory:
        """A new directory beside the Scenario's ``run.output_dir``."""
        output_dir.parent.mkdir(parents=True, exist_ok=True)
        return cls(claim_stamped(output_dir.parent, f"{output_dir.name}-sweep_", now))

    @property
    def plan(self) -> Path:
        return self.path / PLAN_NAME

    @property
    def table(self) -> Path:
        return self.path / "table.jsonl"

    @property
    def csv(self) -> Path:
        return self.path / "table.csv"

    @property
    def page(self) -> Path:
        return self.path / "sweep.html"

    def run(self, point: int, repeat: int) -> RunDirectory:
        """Where a run's files are kept; ``repeat`` counts from 0, in names from 1."""
        return RunDirectory(self.path / "runs" / f"point-{point:03d}.repeat-{repeat + 1}")

    def write_plan(self, plan: SweepPlan) -> None:
        write_document(self.plan, plan.to_json())

    def read_plan(self) -> SweepPlan:
        """Raises ArtifactError where there is none, or it is damaged."""
        if not self.plan.is_file():
            raise ArtifactError.of(
                Code.MISSING_FILE, str(self.path), f"this is no directory of a sweep: it has no {PLAN_NAME}"
            )
        document, _ = read_document(self.plan, what="plan of the sweep")
        try:
            return SweepPlan.of_json(document)
        except (KeyError, TypeError, ValueError):
            raise _damaged(self.plan) from None

    def write_table(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """JSON Lines and CSV, each replaced at once."""
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_content(self.table, "".join(lines).encode())
        columns = list(dict.fromkeys(column for row in rows for column in row))
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows({column: _cell(value) for column, value in row.items()} for row in rows)
        write_content(self.csv, text.getvalue().encode())

    def read_table(self) -> list[Row]:
        """The rows so far. Raises ArtifactError where the table is not what a sweep writes."""
        if not self.table.is_file():
            return []
        rows = read_json_lines(self.table, what="table of this sweep")
        try:
            return [{**row, "point": int(row["point"]), "repeat": int(row["repeat"])} for row in rows]
        except (ValueError, TypeError, KeyError):
            raise _damaged(self.table) from None

    def keep(self, run: RunDirectory, point: int, repeat: int) -> None:
        """Keep the files of a run that is complete; half a copy of a sweep that was killed goes."""
        kept = self.run(point, repeat).path
        growing = kept.with_name(f".{kept.name}.partial")
        for leftover in (growing, kept):
            shutil.rmtree(leftover, ignore_errors=True)
        shutil.copytree(run.path, growing, copy_function=_link_or_copy)
        growing.rename(kept)


def _link_or_copy(source: str, target: str) -> None:
    """A run's files do not change any more: one copy serves both directories."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else value


def _damaged(path: Path) -> ArtifactError:
    return ArtifactError.of(
        Code.SWEEP_DAMAGED, str(path), "this is not what a sweep writes", hint="Restore the file, or begin a new sweep."
    )
