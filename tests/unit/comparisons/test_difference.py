"""How often a verdict is wrong, by simulation, and what the arithmetic is, by hand.

The simulated servers disturb their requests as real ones do: noise of single requests, a slow drift, stalls of all that
is in flight, and a shift of a whole run.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from ais_bench_prefix_cache.analysis.metric import Values, metric_named
from ais_bench_prefix_cache.comparisons.difference import Difference, Side, Verdict, difference

METRICS = ("ttft_p50", "ttft_p90", "ttft_p99", "ttft_mean")
IN_FLIGHT = 8


def simulated_run(
    random: np.random.Generator, content: Values, *, slower: float, drift: float, shift: float, stalls: float
) -> Values:
    count = len(content)
    slow = np.empty(count)
    level = random.normal(0, drift)
    for index, step in enumerate(random.normal(0, drift * math.sqrt(1 - 0.95**2), count)):
        level = 0.95 * level + step
        slow[index] = level
    times = content * np.exp(slow + random.normal(0, 0.1, count) + random.normal(0, shift)) * slower
    stalled = np.repeat(random.random(count // IN_FLIGHT + 1) < stalls, IN_FLIGHT)[:count]
    return np.where(stalled, 4 * times, times)


def verdicts(seed: int, *, slower: float, runs: int, noise: dict[str, float]) -> set[Verdict]:
    count = 120
    random = np.random.default_rng(seed)
    content = 100 * np.exp(random.normal(0, 0.5, count))
    sides = [
        Side([simulated_run(random, content, slower=factor, **noise) for _ in range(runs)], IN_FLIGHT)
        for factor in (1.0, slower)
    ]
    return {difference(metric_named(name), *sides, paired=True, comparisons=len(METRICS)).verdict for name in METRICS}


QUIET = {"drift": 0.02, "shift": 0.01, "stalls": 0.0}
BUSY = {"drift": 0.1, "shift": 0.05, "stalls": 0.01}
ROUGH = {"drift": 0.2, "shift": 0.1, "stalls": 0.02}


@pytest.mark.parametrize("runs", [1, 2, 3, 5])
@pytest.mark.parametrize("noise", [QUIET, BUSY, ROUGH], ids=["quiet", "busy", "rough"])
def test_a_server_against_itself_shows_nothing(noise: dict[str, float], runs: int) -> None:
    """In 19 of 20 whole comparisons at least, each of four figures."""
    wrong = sum(verdicts(seed, slower=1.0, runs=runs, noise=noise) != {"no difference shown"} for seed in range(40))
    assert wrong <= 2


@pytest.mark.parametrize(
    ("slower", "runs", "noise", "least"),
    [(1.5, 1, QUIET, 38), (2.0, 1, BUSY, 28), (1.2, 3, QUIET, 38), (1.5, 5, BUSY, 38), (2.0, 5, ROUGH, 36)],
)
def test_a_slower_server_is_worse(slower: float, runs: int, noise: dict[str, float], least: int) -> None:
    """In most of 40 comparisons some figure shows it, and never the opposite."""
    found = [verdicts(seed, slower=slower, runs=runs, noise=noise) for seed in range(40)]
    assert sum("worse" in each for each in found) >= least
    assert not any("better" in each for each in found)


def compared(one: list[list[float]], other: list[list[float]], name: str = "ttft_mean", **how: float) -> Difference:
    sides = [Side([np.asarray(run) for run in side], 1) for side in (one, other)]
    return difference(metric_named(name), *sides, paired=False, **how)  # type: ignore[arg-type]


def test_three_runs_each_by_hand() -> None:
    """Logarithms of the means: 1, 2, 3 against 2, 3, 4 tenths; spread 0.1, error 0.1·√(2/3), t of 4 degrees 2.776."""
    runs = [[math.exp(tenths / 10)] * 10 for tenths in (1, 2, 3)]
    others = [[math.exp(tenths / 10)] * 10 for tenths in (2, 3, 4)]
    found = compared(runs, others)
    half = 2.776 * 0.1 * math.sqrt(2 / 3)
    assert found.change == pytest.approx(math.expm1(0.1))
    assert [found.low, found.high] == pytest.approx([math.expm1(0.1 - half), math.expm1(0.1 + half)], abs=1e-3)
    assert (found.source, found.verdict) == ("repeats", "no difference shown")


@pytest.mark.parametrize(
    ("factor", "name", "verdict"),
    [
        (2.0, "ttft_p50", "worse"),
        (0.5, "ttft_p50", "better"),
        (2.0, "requests_per_s", "worse"),
        (0.5, "requests_per_s", "better"),
        (1.04, "ttft_p50", "no difference shown"),
    ],
)
def test_which_way_is_better(factor: float, name: str, verdict: Verdict) -> None:
    runs = [[1.0 + number / 1000] * 30 for number in range(3)]
    found = compared(runs, [[factor * value for value in run] for run in runs], name)
    assert found.verdict == verdict


def test_the_threshold_is_what_counts() -> None:
    runs = [[1.0 + number / 10000] * 30 for number in range(3)]
    others = [[1.08 * value for value in run] for run in runs]
    assert compared(runs, others).verdict == "worse"
    assert compared(runs, others, threshold=0.1).verdict == "no difference shown"


@pytest.mark.parametrize(
    ("count", "in_flight", "name", "reason"),
    [
        (19, 1, "ttft_p50", "19 requests, and 20 are needed"),
        (99, 1, "ttft_p99", "99 requests, and 100 are needed"),
        (90, 30, "ttft_p50", "90 requests are 3 times what is in flight, and 4 times are needed"),
        (0, 1, "ttft_p50", "it was not measured"),
    ],
)
def test_too_few_data(count: int, in_flight: int, name: str, reason: str) -> None:
    side = Side([np.full(count, 5.0)], in_flight)
    found = difference(metric_named(name), side, side, paired=True)
    assert (found.verdict, found.reason, found.low) == ("too few data", reason, None)
    assert found.change == (0.0 if count else None)


def test_two_runs_are_not_enough_to_vary() -> None:
    runs = [list(np.linspace(90, 110, 60))] * 2
    assert compared(runs, runs).source == "requests"
