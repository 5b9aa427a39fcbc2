"""The report's web page stands alone, shows what was measured and lets no text become markup."""

from __future__ import annotations

from html.parser import HTMLParser

from ais_bench_prefix_cache.reporting.report_page import render_report_page

PERFORMANCE = {
    "csv": "/results/<d>.csv",
    "json": "/results/d.json",
    "metrics": {"E2EL": {"Stage": "total", "Average": "47.7 ms", "N": 3}},
    "common": {"Total Requests": {"total": 3}},
}
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


class _Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words, self.open = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_stands_alone_and_is_well_formed():
    text = render_report_page(PERFORMANCE, ANALYSIS, run_id="run <1>", config=CONFIG)
    page = _Page(text)
    assert page.open == []
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not {"src", "href"} & {name for name, _ in page.attributes}
    assert "http" not in text
    assert (
        "<p>model m&amp;m · server version 0.32.0 · warmup · 3 requests · data-parallel ranks: 2 · batch_size 8 · "
        "sent from 2026-11-30 01:01:30 UTC</p>"
    ) in text
    assert "prefers-color-scheme: dark" in text
    said = " ".join(page.words)
    for words in ("run <1>", "<script>alert(1)</script>", "set it to 32 & go on", "47.7 ms", "59.38%", "<d>.csv"):
        assert words in said


def test_bars_share_one_scale():
    text = render_report_page(PERFORMANCE, ANALYSIS, run_id="r", config=CONFIG)
    widths = [value for name, value in _Page(text).attributes if name == "style"]
    assert widths == ["width:100.00%", "width:100.00%", "width:50.00%", "width:0.00%"], "one group alone needs no bars"


def test_image_runs_show_what_the_server_counted():
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
    said = " ".join(_Page(render_report_page(PERFORMANCE, analysis, run_id="r", config=CONFIG)).words)
    for words in (
        "E2EL",
        "no theory for images",
        "75.00%",
        "150 of 200 tokens",
        "9 of 10 images",
        "m&m · multi_720p_5 · 3",
    ):
        assert words in said
    assert "target" not in said
