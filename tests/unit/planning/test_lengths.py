"""Lengths: every mode, overrides, and the shape of the truncated normal."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ais_bench_prefix_cache.foundation.random_streams import RandomStream
from ais_bench_prefix_cache.planning.lengths import request_lengths, sample_lengths
from ais_bench_prefix_cache.scenario.model import (
    CsvLengths,
    ExplicitLengths,
    FixedLength,
    LengthRange,
    RangeLengths,
    TruncatedNormalLength,
    UniformLength,
)


def stream(seed: int = 1) -> RandomStream:
    return RandomStream(seed, "test")


def test_listed_lengths_keep_their_order() -> None:
    assert sample_lengths(FixedLength(7), 3, stream()).tolist() == [7, 7, 7]
    assert sample_lengths(ExplicitLengths((5, 1, 3)), 3, stream()).tolist() == [5, 1, 3]
    assert sample_lengths(CsvLengths(Path("a.csv"), (9, 2)), 2, stream()).tolist() == [9, 2]


def test_ranges_give_their_counts_in_order_and_reach_both_ends() -> None:
    spec = RangeLengths((LengthRange(10, 12, 300), LengthRange(5, 5, 2), LengthRange(1, 2, 100)))
    lengths = sample_lengths(spec, 402, stream())
    assert lengths.dtype == np.int64
    assert set(lengths[:300].tolist()) == {10, 11, 12}
    assert lengths[300:302].tolist() == [5, 5]
    assert set(lengths[302:].tolist()) == {1, 2}


def test_uniform_covers_the_interval_evenly() -> None:
    counts = np.bincount(sample_lengths(UniformLength(3, 12), 100_000, stream()))[3:]
    assert counts.size == 10
    expected = 10_000.0
    assert ((counts - expected) ** 2 / expected).sum() < 27.9  # chi-square, 9 degrees of freedom, 0.1 %


def test_a_list_for_another_number_of_requests_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^2 lengths for 3 requests$"):
        sample_lengths(ExplicitLengths((5, 1)), 3, stream())


def cell_probabilities(spec: TruncatedNormalLength) -> npt.NDArray[np.float64]:
    """What rejection sampling of ``round(normal)`` gives: differences of ``math.erfc``, normalised over [min, max]."""

    def tail(x: float) -> float:
        return math.erfc((x - spec.mean) / spec.std / math.sqrt(2))

    # Take differences on the side where the tail function is small, so that nothing cancels.
    cells = []
    for value in range(spec.min, spec.max + 1):
        low, high = value - 0.5, value + 0.5
        if low >= spec.mean:
            cells.append(tail(low) - tail(high))
        else:
            cells.append(tail(2 * spec.mean - high) - tail(2 * spec.mean - low))
    return np.array(cells) / sum(cells)


@pytest.mark.parametrize(
    "spec",
    [
        TruncatedNormalLength(512, 2048, 1024.0, 256.0),
        TruncatedNormalLength(1, 40, 20.5, 6.0),
        TruncatedNormalLength(1, 40, 3.0, 50.0),
        TruncatedNormalLength(1, 40, 10.3, 0.4),
        TruncatedNormalLength(1, 40, 10.5, 1e-6),
        TruncatedNormalLength(100, 200, 50.0, 20.0),
        TruncatedNormalLength(100, 200, 300.0, 30.0),
        TruncatedNormalLength(100, 101, 99.0, 1.0),
    ],
)
def test_truncated_normal_matches_the_normal_distribution(spec: TruncatedNormalLength) -> None:
    count = 400_000
    lengths = sample_lengths(spec, count, stream(7))
    assert lengths.min() >= spec.min
    assert lengths.max() <= spec.max
    expected = cell_probabilities(spec) * count
    counts = np.bincount(lengths - spec.min, minlength=expected.size)
    big = expected >= 20
    cells = np.append(expected[big], expected[~big].sum())
    seen = np.append(counts[big], counts[~big].sum())
    used = cells > 0.5
    degrees = int(used.sum()) - 1
    chi_square = ((seen[used] - cells[used]) ** 2 / cells[used]).sum()
    assert seen[~used].sum() <= 10
    assert chi_square < degrees + 4 * math.sqrt(2 * degrees) + 8


@pytest.mark.parametrize(
    ("spec", "low", "high"),
    [
        # A mean far outside: everything lies at the near end, and takes no time.
        (TruncatedNormalLength(100, 200, 1e9, 1.0), 200, 200),
        (TruncatedNormalLength(100, 200, -1e12, 1e3), 100, 101),
        # A huge interval costs no memory.
        (
            TruncatedNormalLength(1, 1 << 40, float(1 << 39), float(1 << 30)),
            (1 << 39) - (10 << 30),
            (1 << 39) + (10 << 30),
        ),
        (TruncatedNormalLength(5, 5, 1.0, 1.0), 5, 5),
    ],
)
def test_far_means_and_huge_intervals(spec: TruncatedNormalLength, low: int, high: int) -> None:
    lengths = sample_lengths(spec, 10_000, stream())
    assert low <= lengths.min() <= lengths.max() <= high


def test_an_override_replaces_its_group_and_leaves_the_others() -> None:
    groups = np.array([0, 1, 2, 0, 1, 2, 2, 1, 0], dtype=np.int32)
    plain = request_lengths("input", UniformLength(1, 1000), {}, groups, 42)
    changed = request_lengths("input", UniformLength(1, 1000), {1: FixedLength(7)}, groups, 42)
    assert changed.tolist() == np.where(groups == 1, 7, plain).tolist()


def test_input_output_and_seed_give_different_lengths() -> None:
    spec, groups = UniformLength(1, 10**9), np.zeros(50, dtype=np.int32)
    drawn = {tuple(request_lengths(kind, spec, {}, groups, seed)) for kind in ("input", "output") for seed in (1, 2)}
    assert len(drawn) == 4
