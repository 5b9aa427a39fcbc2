"""The summary of lengths that ``validate`` computes without numpy is the one that ``inspect`` shows."""

from __future__ import annotations

from collections import Counter

import numpy as np
from ais_bench_prefix_cache.datasets.text.theory import length_summary
from hypothesis import given
from hypothesis import strategies as st

from ais_bench_prefix_cache.planning import summary as planning_summary


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=60))
def test_it_agrees_with_numpy_and_with_inspect(lengths: list[int]) -> None:
    found = length_summary(Counter(lengths))
    column = np.array(lengths, dtype=np.int64)
    assert found == planning_summary.length_summary(column)
    for percent in (50, 90, 95, 99):
        assert abs(found[f"p{percent}"] - float(np.percentile(column, percent))) < 1e-6
    assert found["mean"] == sum(lengths) / len(lengths)
    assert sum(each["count"] for each in found["bins"]) == len(lengths)
    for each in found["bins"]:
        assert each["count"] == sum(each["min"] <= length <= each["max"] for length in lengths)


def test_bins_have_the_documented_width() -> None:
    assert [(each["min"], each["max"]) for each in length_summary(Counter({10: 1, 34: 2}))["bins"]] == [
        (10, 12),
        (34, 34),
    ]
