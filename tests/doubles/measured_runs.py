"""Runs and sweeps on disk, with latencies that a test chooses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ais_bench_prefix_cache.analysis.request_record import RequestRecord


def record(index: int, ttft_ms: float, *, sent_s: float, in_tokens: int = 100, hits: int = 40) -> RequestRecord:
    """A request with an answer of three tokens, 10 ms apart."""
    return RequestRecord(
        index=index,
        group_id="group-0",
        dp_rank=0,
        lane_sequence=None,
        max_tokens=3,
        planned_input_tokens=in_tokens,
        planned_hit_tokens=hits,
        input_tokens=in_tokens,
        hit_tokens=hits,
        output_tokens=3,
        due_s=None,
        sent_s=sent_s,
        first_token_s=sent_s + ttft_ms / 1000,
        end_s=sent_s + ttft_ms / 1000 + 0.02,
        lane_wait_ms=0.0,
        slot_wait_ms=0.0,
        ttft_ms=ttft_ms,
        tpot_ms=10.0,
        e2el_ms=ttft_ms + 20,
        itl_ms=(10.0, 10.0),
        retries=0,
        success=True,
        error=None,
    )


def records(ttft_ms: Sequence[float]) -> list[RequestRecord]:
    """One after another."""
    found, sent = [], 0.0
    for index, value in enumerate(ttft_ms):
        found.append(record(index, value, sent_s=sent))
        sent += value / 1000 + 0.02
    return found


def config(**model: Any) -> dict[str, Any]:
    """As much of an effective configuration as runs are compared by."""
    return {
        "schema_version": "1.0",
        "run": {"run_id": "a", "random_seed": 1, "output_dir": "/x"},
        "service": {"model": "m", "dp_size": 1, "inference_url": "http://a/v1/completions"},
        "aisbench": {"work_dir": "/y", "model": {"batch_size": 2, **model}},
    }


def write_run(
    directory: Path,
    ttft_ms: Sequence[float],
    *,
    rows: Mapping[str, str] | None = MappingProxyType({"full": "abc"}),
    configuration: Mapping[str, Any] | None = None,
    server: str = "0.32.0",
) -> Path:
    """What a complete run leaves, as far as it is read."""
    directory.mkdir(parents=True)
    runtime = {
        **({} if rows is None else {"rows_sha256": dict(rows)}),
        "aisbench": {"batch_size": 2},
        "precheck": {"versions": {"http://a": server}},
    }
    counted = {"global_hits": 40 * len(ttft_ms), "global_queries": 100 * len(ttft_ms)}
    (directory / "run.json").write_text(json.dumps({"status": "complete"}))
    (directory / "effective_config.json").write_text(json.dumps(configuration or config()))
    (directory / "analysis.json").write_text(json.dumps({"runtime": runtime, "actual": counted}))
    lines = (json.dumps(asdict(each)) + "\n" for each in records(ttft_ms))
    (directory / "requests.jsonl").write_text("".join(lines))
    return directory
