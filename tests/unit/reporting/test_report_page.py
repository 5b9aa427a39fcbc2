"""The report's web page stands alone, shows what was measured and lets no text become markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from ais_bench_prefix_cache.analysis.performance import performance_section
from ais_bench_prefix_cache.analysis.planned_traffic import RequestColumns
from ais_bench_prefix_cache.analysis.request_record import RequestRecord, request_records
from ais_bench_prefix_cache.analysis.seen_request import SeenRequest
from ais_bench_prefix_cache.reporting.report_page import render_report_page

CONFIG = {
    "prefix_cache": {"mode": "warmup"},
    "requests": {"count": 3},
    "service": {"model": "m&m", "dp_size": 2},
    "aisbench": {"model": {"batch_size": 8}},
    "multimodal": {"scenarios": ["multi_720p_5"]},
}
ANALYSIS = {
    "runtime": {
        "precheck": {"versions": {"http://a:1": "0.32.0", "http://a:2": "0.32.0"}},
        "phases": {"formal": {"started_at": "2026-11-30T01:01:30.631+00:00"}},
    },
    "requested_target_hit_rate": 0.6,
    "theoretical_hit_rate": 0.59375,
    "target_absolute_difference_pp": 0.625,
    "theory_actual_absolute_difference_pp": 0.0,
    "theory": {"hit_tokens": 60, "input_tokens": 96},
    "actual": {"global_hit_rate": 0.59375, "global_hits": 57, "global_queries": 96, "by_dp": {}},
    "warnings": [{"code": "TARGET_DEVIATION", "message": "<script>alert(1)</script>"}],
    "findings": [{"code": "BLOCK_SIZE", "severity": "error", "message": "wrong", "remedy": "set it to 32 & go on"}],
    "requests": {
        "compared": 3,
        "matched": 2,
        "by_dp": {
            "0": {"requests": 2, "matched": 2, "expected_hits": 40, "seen_hits": 40},
            "1": {"requests": 1, "matched": 0, "expected_hits": 20, "seen_hits": 0},
        },
        "by_group": {"group-0": {"requests": 3, "matched": 2, "expected_hits": 60, "seen_hits": 40}},
        "over_time": [],
    },
}


def records(count: int = 60) -> list[RequestRecord]:
    """Two ranks and groups; every second request hits 64 of its 96 tokens, and is faster by it."""
    columns = RequestColumns(
        group_ids=[f"group-{index % 2}" for index in range(count)],
        dp_ranks=[index % 2 for index in range(count)],
        lane_sequences=[index // 2 for index in range(count)],
        input_tokens=[96] * count,
        hit_tokens=[64 * (index % 2) for index in range(count)],
        shared_prefix_tokens=[64] * count,
        max_tokens=[4] * count,
    )
    seen = [
        SeenRequest(
            index,
            "reported",
            cached_tokens=64 * (index % 2),
            prompt_tokens=96,
            completion_tokens=4,
            sent=0.1 * index,
            first_token=0.1 * index + 0.05 - 0.03 * (index % 2),
            finished=0.1 * index + 0.08,
            itl_ms=(9.0, 10.0, 11.0),
        )
        for index in range(count)
    ]
    return list(request_records(columns, seen))


SERIES = [
    {"time_s": float(second), "kv_cache_usage": {"0": 0.1 * second}, "running": {"0": 3}, "waiting": {"0": None}}
    for second in range(5)
]


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_stands_alone_and_is_well_formed() -> None:
    measured = records()
    analysis = {**ANALYSIS, "performance": performance_section(measured, batch_size=8, slo={"ttft_ms": 30.0})}
    text = render_report_page(analysis, run_id="run <1>", config=CONFIG, records=measured, series=SERIES)
    page = _Page(text)
    assert page.open == []
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    references = {value for name, value in page.attributes if name in ("src", "href", "xlink:href")}
    assert all((value or "").startswith("#") for value in references), "pictures refer to their own parts only"
    assert "http" not in text.replace("http://a:1", "").replace("http://a:2", "")
    assert len(text) < 1_000_000
    said = " ".join(page.words)
    for words in (
        "run <1>",
        "model m&m",
        "server version 0.32.0",
        "at most 8 in flight",
        "sent from 2026-11-30 01:01:30 UTC",
        "<script>alert(1)</script>",
        "set it to 32 & go on",
        "59.38%",
        "TTFT: time to first token",
        "Goodput",
        "50.00% of requests",
        "Time to first token against uncached tokens",
        "Cumulative hit rate",
        "Time to first token by rank",
        "Cache use and queues",
    ):
        assert words in said, words
    assert page.tags.count("figure") == 6
    assert all(f"var(--{name})" in text for name in ("ink", "line", "c1", "c2"))
    assert "#010101" not in text and "#04a10" not in text
    assert "prefers-color-scheme: dark" in text
    assert "imitation" not in said


def test_a_page_of_the_embedded_server_says_so() -> None:
    analysis = {**ANALYSIS, "runtime": {"precheck": {"versions": {"u": "0.33.0 (embedded server)"}}}}
    assert "an imitation of vLLM" in render_report_page(analysis, run_id="r", config=CONFIG)


def test_thousands_of_requests_leave_a_page_small_and_say_how_many_are_shown() -> None:
    text = render_report_page(ANALYSIS, run_id="r", config=CONFIG, records=records(20_000))
    assert len(text) < 5_000_000
    assert "Every 5th of 20000 is shown." in text


def test_bars_share_one_scale() -> None:
    text = render_report_page(ANALYSIS, run_id="r", config=CONFIG)
    widths = re.findall(r'preserveAspectRatio="none" role="presentation"><rect class="\w+" width="([\d.]+)"', text)
    assert widths == ["14", "14", "100.0", "100.0", "50.0", "0.0"], "the key, then one group alone needs no bars"


def test_image_runs_show_what_the_server_counted() -> None:
    analysis = {
        "benchmark_mode": "mm",
        "runtime": {},
        "actual": {
            "by_dp": {},
            "global_queries": 200,
            "global_hits": 150,
            "global_hit_rate": 0.75,
            "mm_cache": {"queries": 10, "hits": 9, "hit_rate": 0.9},
        },
        "server_usage": {"requests": 2, "prompt_tokens": 200, "cached_tokens": None},
        "findings": [],
        "warnings": [],
    }
    said = " ".join(_Page(render_report_page(analysis, run_id="r", config=CONFIG)).words)
    for words in (
        "no theory for images",
        "75.00%",
        "150 of 200 tokens",
        "9 of 10 images",
        "m&m · multi_720p_5 · 3 requests",
    ):
        assert words in said
    assert "target" not in said
