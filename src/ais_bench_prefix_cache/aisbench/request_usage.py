"""The side file of a run: what the server said about every single request.

Our model adapter appends one JSON object a line as requests finish (not in send order) to
``performances/<model abbr>/<dataset abbr>_usage.jsonl``:

``sequence_index``, ``success``, ``attempts`` (more than one: AISBench sent the request again), ``prompt_tokens`` and
``completion_tokens`` (null: the response had no usage), ``cached_tokens`` (see below), ``sent``, ``first_token`` and
``finished`` (seconds after the first request of the run was sent; null where it did not happen), ``error``.

``cached_tokens`` has three states: the key is **absent** when the server's usage had no
``prompt_tokens_details.cached_tokens``; it is **null** when the server sent null for either; otherwise it is the
number, 0 included.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.analysis.seen_request import CachedTokensState, SeenRequest
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import AISBenchError


def load_request_usage(path: Path) -> list[SeenRequest]:
    """All rows of a side file, in the order of the data set. A damaged file raises :class:`AISBenchError`."""
    rows = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                rows.append(_seen_request(json.loads(line)))
            except (ValueError, KeyError, TypeError, AttributeError):
                raise AISBenchError.of(
                    Code.AISBENCH_USAGE_DAMAGED, f"{path} line {number}", "is not a usage row that this program wrote"
                ) from None
    return sorted(rows, key=lambda row: row.sequence_index)


def _seen_request(row: Mapping[str, Any]) -> SeenRequest:
    cached = row.get("cached_tokens")
    state: CachedTokensState = "absent" if "cached_tokens" not in row else "null" if cached is None else "reported"
    return SeenRequest(
        sequence_index=int(row["sequence_index"]),
        state=state,
        cached_tokens=cached,
        prompt_tokens=row.get("prompt_tokens"),
        attempts=int(row["attempts"]),
        success=bool(row["success"]),
        sent=row.get("sent"),
        first_token=row.get("first_token"),
        finished=row.get("finished"),
        completion_tokens=row.get("completion_tokens"),
        error=row.get("error"),
    )
