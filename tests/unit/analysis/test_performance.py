"""Figures of a run from its records, against the standard library's and by hand."""

from __future__ import annotations

import random
import statistics
from typing import Any

import pytest

from ais_bench_prefix_cache.analysis.performance import latency_section, performance_section
from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
from ais_bench_prefix_cache.analysis.request_record import RequestRecord, request_records
from ais_bench_prefix_cache.analysis.seen_request import SeenRequest


def records(*rows: dict[str, Any]) -> list[RequestRecord]:
    common: dict[str, Any] = {"prompt_tokens": 10, "completion_tokens": 2}
    return list(
        request_records(None, (SeenRequest(index, "absent", **{**common, **row}) for index, row in enumerate(rows)))
    )


def test_percentiles_are_those_of_the_standard_library() -> None:
    numbers = random.Random(1)
    seconds = [round(numbers.uniform(0.01, 3.0), 6) for _ in range(99)]
    measured = records(*({"sent": 0.0, "first_token": value, "finished": value} for value in seconds))
    figures = latency_section(measured, (50, 75, 99))["ttft_ms"]
    cuts = statistics.quantiles([1000 * value for value in seconds], n=100, method="inclusive")
    assert figures["p50"] == pytest.approx(cuts[49], abs=1e-3)
    assert figures["p75"] == pytest.approx(cuts[74], abs=1e-3)
    assert figures["p99"] == pytest.approx(cuts[98], abs=1e-3)
    assert figures["mean"] == pytest.approx(1000 * statistics.fmean(seconds), abs=1e-3)
    assert (figures["count"], figures["min"], figures["max"]) == (99, 1000 * min(seconds), 1000 * max(seconds))


def test_times_between_tokens_are_those_of_all_requests() -> None:
    measured = records({"itl_ms": (1.0, 3.0)}, {"itl_ms": (8.0,)})
    assert latency_section(measured, (50,)) == {
        "itl_ms": {"count": 3, "mean": 4.0, "min": 1.0, "p50": 3.0, "max": 8.0},
    }


def test_throughput_and_concurrency() -> None:
    measured = records(
        {"sent": 0.0, "first_token": 1.0, "finished": 2.0},
        {"sent": 1.0, "first_token": 2.0, "finished": 4.0},
        {"sent": 1.0, "finished": 9.0, "success": False, "error": "x"},
    )
    section = performance_section(measured, batch_size=8)
    assert (section["requests"], section["failed_requests"], section["duration_s"]) == (3, 1, 4.0)
    assert section["throughput"] == {"requests_per_s": 0.5, "input_tokens_per_s": 5.0, "output_tokens_per_s": 1.0}
    assert section["concurrency"] == {"asked": 8, "mean": 1.25, "max": 2}
    assert section["request_rate"] == {"asked_per_s": None, "sent_per_s": 1.0}
    assert "goodput" not in section


def test_tokens_that_the_server_does_not_tell_are_unknown() -> None:
    measured = records({"sent": 0.0, "finished": 2.0, "prompt_tokens": None}, {"sent": 0.0, "finished": 2.0})
    assert performance_section(measured, batch_size=1)["throughput"]["input_tokens_per_s"] is None


def test_a_rate_that_was_not_kept_says_by_how_much_and_why() -> None:
    measured = records(
        {"due": 0.0, "sent": 0.0, "finished": 1.0},
        {"due": 0.5, "sent": 0.505, "finished": 1.0},
        {"due": 1.0, "sent": 1.5, "finished": 2.0, "slot_wait": 0.5},
        {"due": 1.5, "sent": 3.0, "finished": 3.5, "lane_wait": 1.5},
    )
    rate = performance_section(measured, batch_size=1, request_rate=2.0)["request_rate"]
    assert (rate["asked_per_s"], rate["due_per_s"], rate["sent_per_s"]) == (2.0, 2.0, 1.0)
    assert (rate["late_requests"], rate["waited_for_slot"], rate["waited_for_lane"]) == (2, 1, 1)
    assert rate["lateness_ms"]["max"] == 1500.0


def test_goodput_is_the_share_that_keeps_every_bound() -> None:
    measured = records(
        {"sent": 0.0, "first_token": 0.1, "finished": 0.2},
        {"sent": 0.0, "first_token": 0.1, "finished": 0.9},
        {"sent": 0.0, "first_token": 0.5, "finished": 0.6},
        {"sent": 0.0, "first_token": 0.1, "finished": 2.0, "success": False, "error": "x"},
    )
    section = performance_section(measured, batch_size=1, slo={"ttft_ms": 200.0, "e2el_ms": 500.0})
    assert section["goodput"] == {
        "slo": {"ttft_ms": 200.0, "e2el_ms": 500.0},
        "requests": 1,
        "share": 0.25,
        "requests_per_s": pytest.approx(1 / 0.9, abs=1e-4),
    }


def test_turns_of_conversations_are_told_apart() -> None:
    columns = RequestColumns.from_rows(
        {
            "group_id": "group-0",
            "dp_rank": 0,
            "turn": turn,
            "branch": 0,
            "continues": None,
            "repeats": None,
            "think_ms": 0,
            "actual_input_tokens": tokens,
            "theoretical_hit_tokens": hits,
            "shared_prefix_tokens": hits,
            "max_tokens": 2,
        }
        for turn, tokens, hits in [(0, 10, 0), (1, 30, 16), (0, 20, 8), (1, 50, 32)]
    )
    assert columns.are_turns
    seen = [
        SeenRequest(index, "reported", hits, sent=0.0, first_token=moment, finished=1.0, completion_tokens=2)
        for index, (hits, moment) in enumerate([(0, 0.1), (16, 0.3), (8, 0.2), (0, 0.5)])
    ]
    section = performance_section(list(request_records(columns, seen)), batch_size=1, are_turns=True)["by_turn"]
    assert {turn: (each["requests"], each["input_tokens"], each["planned_hit_tokens"], each["hit_tokens"])
            for turn, each in section.items()} == {"0": (2, 30, 8, 8), "1": (2, 80, 48, 16)}  # fmt: skip
    assert [section[turn]["ttft_ms"]["mean"] for turn in ("0", "1")] == [150.0, 400.0]
    assert "by_turn" not in performance_section(list(request_records(columns, seen)), batch_size=1)
