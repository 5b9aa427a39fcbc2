"""Records: what was planned beside what was seen, and the latencies of AISBench's definitions."""

from __future__ import annotations

import pytest

from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
from ais_bench_prefix_cache.analysis.request_record import request_records
from ais_bench_prefix_cache.analysis.seen_request import SeenRequest

COLUMNS = RequestColumns(["group-0", "group-1"], [1, -1], [3, -1], [100, 50], [64, 0], [64, 0], [5, 9])


def test_a_streamed_request_has_all_latencies() -> None:
    seen = SeenRequest(
        0,
        "reported",
        cached_tokens=48,
        prompt_tokens=101,
        completion_tokens=5,
        sent=1.0,
        first_token=1.25,
        finished=2.0,
        itl_ms=(250.0, 250.0, 250.0),
        attempts=2,
        due=0.9,
        lane_wait=0.1,
    )
    (record,) = request_records(COLUMNS, [seen])
    assert (record.group_id, record.dp_rank, record.lane_sequence) == ("group-0", 1, 3)
    assert (record.planned_input_tokens, record.planned_hit_tokens, record.max_tokens) == (100, 64, 5)
    assert (record.input_tokens, record.hit_tokens, record.output_tokens) == (101, 48, 5)
    assert (record.ttft_ms, record.e2el_ms, record.tpot_ms) == (250.0, 1000.0, 187.5)
    assert (record.due_s, record.sent_s, record.lane_wait_ms, record.retries) == (0.9, 1.0, 100.0, 1)


@pytest.mark.parametrize(
    ("changes", "latencies"),
    [
        ({"completion_tokens": 1}, (250.0, None, 1000.0)),
        ({"first_token": None}, (None, None, 1000.0)),
        ({"success": False, "error": "HTTP 500"}, (250.0, None, None)),
    ],
    ids=["one token", "not streamed", "failed"],
)
def test_what_was_not_measured_is_unknown(
    changes: dict[str, object], latencies: tuple[float | None, float | None, float | None]
) -> None:
    values = {"completion_tokens": 5, "sent": 1.0, "first_token": 1.25, "finished": 2.0, **changes}
    (record,) = request_records(COLUMNS, [SeenRequest(1, "absent", **values)])  # type: ignore[arg-type]
    assert (record.ttft_ms, record.tpot_ms, record.e2el_ms) == latencies
    assert (record.dp_rank, record.lane_sequence) == (None, None)


def test_images_have_no_plan() -> None:
    (record,) = request_records(None, [SeenRequest(0, "null", prompt_tokens=7)])
    assert (record.group_id, record.planned_input_tokens, record.max_tokens, record.input_tokens) == (
        None,
        None,
        None,
        7,
    )
