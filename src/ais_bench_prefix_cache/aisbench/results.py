"""AISBench's own performance figures, read from its files."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.aisbench.judging import ResultFiles
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import AISBenchError, ArtifactError

RUN_KEY = "aisbench"
"""Where ``analysis.runtime`` keeps :meth:`~ais_bench_prefix_cache.aisbench.job.AISBenchResult.to_json`."""

_STREAM_ONLY = ("TTFT", "TPOT", "ITL")
_DERIVED_FROM_TTFT = "Prefill Token Throughput"
_NAME_COLUMN = "Performance Parameters"


def performance_report(analysis: Mapping[str, Any], *, analysis_path: Path, kept: Path | None = None) -> dict[str, Any]:
    """The figures of the run that ``analysis`` records in ``runtime.aisbench``; ``kept`` is the run's own copy of them.

    ``{csv, json, metrics: {E2EL: {Stage, Average, Min, …, N}, …}, common: {name: {total: value}}}``, values as AISBench
    wrote them (with their units). What was not measured is absent: TTFT, TPOT and ITL without streaming.

    Raises :class:`ArtifactError` (``NO_RUN``) when the analysis records no run, :class:`AISBenchError` when AISBench's
    files are gone or damaged.
    """
    run = (analysis.get("runtime") or {}).get(RUN_KEY)
    if not isinstance(run, Mapping):
        raise ArtifactError.of(
            Code.NO_RUN,
            str(analysis_path),
            "records no run of AISBench",
            hint="Send the data set first: ais-bench-prefix-cache run --scenario …",
        )
    files = _find_files(run, analysis_path, kept)
    metrics = _read_metrics(files.csv)
    common = _read_common(files.json)
    if not run.get("stream", True):
        for name in _STREAM_ONLY:
            metrics.pop(name, None)
        common.pop(_DERIVED_FROM_TTFT, None)
    return {"csv": str(files.csv), "json": str(files.json), "metrics": metrics, "common": common}


def _find_files(run: Mapping[str, Any], analysis_path: Path, kept: Path | None) -> ResultFiles:
    """The result files that the run kept, else where AISBench left them, or where they were moved with everything."""
    exp_dir = Path(run["exp_dir"])
    candidates = [exp_dir] if kept is None else [kept, exp_dir]
    if run.get("relative_exp_dir"):
        candidates.append((analysis_path.parent / run["relative_exp_dir"]).resolve())
    for candidate in candidates:
        files = ResultFiles(candidate / "performances" / run["model_abbr"], run["dataset_abbr"])
        if files.csv.is_file() and files.json.is_file():
            return files
    raise AISBenchError.of(
        Code.AISBENCH_RESULTS_NOT_FOUND,
        str(exp_dir),
        "the performance files of the run are not there any more",
        hint="Put the directory back, or run again.",
    )


def _read_metrics(path: Path) -> dict[str, dict[str, Any]]:
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            metrics = {row.pop(_NAME_COLUMN): row for row in csv.DictReader(lines)}
            return {name: {**row, "N": int(row["N"])} for name, row in metrics.items()}
    except (OSError, ValueError, KeyError, TypeError):
        raise _damaged(path) from None


def _read_common(path: Path) -> dict[str, dict[str, Any]]:
    try:
        common = json.loads(path.read_text(encoding="utf-8"))
        return {name: dict(stages) for name, stages in common.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        raise _damaged(path) from None


def _damaged(path: Path) -> AISBenchError:
    return AISBenchError.of(Code.AISBENCH_RESULTS_DAMAGED, str(path), "is not a file that AISBench wrote")
