"""The two-column table at the end of ``run`` and in ``report``, in the look of AISBench's own tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ais_bench_prefix_cache.foundation.grid_table import render_grid

HEADER = ("Prefix Cache Metric", "Value")
NOT_MEASURED = "not measured"


def summary_rows(analysis: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Metric and value, as shown. A rate that was not measured is said to be so, never 0."""
    actual = analysis.get("actual")
    if "theory" not in analysis:
        return _image_rows(actual)
    measured = actual is not None
    has_target = "requested_target_hit_rate" in analysis
    rows = [
        *([("Overall target hit rate", _percent(analysis["requested_target_hit_rate"]))] if has_target else []),
        ("Overall theoretical hit rate", _percent(analysis["theoretical_hit_rate"])),
        ("Overall actual hit rate", _percent(actual["global_hit_rate"]) if actual else NOT_MEASURED),
        (
            "Theory-actual deviation",
            f"{analysis['theory_actual_absolute_difference_pp']:.2f} pp" if measured else NOT_MEASURED,
        ),
    ]
    if has_target:
        rows.append(("Theory-target deviation", f"{analysis['target_absolute_difference_pp']:.2f} pp"))
    if actual:
        theory = analysis["theory"]
        rows += [
            ("Theoretical hits", f"{theory['hit_tokens']} of {theory['input_tokens']} tokens"),
            ("Actual hits", f"{actual['global_hits']} of {actual['global_queries']} tokens"),
        ]
        if "range" in theory:
            least, most = theory["range"]["least_hit_tokens"], theory["range"]["most_hit_tokens"]
            rows.append(("Hits by any routing", f"{least} to {most} tokens"))
    rows += _rank_rows(actual)
    requests = analysis.get("requests")
    if requests is not None and requests["compared"]:
        rows.append(("Requests as predicted", f"{requests['matched']} of {requests['compared']}"))
    return rows


def render_summary_table(analysis: Mapping[str, Any]) -> str:
    """:func:`summary_rows` in a grid of box-drawing characters, without a newline at the end."""
    return render_grid(HEADER, summary_rows(analysis))


def _image_rows(actual: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """What the server counted; with images there is neither target nor theory."""
    if actual is None:
        return [("Counted hit rate", NOT_MEASURED)]
    mm_cache = actual["mm_cache"]
    return [
        ("Counted hit rate (no theory for images)", _percent(actual["global_hit_rate"])),
        ("Prefix-cache hits", f"{actual['global_hits']} of {actual['global_queries']} tokens"),
        ("Multimodal cache hits", f"{mm_cache['hits']} of {mm_cache['queries']} images" if mm_cache else NOT_MEASURED),
        *_rank_rows(actual),
    ]


def _rank_rows(actual: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    by_dp = actual["by_dp"] if actual else {}
    if len(by_dp) < 2:
        return []
    return [
        (f"DP rank {rank} actual hit rate", _rank_value(entry))
        for rank, entry in sorted(by_dp.items(), key=lambda item: int(item[0]))
    ]


def _rank_value(entry: Mapping[str, Any]) -> str:
    if entry["hit_rate"] is None:
        return "no queries"
    return f"{_percent(entry['hit_rate'])} ({entry['hits']} of {entry['queries']} tokens)"


def _percent(rate: float) -> str:
    return f"{rate * 100:.2f}%"
