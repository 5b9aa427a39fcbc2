"""The analysis of an image run: counters alone, against the server's own answers."""

from __future__ import annotations

from typing import Any

import pytest
from tests.doubles.fake_service import service_config
from tests.doubles.metric_texts import engine, vllm_text

from ais_bench_prefix_cache.analysis.analysis_document import SnapshotTexts
from ais_bench_prefix_cache.analysis.image_analysis import ServerUsage, analyze_image_run
from ais_bench_prefix_cache.analysis.run_facts import RunFacts
from ais_bench_prefix_cache.analysis.seen_request import SeenRequest
from ais_bench_prefix_cache.foundation.errors import ArtifactError

PREVIOUS: dict[str, Any] = {
    "status": "prepared",
    "validation": {"status": "PASS"},
    "warnings": [{"code": "DAMAGED_IMAGES", "message": "m"}, {"code": "QUERIES_MISMATCH", "message": "old"}],
    "findings": ["old"],
    "content_sha256": "old",
}


def look(queries: int, hits: int, **more: float) -> SnapshotTexts:
    return SnapshotTexts((vllm_text(engine(queries, hits, **more)),), ("m",))


def analyzed(previous: dict[str, Any] = PREVIOUS, **changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "previous_analysis": previous,
        "baseline": look(0, 0, mm_cache_queries=0, mm_cache_hits=0),
        "after": look(1000, 640, mm_cache_queries=10, mm_cache_hits=9),
        "service": service_config(dp_size=1, model="m"),
        "status": "analyzed",
    }
    return analyze_image_run(**{**arguments, **changes})


def test_counters_are_shown_with_the_cache_of_images_and_no_theory() -> None:
    document = analyzed()
    assert document["actual"]["global_hit_rate"] == 0.64
    assert document["actual"]["mm_cache"] == {"queries": 10, "hits": 9, "hit_rate": 0.9}
    assert [finding["code"] for finding in document["findings"]] == ["NO_THEORY"]
    assert [warning["code"] for warning in document["warnings"]] == ["DAMAGED_IMAGES"]
    assert "content_sha256" not in document


def test_the_server_s_answers_are_held_against_its_counter() -> None:
    usage = ServerUsage.of_seen(
        [
            SeenRequest(0, "reported", cached_tokens=320, prompt_tokens=500),
            SeenRequest(1, "null", prompt_tokens=480),
        ]
    )
    document = analyzed(usage=usage, runtime={}, facts=RunFacts(assumed_empty=True))
    assert document["server_usage"] == {"requests": 2, "prompt_tokens": 980, "cached_tokens": None}
    assert [warning["code"] for warning in document["warnings"]] == [
        "DAMAGED_IMAGES",
        "ASSUME_EMPTY_CACHE",
        "QUERIES_MISMATCH",
    ]
    assert document["validation"] == {"status": "PASS_WITH_WARNING", "actual_status": "PASS_WITH_WARNING"}


def test_what_an_earlier_run_saw_is_kept() -> None:
    first = analyzed(usage=ServerUsage(2, 1000, 640), runtime={"phases": {}}, facts=RunFacts(failed_requests=0))
    again = analyzed(previous=first)
    assert again["server_usage"] == first["server_usage"]
    assert again["runtime"]["facts"] == {"failed_requests": 0}


@pytest.mark.parametrize("usage", [5, {"requests": 2}, {"requests": 2, "prompt_tokens": 1, "cached_tokens": 1, "x": 1}])
def test_a_damaged_record_is_named(usage: object) -> None:
    with pytest.raises(ArtifactError) as refused:
        analyzed(previous={**PREVIOUS, "server_usage": usage})
    assert refused.value.problems[0].code == "ANALYSIS_DAMAGED"
