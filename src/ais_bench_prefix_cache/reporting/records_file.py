"""Request records on disk: JSON Lines as a run leaves them, CSV and Parquet for whoever goes on with them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from ais_bench_prefix_cache.analysis.request_record import RequestRecord
from ais_bench_prefix_cache.datasets.format.documents import read_json_lines
from ais_bench_prefix_cache.datasets.format.writing import FileSet
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import ArtifactError

_ITL_SUMMARY = ("itl_mean_ms", "itl_p50_ms", "itl_p99_ms", "itl_max_ms")


def read_records(path: Path) -> list[RequestRecord]:
    """The records that a run left. Raises ArtifactError where they are not there or not what a run writes."""
    rows = read_json_lines(path, what="records of this run")
    try:
        return [RequestRecord(**{**row, "itl_ms": tuple(row["itl_ms"])}) for row in rows]
    except (TypeError, KeyError):
        raise ArtifactError.of(
            Code.RECORDS_DAMAGED, str(path), "these are not the records of a run", hint="Restore the file."
        ) from None


def write_records(path: Path, records: Sequence[RequestRecord]) -> None:
    """Write them in the format that the file's ending names: ``.jsonl``, ``.csv`` or ``.parquet``.

    CSV and Parquet have a summary of the times between tokens; JSON Lines have them all. Raises ArtifactError for
    another ending, or where Parquet's library is not installed.
    """
    writer = _WRITERS.get(path.suffix.lower())
    if writer is None:
        raise ArtifactError.of(
            Code.RECORDS_FORMAT,
            str(path),
            f"records cannot be written as {path.suffix or 'a file without ending'}",
            allowed=", ".join(_WRITERS),
        )
    with FileSet(replace=True) as files:
        file = files.open(path)
        for content in writer(path, records):
            file.write(content)
        files.commit()


def _json_lines(_path: Path, records: Iterable[RequestRecord]) -> Iterator[bytes]:
    for record in records:
        yield json.dumps(asdict(record), ensure_ascii=False).encode() + b"\n"


def _csv(_path: Path, records: Iterable[RequestRecord]) -> Iterator[bytes]:
    line = io.StringIO(newline="")
    writer = csv.DictWriter(line, _flat_names())
    writer.writeheader()
    for record in records:
        writer.writerow(flat_record(record))
        yield line.getvalue().encode()
        line.seek(0)
        line.truncate()
    yield line.getvalue().encode()


def _parquet(path: Path, records: Sequence[RequestRecord]) -> Iterator[bytes]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ArtifactError.of(
            Code.REPORT_NEEDS,
            str(path),
            "Parquet needs pyarrow, which is not installed",
            hint="pip install 'ais-bench-prefix-cache[multimodal]', or write .csv or .jsonl",
        ) from None
    rows = [flat_record(record) for record in records]
    stream = io.BytesIO()
    pq.write_table(pa.table({name: [row[name] for row in rows] for name in _flat_names()}), stream)
    yield stream.getvalue()


def _flat_names() -> list[str]:
    names: list[str] = []
    for field in fields(RequestRecord):
        names.extend(_ITL_SUMMARY if field.name == "itl_ms" else (field.name,))
    return names


def flat_record(record: RequestRecord) -> dict[str, Any]:
    """A record with a summary of its ``itl_ms``, as CSV and Parquet have it."""
    row = asdict(record)
    times = row.pop("itl_ms")
    summary: list[float | None] = [None] * len(_ITL_SUMMARY)
    if times:
        array = np.asarray(times)
        summary = [array.mean(), *np.percentile(array, [50, 99]), array.max()]
    figures = (None if value is None else round(float(value), 4) for value in summary)
    return row | dict(zip(_ITL_SUMMARY, figures, strict=True))


_WRITERS: Mapping[str, Callable[[Path, Sequence[RequestRecord]], Iterator[bytes]]] = {
    ".jsonl": _json_lines,
    ".csv": _csv,
    ".parquet": _parquet,
}
