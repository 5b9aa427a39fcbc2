"""The side file of a run: what the server said about every single request.

Our model adapter appends one JSON object a line as requests finish (not in send order) to
``performances/<model abbr>/<dataset abbr>_usage.jsonl``:

``sequence_index``, ``success``, ``attempts`` (more than one: it was sent again), ``prompt_tokens`` and
``completion_tokens`` (null: the response had no usage), ``cached_tokens`` (see below), ``due``, ``sent``,
``first_token`` and ``finished`` (seconds of this machine's monotonic clock, of the last attempt; null where it did not
happen), ``lane_wait`` and ``slot_wait`` (seconds), ``itl_ms`` (milliseconds between tokens), ``error``.

``cached_tokens`` has three states: the key is **absent** when the server's usage had no
``prompt_tokens_details.cached_tokens``; it is **null** when the server sent null for either; otherwise it is the
number, 0 included.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ais_bench_prefix_cache.analysis.seen_request import CachedTokensState, SeenRequest
from ais_bench_prefix_cache.foundation.codes import Code
from ais_bench_prefix_cache.foundation.errors import AISBenchError


@dataclass(frozen=True)
class SentRequests:
    """All requests of a run in the order of the data set; their moments count from ``begin``.

    ``begin`` is when the first of them was sent, ``end`` when the last answer was complete, in seconds of this
    machine's monotonic clock; both None where nothing is known.
    """

    requests: tuple[SeenRequest, ...] = ()
    begin: float | None = None
    end: float | None = None


def load_request_usage(path: Path) -> SentRequests:
    """All rows of a side file. A damaged file raises :class:`AISBenchError`."""
    rows: list[Mapping[str, Any]] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                _seen_request(row, 0.0)
            except (ValueError, KeyError, TypeError, AttributeError):
                raise AISBenchError.of(
                    Code.AISBENCH_USAGE_DAMAGED, f"{path} line {number}", "is not a usage row that this program wrote"
                ) from None
            rows.append(row)
    sent = [row["sent"] for row in rows if row["sent"] is not None]
    finished = [row["finished"] for row in rows if row["finished"] is not None]
    begin = min(sent, default=None)
    requests = sorted((_seen_request(row, begin or 0.0) for row in rows), key=lambda row: row.sequence_index)
    return SentRequests(tuple(requests), begin, max(finished, default=None))


def _seen_request(row: Mapping[str, Any], begin: float) -> SeenRequest:
    cached = row.get("cached_tokens")
    state: CachedTokensState = "absent" if "cached_tokens" not in row else "null" if cached is None else "reported"

    def moment(name: str) -> float | None:
        return None if row[name] is None else round(row[name] - begin, 6)

    return SeenRequest(
        sequence_index=int(row["sequence_index"]),
        state=state,
        cached_tokens=cached,
        prompt_tokens=row["prompt_tokens"],
        attempts=int(row["attempts"]),
        success=bool(row["success"]),
        sent=moment("sent"),
        first_token=moment("first_token"),
        finished=moment("finished"),
        completion_tokens=row["completion_tokens"],
        error=row["error"],
        due=moment("due"),
        lane_wait=row["lane_wait"],
        slot_wait=row["slot_wait"],
        itl_ms=tuple(row["itl_ms"]),
    )
