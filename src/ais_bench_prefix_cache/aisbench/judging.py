"""Whether AISBench did what it was asked to, told by its files: its exit code proves nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import Problem

_REASONS_SHOWN = 3
_REASON_CHARACTERS = 300


@dataclass(frozen=True)
class ResultFiles:
    """AISBench's files of one run, in ``<exp_dir>/performances/<model abbr>/``."""

    directory: Path
    dataset_abbr: str

    @property
    def csv(self) -> Path:
        return self.directory / f"{self.dataset_abbr}.csv"

    @property
    def json(self) -> Path:
        return self.directory / f"{self.dataset_abbr}.json"

    @property
    def details(self) -> Path:
        return self.directory / f"{self.dataset_abbr}_details.jsonl"

    @property
    def failed(self) -> Path:
        return self.directory / f"{self.dataset_abbr}_failed.jsonl"

    @property
    def usage(self) -> Path:
        """Written by our inferencer, not by AISBench."""
        return self.directory / f"{self.dataset_abbr}_usage.jsonl"

    @property
    def leftovers(self) -> Path:
        """Removed by a worker that ends properly and had no failed request."""
        return self.directory / "tmp"


def judge(files: ResultFiles, *, exit_code: int, expected_max_tokens: Sequence[int], ignore_eos: bool) -> list[Problem]:
    """Everything that shows that not every planned request was sent once and answered in full; empty for success.

    ``expected_max_tokens`` has one entry a planned request, in send order. With ``ignore_eos`` a server must have
    generated exactly that many tokens.
    """
    problems = []
    expected = len(expected_max_tokens)
    where = str(files.directory)
    reasons = failure_reasons(files.failed)
    if reasons:
        shown = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(_REASONS_SHOWN))
        problems.append(
            Problem(
                Code.AISBENCH_REQUESTS_FAILED,
                str(files.failed),
                f"{sum(reasons.values())} of {expected} requests failed: {shown}",
                hint="The hit counters now hold an unknown mixture. Mend the cause, then run again.",
            )
        )
    rows = _details(files.details)
    if rows is None:
        problems.append(
            Problem(Code.AISBENCH_INCOMPLETE, str(files.details), "AISBench left no readable record of its requests")
        )
    else:
        problems.extend(_judge_rows(rows, files, expected_max_tokens, ignore_eos, bool(reasons)))
    if not files.json.is_file() or not files.csv.is_file():
        missing = files.csv if files.json.is_file() else files.json
        problems.append(Problem(Code.AISBENCH_INCOMPLETE, str(missing), "AISBench wrote no summary of the run"))
    else:
        problems.extend(_judge_summary(files, expected, bool(reasons)))
    if files.leftovers.exists() and not reasons:
        problems.append(
            Problem(
                Code.AISBENCH_INCOMPLETE, str(files.leftovers), "a worker of AISBench died and left its scratch files"
            )
        )
    if exit_code != 0:
        ended = f"was ended by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
        problems.insert(0, Problem(Code.AISBENCH_FAILED, where, f"AISBench {ended}"))
    return problems


def failure_reasons(path: Path) -> Counter[str]:
    """How often each reason stands in a ``_failed.jsonl``; empty without one."""
    reasons: Counter[str] = Counter()
    if path.is_file():
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                try:
                    reason = json.loads(line).get("error_info")
                except (ValueError, AttributeError):
                    reason = None
                reasons[str(reason or "unknown reason")[:_REASON_CHARACTERS]] += 1
    return reasons


def _details(path: Path) -> list[dict[str, Any]] | None:
    """``id``, ``success`` and ``output_tokens`` of every row; None if the file cannot be used."""
    rows = []
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                rows.append({name: row.get(name) for name in ("id", "success", "output_tokens")})
    except (OSError, ValueError, AttributeError):
        return None
    return rows


def _judge_rows(
    rows: list[dict[str, Any]],
    files: ResultFiles,
    expected_max_tokens: Sequence[int],
    ignore_eos: bool,
    failures_are_told: bool,
) -> list[Problem]:
    problems = []
    where = str(files.details)
    expected = len(expected_max_tokens)
    times_seen = Counter(row["id"] for row in rows)
    missing = [index for index in range(expected) if index not in times_seen]
    if missing:
        problems.append(
            Problem(
                Code.AISBENCH_INCOMPLETE,
                where,
                f"{len(missing)} of {expected} requests are missing, the first is number {missing[0]}",
                hint="A part of the data set was never sent or its outcome was lost. Run again.",
            )
        )
    twice = [index for index, count in times_seen.items() if count > 1]
    strange = [index for index in times_seen if not isinstance(index, int) or not 0 <= index < expected]
    if twice:
        problems.append(Problem(Code.AISBENCH_INCOMPLETE, where, f"{len(twice)} requests stand there more than once"))
    if strange:
        problems.append(
            Problem(Code.AISBENCH_INCOMPLETE, where, f"rows that were not planned, such as id {strange[0]!r}")
        )
    failed = sum(1 for row in rows if not row["success"])
    if failed and not failures_are_told:
        problems.append(Problem(Code.AISBENCH_REQUESTS_FAILED, where, f"{failed} of {expected} requests failed"))
    if ignore_eos and not (failed or strange):
        wrong = [row for row in rows if row["output_tokens"] != expected_max_tokens[row["id"]]]
        if wrong:
            first = min(wrong, key=lambda row: row["id"])
            silent = all(not row["output_tokens"] for row in wrong)
            problems.append(
                Problem(
                    Code.AISBENCH_OUTPUT_LENGTH,
                    where,
                    f"{len(wrong)} of {expected} answers do not have their planned length although ignore_eos is set: "
                    f"request {first['id']} has {first['output_tokens']} tokens instead of "
                    f"{expected_max_tokens[first['id']]}",
                    hint="The server reports no usage; AISBench needs it."
                    if silent
                    else "Either the answers were cut off, or the server does not know ignore_eos; in that case remove "
                    "it from aisbench.model.generation_kwargs.",
                )
            )
    return problems


def _judge_summary(files: ResultFiles, expected: int, failures_are_told: bool) -> list[Problem]:
    where = str(files.json)
    try:
        summary = json.loads(files.json.read_text(encoding="utf-8"))
        total = summary["Total Requests"]["total"]
        failed = summary["Failed Requests"]["total"]
    except (OSError, ValueError, KeyError, TypeError):
        return [Problem(Code.AISBENCH_INCOMPLETE, where, "AISBench's summary cannot be read")]
    problems = []
    if total != expected:
        problems.append(Problem(Code.AISBENCH_INCOMPLETE, where, f"sums up {total} requests instead of {expected}"))
    if failed and not failures_are_told:
        problems.append(Problem(Code.AISBENCH_REQUESTS_FAILED, where, f"{failed} of {expected} requests failed"))
    return problems
